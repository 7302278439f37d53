"""Operations of a plan are compiled together, each form once, and kept between processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from jax.interpreters import mlir

import coop_jax
from coop_jax._src.execution import compilation, executable_cache
from coop_jax._src.execution.executables import SLOT, Executable
from coop_jax._src.ir import kernels

X = np.linspace(-1, 1, 32 * 48, dtype=np.float32).reshape(32, 48)


def wanted(function: object, count: int) -> list[compilation.Wanted]:
    cache = kernels.cache_for(jax.devices()[0])
    shapes = [jax.ShapeDtypeStruct((64, 8 + n), jnp.float32) for n in range(count)]
    return [(cache.from_function(function, [s]), (SLOT,), f"here {s.shape}") for s in shapes]  # type: ignore[arg-type]


def test_each_form_is_compiled_once_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    compile_one = Executable.compile

    def compiled(self: Executable) -> None:
        threads.append(threading.current_thread().name)
        compile_one(self)

    monkeypatch.setattr(Executable, "compile", compiled)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    device = jax.devices()[0]
    cache = kernels.cache_for(device)
    before = cache.compilations
    forms = wanted(lambda x: jnp.sin(x) * 1.2345, 6)
    compilation.compile_together([*forms, *forms], device, cache)
    assert cache.compilations == before + 6
    assert all(name.startswith("coop_jax-compile") for name in threads)
    assert len(threads) == 6
    compilation.compile_together(forms, device, cache)
    assert len(threads) == 6
    assert all(
        executable_cache.known_executable(kernel, modes, device) for kernel, modes, _ in forms
    )


def test_what_fails_to_compile_is_named_and_the_others_are_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_one = Executable.compile

    def compiled(self: Executable) -> None:
        if self.kernel.in_avals[0].shape == (64, 10):
            raise MemoryError("no room")
        compile_one(self)

    device = jax.devices()[0]
    forms = wanted(lambda x: jnp.cos(x) * 5.4321, 6)
    monkeypatch.setattr(Executable, "compile", compiled)
    with pytest.raises(MemoryError) as caught:
        compilation.compile_together(forms, device, kernels.cache_for(device))
    monkeypatch.undo()
    assert "the operation is at here (64, 10)" in "".join(caught.value.__notes__)
    compilation.compile_together(forms, device, kernels.cache_for(device))
    assert all(
        executable_cache.known_executable(kernel, modes, device) for kernel, modes, _ in forms
    )


def test_an_operation_without_a_rule_is_named_with_its_line() -> None:
    odd = jex_core.Primitive("odd_one")
    odd.def_abstract_eval(lambda x: x)

    def rule(ctx: object, x: object) -> object:
        raise NotImplementedError("no rule for odd_one")

    mlir.register_lowering(odd, rule)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="no rule for odd_one") as caught:
        coop_jax.run(lambda x: odd.bind(x * 2))(X)
    notes = "".join(caught.value.__notes__)
    assert "test_compiling.py" in notes
    assert "odd_one" in notes


PROGRAM = """
import coop_jax, jax.numpy as jnp, numpy as np
step = coop_jax.run(lambda x: jnp.tanh(jnp.sin(x) @ x.T) + 1, fusion=True)
step(np.ones((64, 64), np.float32))
"""


def test_jaxs_cache_keeps_operations_that_compile_quickly(tmp_path: pathlib.Path) -> None:
    """A second process finds them there: nothing is written by it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_PERSISTENT_CACHE")}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    found = []
    for _ in range(2):
        subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=env, check=True)
        found.append({p.name for p in tmp_path.iterdir() if not p.name.endswith("-atime")})
    assert len(found[0]) >= 2
    assert found[1] == found[0]
