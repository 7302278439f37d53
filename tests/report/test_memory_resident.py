"""What `coop_jax.memory` says a program needs is what the process takes.

Linux counts the most memory that a process had resident (VmHWM) and lets that be reset. A
subprocess compiles a step, takes it once, gives the memory back, and measures a second step.
"""

from __future__ import annotations

import json

import pytest

from tests.testing.processes import output_of

MIB = 2**20

_PROGRAM = """
import ctypes, gc, json, sys
import jax
jax.config.update("jax_cpu_enable_async_dispatch", False)
import jax.numpy as jnp
import coop_jax

def trained(loss, params, x):
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

def mlp(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w)
    return (x ** 2).mean()

def cnn(params, x):
    for w in params:
        x = jax.nn.relu(jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return (x ** 2).mean()

def scanned(params, x):
    def body(x, w):
        return x + jnp.tanh(x @ w), None
    return (jax.lax.scan(body, x, params)[0] ** 2).mean()

PROGRAMS = {
    "mlp": (mlp, lambda: ([jnp.ones((512, 512)) / 512] * 12, jnp.ones((16384, 512)))),
    "cnn": (cnn, lambda: ([jnp.ones((3, 3, 32, 32)) / 300] * 8, jnp.ones((32, 64, 64, 32)))),
    "scanned": (scanned, lambda: (jnp.ones((12, 512, 512)) / 512, jnp.ones((16384, 512)))),
}
loss, arguments = PROGRAMS[sys.argv[1]]
step = jax.jit(lambda params, x: trained(loss, params, x))
report = coop_jax.memory(step, *jax.eval_shape(arguments))

def status(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field))

def settle():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)

def take():
    params, x = jax.block_until_ready(jax.tree.map(lambda a: a + 0, arguments()))
    jax.block_until_ready(step(params, x))

take()  # compiles, and has libraries make what they keep
settle()
idle = status("VmRSS")
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")
take()
print(json.dumps({
    "peak": report.peak_bytes, "library": report.library_bytes, "grown": status("VmHWM") - idle,
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mlp", "cnn", "scanned"])
def test_the_process_takes_what_the_report_says(program: str) -> None:
    found: dict[str, int] = json.loads(output_of(_PROGRAM, program))
    print(found)
    assert found["peak"] > 100 * MIB
    least, most = found["peak"], found["peak"] + found["library"]
    assert 0.95 * least - 4 * MIB <= found["grown"] <= 1.05 * most + 4 * MIB
