"""A small train step, and operations that fail on demand.

Faults are put in by replacing the function through which every operation of both front ends goes to
XLA, or the two that know whether it is a recomputation; and where a plan is carried out in C++, by
replacing what it calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.eager import first_launches, session
from coop_jax._src.execution import executor
from coop_jax._src.execution.instructions import Run

FRONT_ENDS = ["run", "remat_eager"]
WIDTH, ROWS, LAYERS = 32, 256, 6
BUDGET_BYTES = 450_000  # about half of what the step needs


class InjectedError(Exception):
    """What an operation raises here."""


def step_fn(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        h = x
        for w in params:
            h = jnp.tanh(h @ w) + jnp.sin(h)
        return (h**2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


def first_params() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for _ in range(LAYERS)]


def data(number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype(np.float32)


def make(
    front_end: str, budget: Any = BUDGET_BYTES, *, donate: bool = False, fn: Any = step_fn
) -> Any:
    if front_end == "run":
        return coop_jax.run(fn, budget=budget, donate_argnums=0 if donate else ())
    return coop_jax.remat_eager(fn, budget=budget)


class Operations:
    """Counts operations as they run, and may do something at one of them.

    `before(number, recompute)` is called before operation `number` (from 0) goes to XLA,
    `after(label, recompute, results)` with what came out.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.recomputed: list[int] = []
        self.before: Callable[[int, bool], None] = lambda number, recompute: None
        self.after: Callable[[str, bool, Any], None] = lambda label, recompute, results: None
        self._recompute = False
        launch, replay_of = executor.launch, executor.replay_of
        plan_run, session_launch = executor._run, session.Session._on_launch

        def count() -> None:
            number, self.count = self.count, self.count + 1
            if self._recompute:
                self.recomputed.append(number)
            self.before(number, self._recompute)

        def counted_launch(*args: Any, **kwargs: Any) -> Any:
            try:
                count()
            except BaseException:
                args[2].clear()  # as launch does, whatever happens: the error holds this frame
                raise
            results = launch(*args, **kwargs)
            self.after(args[0].label, self._recompute, results)
            return results

        def counted_call(run: Run) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                self._recompute = run.recompute
                count()
                results = run.executable.call(*args)
                self.after(run.executable.label, run.recompute, results)
                return results

            return call

        def counted_replay_of(instructions: Any, memory: Any) -> Any:
            wrapped = [
                dataclasses.replace(i, executable=_Calling(i.executable, counted_call(i)))  # type: ignore[arg-type]
                if isinstance(i, Run)
                else i
                for i in instructions
            ]
            return replay_of(wrapped, memory)

        def counted_plan_run(run: Any, *args: Any) -> None:
            self._recompute = run.recompute
            plan_run(run, *args)

        def counted_session_launch(it: Any, *args: Any) -> Any:
            *_, self._recompute, _ = args
            return session_launch(it, *args)

        patch.setattr(executor, "launch", counted_launch)
        patch.setattr(executor, "replay_of", counted_replay_of)
        patch.setattr(first_launches, "launch", counted_launch)
        patch.setattr(executor, "_run", counted_plan_run)
        patch.setattr(session.Session, "_on_launch", counted_session_launch)
        patch.setattr(session.Session, "fast", False)  # every launch comes by here

    def restart(self) -> None:
        self.count = 0
        self.recomputed = []
        self.before = lambda number, recompute: None
        self.after = lambda label, recompute, results: None


class _Calling:
    """An executable that calls something else."""

    def __init__(self, executable: Any, call: Callable[..., Any]) -> None:
        self._executable = executable
        self.call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


def raise_at(wanted: int, error: BaseException) -> Callable[[int, bool], None]:
    def before(number: int, recompute: bool) -> None:
        if number == wanted:
            raise error

    return before


def in_use(runtime: coop_jax.Runtime) -> list[tuple[int, int]]:
    return list(runtime.memory().pool.live_blocks())
