"""The page of a timeline in headless Chromium: first paint and frames a second; its screenshot.

Run: python -m tests.benchmarks.timeline_page measures a page of a million residences, and WebGL2
with an instance for each, which is what the page would do otherwise. With
`--screenshot=docs/_static/timeline.png` it makes the picture of the documentation.

Frames are those of one core where there is no GPU: Chromium then draws in software.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import coop_jax
from tests.benchmarks import machine
from tests.benchmarks.large_timelines import large_timeline
from tests.models import Block
from tests.report import browser

_FRAMES = 90

# Pans to and fro; returns frames a second, and milliseconds of the slowest of twenty frames.
_PAN = """async ([zoom, frames]) => {
  const {view} = memoryTimeline;
  view.reset();
  view.zoom(zoom, 1, 0.5, 0.5);
  await new Promise(requestAnimationFrame);
  const times = [];
  const begin = performance.now();
  let last = begin;
  for (let frame = 0; frame < frames; frame += 1) {
    view.pan(frame % 20 < 10 ? 0.01 : -0.01, 0);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
  }
  times.sort((a, b) => a - b);
  return [(1000 * frames) / (last - begin), times[Math.floor(0.95 * frames)]];
}"""

# The same rectangles, each an instance of a quad; milliseconds of the fastest frame.
_WEBGL = """(frames) => {
  const panel = memoryTimeline.panels[0];
  const {model} = panel;
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [panel.pool.width, panel.pool.height];
  const gl = canvas.getContext('webgl2', {antialias: false});
  if (gl === null) return null;
  const shader = (type, source) => {
    const made = gl.createShader(type);
    gl.shaderSource(made, source);
    gl.compileShader(made);
    return made;
  };
  const program = gl.createProgram();
  gl.attachShader(program, shader(gl.VERTEX_SHADER, `#version 300 es
    in vec4 box; in float kind; uniform float shift; flat out float shown;
    void main() {
      vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
      gl_Position = vec4(mix(box.xy, box.zw, corner) * 2.0 - 1.0 + vec2(shift, 0.0), 0.0, 1.0);
      shown = kind;
    }`));
  gl.attachShader(program, shader(gl.FRAGMENT_SHADER, `#version 300 es
    precision mediump float; flat in float shown; out vec4 color;
    void main() { color = vec4(shown / 10.0, 0.5, 0.7, 1.0); }`));
  gl.linkProgram(program);
  gl.useProgram(program);
  const boxes = new Float32Array(4 * model.count);
  for (let i = 0; i < model.count; i += 1) {
    boxes[4 * i] = model.position[model.begin[i]];
    boxes[4 * i + 1] = model.address[i] / model.poolBytes;
    boxes[4 * i + 2] = model.position[model.end[i]];
    boxes[4 * i + 3] = (model.address[i] + model.nbytes[i]) / model.poolBytes;
  }
  const attribute = (name, data, size) => {
    const place = gl.getAttribLocation(program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, size, gl.FLOAT, false, 0, 0);
    gl.vertexAttribDivisor(place, 1);
  };
  attribute('box', boxes, 4);
  attribute('kind', Float32Array.from(model.kind), 1);
  const pixel = new Uint8Array(4);
  let least = Infinity;
  for (let frame = 0; frame < frames; frame += 1) {
    const begin = performance.now();
    gl.uniform1f(gl.getUniformLocation(program, 'shift'), 0.001 * frame);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, model.count);
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel); // waits for it
    least = Math.min(least, performance.now() - begin);
  }
  return least;
}"""

# The rectangles of the page alone, without what is around them; milliseconds of the fastest frame.
_RASTER = """(frames) => {
  const panel = memoryTimeline.panels[0];
  memoryTimeline.view.reset();
  let least = Infinity;
  for (let frame = 0; frame < frames; frame += 1) {
    const begin = performance.now();
    panel.raster.paint(panel.image, panel.range(), null);
    panel.context.putImageData(panel.image, 0, 0);
    least = Math.min(least, performance.now() - begin);
  }
  return least;
}"""

# Where on the page the largest storage lies that is computed again halfway through the step.
_RECOMPUTED = """() => {
  const panel = memoryTimeline.panels[0];
  const {model} = panel;
  const score = (i) => model.nbytes[i] - Math.abs(model.position[model.begin[i]] - 0.5);
  let best = -1;
  for (let i = 0; i < model.count; i += 1) {
    if (model.recomputation[i] > 0 && (best < 0 || score(i) > score(best))) best = i;
  }
  const [left, right, top, bottom] = panel.boxOf(best);
  const box = panel.pool.getBoundingClientRect();
  return [box.left + (left + right) / 2, box.top + (top + bottom) / 2];
}"""


def measure(residences: int) -> None:
    """Prints what a page of so many takes."""
    found = large_timeline(residences)
    print(f"# {machine.heading(1, 0)}")
    with tempfile.TemporaryDirectory() as folder, browser.browser() as started:
        path = pathlib.Path(folder) / "large.html"
        found.save(path)
        shown = browser.opened(started, path)
        painted = shown.evaluate("performance.getEntriesByName('painted')[0].startTime")
        mib = path.stat().st_size / 2**20
        print(f"{len(found.residences)} residences, {mib:.1f} MiB; painted after {painted:.0f} ms")
        print("zoom  frames/s  slowest of 20 [ms]")
        for zoom in (1.02, 2, 4, 16, 256):
            rate, slowest = shown.evaluate(_PAN, [zoom, _FRAMES])
            print(f"{zoom:<5g} {rate:8.1f} {slowest:8.1f}")
        assert shown.complaints == []
        print("rectangles alone, all of them seen, ms of the fastest frame:")
        print(f"  page   {shown.evaluate(_RASTER, 20):8.1f}")
        webgl = shown.evaluate(_WEBGL, 3)
        print("  WebGL2 " + ("not there" if webgl is None else f"{webgl:8.1f}"))


class _Transformer(nn.Module):
    layers: int = 6

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(512, 128)(tokens)
        for _ in range(self.layers):
            x = Block(4)(x)
        return nn.Dense(512)(nn.LayerNorm()(x))


def transformer(budget: float | None, title: str) -> coop_jax.Timeline:
    """A train step of a small transformer with Adam, simulated."""
    model, optimizer = _Transformer(), optax.adamw(1e-3)

    def train_step(params: Any, state: Any, tokens: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = model.apply(params, tokens[:, :-1])
            assert isinstance(logits, jax.Array)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = jax.ShapeDtypeStruct((16, 129), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    state = jax.eval_shape(optimizer.init, params)
    simulation = coop_jax.simulate(
        train_step, params, state, tokens, budget=budget, donate_argnums=(0, 1)
    )
    return coop_jax.timeline(simulation, title=title)


def take_screenshot(path: str) -> None:
    """The page of the transformer, with the pointer on a storage that was computed again."""
    found = transformer(0.6, "Transformer train step, 60% of its memory")
    with tempfile.TemporaryDirectory() as folder, browser.browser() as started:
        page = pathlib.Path(folder) / "step.html"
        found.save(page)
        shown = browser.opened(started, page, width=1400, height=820)
        shown.page.mouse.move(*shown.evaluate(_RECOMPUTED))
        shown.page.screenshot(path=path)
        assert shown.complaints == []


def main() -> None:
    """Measures, or takes the screenshot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--residences", type=int, default=1_080_000)
    parser.add_argument("--screenshot", help="file to write instead")
    arguments = parser.parse_args()
    missing = browser.why_missing()
    if missing:
        raise SystemExit(f"no browser: {missing}")
    if arguments.screenshot:
        take_screenshot(arguments.screenshot)
    else:
        measure(arguments.residences)


if __name__ == "__main__":
    main()
