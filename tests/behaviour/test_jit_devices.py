"""`coop_jax.jit` on several devices and in several processes: sizes are those on one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.testing.processes import ROOT, output_of

# Trains some layers under a mesh of all devices; prints what came of it.
TRAIN = """
import json, sys
import coop_jax, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

kind, mode, layers, width, rows = sys.argv[1], sys.argv[2], 6, 64, 1024
axis = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[mode]
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(axis,))


def params():
    keys = jax.random.split(jax.random.key(0), 2 * layers)
    up = [0.1 * jax.random.normal(k, (width, 4 * width)) for k in keys[::2]]
    down = [0.1 * jax.random.normal(k, (4 * width, width)) for k in keys[1::2]]
    return list(zip(up, down))


def layer(x, w):
    return x + jax.nn.gelu(x @ w[0]) @ w[1]


def step(params, x, layer=layer):
    def loss(params):
        y = x
        if "scanned" in kind:
            y = jax.lax.scan(lambda y, w: (layer(y, w), None), y, params)[0]
        else:
            for w in params:
                y = layer(y, w)
        return (y**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def checkpointed(params, x):
    return step(params, x, jax.checkpoint(layer))


def spread(tree, spec):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), tree)


def gathers(fn):
    text = fn.lower(state, x).compile().as_text()
    return text.count(" all-gather(") + text.count(" all-gather-start(")


state, x = params(), jax.random.normal(jax.random.key(1), (rows, width))
if "scanned" in kind:
    state = jax.tree.map(lambda *ws: jnp.stack(ws), *state)
expected = jax.tree.map(np.asarray, jax.jit(step)(state, x))
stacked = (None,) if "scanned" in kind else ()
specs = {"data": P(), "fsdp": P(*stacked, "d"), "tensor": P(*stacked, None, "d")}
state = spread(state, specs[kind.split("-")[0]])
x = spread(x, P() if kind.startswith("tensor") else P("d"))
shardings = jax.tree.map(lambda w: w.sharding, state)
options = {"out_shardings": (shardings, None)} if mode == "auto" else {}
if mode == "explicit":
    jax.set_mesh(mesh)
planned = coop_jax.jit(step, budget=float(sys.argv[3]), **options)
report = planned.plan(state, x)
found = planned(state, x)
close, placed = [], []
for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    shard = a.addressable_shards[0]
    close.append(bool(np.allclose(np.asarray(shard.data), b[shard.index], 1e-4, 1e-6)))
for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(state), strict=True):
    placed.append(a.sharding.is_equivalent_to(b.sharding, a.ndim))
print(json.dumps({
    "close": all(close), "placed": all(placed), "again": report.recompute_share,
    "needed": report.needed_bytes, "budget": report.budget_bytes,
    "gathers": gathers(planned), "others": gathers(jax.jit(checkpointed, **options)),
}))
"""


def trained(kind: str, mode: str, share: float, devices: int) -> dict[str, Any]:
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    text = output_of(TRAIN, kind, mode, str(share), environment=flags)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("kind", "mode", "share", "devices"),
    [
        ("data", "auto", 0.6, 2),
        pytest.param("data", "explicit", 0.6, 4, marks=pytest.mark.slow),
        ("fsdp", "auto", 0.5, 4),
        ("fsdp", "explicit", 0.6, 8),
        pytest.param("tensor", "auto", 0.7, 2, marks=pytest.mark.slow),
        pytest.param("data-scanned", "auto", 0.7, 4, marks=pytest.mark.slow),
        ("fsdp-scanned", "auto", 0.6, 4),
        ("fsdp-scanned", "explicit", 0.8, 4),
        pytest.param("data-scanned", "explicit", 0.7, 2, marks=pytest.mark.slow),
    ],
)
def test_every_device_is_within_the_budget(
    kind: str, mode: str, share: float, devices: int
) -> None:
    found = trained(kind, mode, share, devices)
    assert found["close"]
    assert found["placed"]
    assert found["needed"] <= found["budget"]
    assert found["again"] > 0
    assert found["gathers"] <= found["others"]  # with per-layer checkpoints


TOGETHER = """
import sys
import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, processes, number = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
jax.distributed.initialize(address, processes, number)
"""

DISAGREE = """
import coop_jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((processes,), ("d",))
x = jax.make_array_from_callback(
    (64, 64), NamedSharding(mesh, P("d")), lambda index: np.ones((64, 64), np.float32)[index]
)


def fn(x):
    for _ in range(4):
        x = jnp.tanh(x) @ jnp.ones((64, 64))
    return x.sum()


planned = coop_jax.jit(fn, budget=0.5 + 0.1 * number)
try:
    planned(x)
except RuntimeError as error:
    print("refused:", error)
"""


def _together(program: str, *arguments: str, processes: int) -> list[str]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    environment.pop("XLA_FLAGS", None)
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments, address, str(processes), str(n)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in begun]
    finally:
        for process in begun:
            process.kill()
    for process, (_, errors) in zip(begun, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [out for out, _ in outputs]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_make_the_same_plan(processes: int) -> None:
    kinds = ("fsdp", "auto", "0.6")
    outputs = _together(TOGETHER + TRAIN, *kinds, processes=processes)
    found = [json.loads(out.splitlines()[-1]) for out in outputs]
    for each in found:
        assert each["close"]
        assert each["needed"] <= each["budget"]
        assert each["again"] > 0
    assert len({each["needed"] for each in found}) == 1


def test_processes_that_differ_are_told() -> None:
    outputs = _together(TOGETHER + DISAGREE, "", "", "", processes=2)
    for out in outputs:
        assert "refused: coop_jax.jit: the processes" in out
        assert "different budgets" in out
