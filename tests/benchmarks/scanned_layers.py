"""A scan over transformer layers against the same layers unrolled, without a budget and at 40%.

Both are one gradient and SGD step of a GPT-style stack: once with parameters stacked along a
leading axis and `jax.lax.scan`, once with a dictionary of parameters for each layer and a Python
loop; one primitive at a time. Seconds are those of the cost model, so the table is the same on
every machine.

    python -m tests.benchmarks.scanned_layers [--layers 24] [--fractions 0.4]
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import coop_jax

Parameters = Any
RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the model and its batch."""

    layers: int = 24
    batch: int = 2
    length: int = 32
    width: int = 32
    heads: int = 2


def layer_parameters(sizes: Sizes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One layer's parameters."""
    w = sizes.width

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    return {
        "qkv": matrix(w, 3 * w),
        "out": matrix(w, w),
        "up": matrix(w, 4 * w),
        "down": matrix(4 * w, w),
        "scale": np.ones((2, w), np.float32),
    }


def normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale


def layer(sizes: Sizes, p: Any, x: jax.Array) -> jax.Array:
    """A pre-norm block: causal attention, then a feed-forward part."""
    b, n, w = x.shape
    y = normalise(x, p["scale"][0])
    q, k, v = jnp.split((y @ p["qkv"]).reshape(b, n, sizes.heads, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(w // sizes.heads)
    scores = jnp.where(np.tril(np.ones((n, n), bool)), scores, -1e9)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + y @ p["out"]
    y = normalise(x, p["scale"][1])
    return x + jax.nn.gelu(y @ p["up"]) @ p["down"]


def steps(sizes: Sizes) -> dict[str, tuple[Callable[..., Any], Parameters, np.ndarray]]:
    """(step, parameters, batch) of both forms, with the same numbers."""
    rng = np.random.default_rng(0)
    layers = [layer_parameters(sizes, rng) for _ in range(sizes.layers)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *layers)
    x = rng.standard_normal((sizes.batch, sizes.length, sizes.width)).astype(np.float32)

    def unrolled(p: Parameters, x: jax.Array) -> jax.Array:
        for each in p:
            x = layer(sizes, each, x)
        return (x**2).mean()

    def scanned(p: Parameters, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, each: (layer(sizes, each, x), None), x, p)
        return (x**2).mean()

    def step_of(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
        def step(p: Parameters, x: jax.Array) -> tuple[Parameters, jax.Array]:
            value, grads = jax.value_and_grad(loss)(p, x)
            return jax.tree.map(lambda w, g: w - RATE * g, p, grads), value

        return step

    return {
        "unrolled": (step_of(unrolled), layers, x),
        "scanned": (step_of(scanned), stacked, x),
    }


def measure(
    form: tuple[Callable[..., Any], Parameters, np.ndarray], budget: int | None
) -> tuple[Any, dict[str, Any]]:
    """One step under a budget: its results, and what the cost model says it took."""
    step, parameters, x = form
    budgeted = coop_jax.run(step, budget=budget, donate_argnums=0, fusion=False)
    results = jax.device_get(budgeted(parameters, x))
    (signature,) = budgeted._signatures.values()
    (plan,) = signature.plans.values()
    stats = budgeted.runtime.stats()
    planned = plan.plan.stats
    budgeted.runtime.close()
    return results, {
        "peak_bytes": stats.peak_bytes,
        "compute_seconds": planned.compute_seconds,
        "recompute_seconds": planned.recompute_seconds,
        "overhead": planned.recompute_seconds / planned.compute_seconds,
        "total_seconds": planned.compute_seconds + planned.recompute_seconds,
        "rematerialisations": stats.rematerialisations,
        "operations": stats.operations,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--fractions", type=float, nargs="*", default=[0.4])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    arguments = parser.parse_args()
    sizes = Sizes(arguments.layers, arguments.batch, width=arguments.width)
    forms = steps(sizes)
    print(f"{sizes}, parameters {sum(x.nbytes for x in jax.tree.leaves(forms['scanned'][1]))} B")
    print(
        f"{'':10}{'budget':>12}{'peak':>12}{'compute ms':>12}{'overhead':>10}{'total ms':>10}"
        f"{'remat':>8}{'ops':>8}"
    )
    unbudgeted = 0
    for fraction in (None, *arguments.fractions):
        for name, form in forms.items():
            budget = None if fraction is None else int(fraction * unbudgeted)
            _, found = measure(form, budget)
            if fraction is None and name == "unrolled":
                unbudgeted = found["peak_bytes"]
            print(
                f"{name:10}{budget or 0:12}{found['peak_bytes']:12}"
                f"{1e3 * found['compute_seconds']:12.2f}{found['overhead']:10.1%}"
                f"{1e3 * found['total_seconds']:10.2f}{found['rematerialisations']:8}"
                f"{found['operations']:8}"
            )


if __name__ == "__main__":
    main()
