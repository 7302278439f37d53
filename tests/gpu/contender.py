"""One way to take the train step of `gpt2`, in a process of its own, which answers to requests.

`peak_bytes_in_use` of `Device.memory_stats` is one of a process and never falls, so each contender
needs its own. All of them stay alive, idle but for their own steps, so that rounds can go
through them in turn.

Compiling comes before the state is on the device: XLA times candidates for its kernels there, and
what those take would count as the step's. The peak after it is in the answer.

Requests and answers are lines of JSON: "compile", "train" (some steps one by one), "steps" (a
number of steps in a row, timed), "trace" (one step under `jax.profiler`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

_BATCHES = 4  # taken in turn


class Process:
    """A contender that runs elsewhere.

    Args:
      name: in tables.
      seconds: after so many it is ended, whatever it does.
      options: arguments of `_Contender`.
    """

    def __init__(self, name: str, seconds: float, **options: Any):
        self.name = name
        self.failed = ""
        self.found: dict[str, Any] = {}
        self.step_seconds: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def ask(self, request: str, argument: Any = None) -> dict[str, Any] | None:
        """The answer, also merged into `found`; None once it has failed."""
        if self.failed:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps([request, argument]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"failed": "its process ended"}
        self.failed = self.failed or answer.pop("failed", "")
        self.found.update(answer)
        return None if self.failed else answer

    def close(self) -> None:
        """Ends the process."""
        self._timer.cancel()
        try:
            self._process.communicate(timeout=20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()

    def _end(self) -> None:
        self.failed = "out of time"
        self._process.kill()


class _Contender:
    """The step made in one way: "jit", "checkpoints", "coop_jax.jit" or "coop_jax.run"."""

    def __init__(self, way: str, size: str, dtype: str, budget: int | None = None):
        if way.startswith("coop_jax"):
            import coop_jax  # before there is an array: it sets how the CPU backend starts
        import jax

        from tests.gpu import gpt2

        self._jax, self._gpt2, self._way = jax, gpt2, way
        self._shape = gpt2.SHAPES[size]
        step, self._optimizer = gpt2.make_step(self._shape, dtype, checkpoints=way == "checkpoints")
        self._device = jax.devices()[0]
        if way == "coop_jax.jit":
            self._step: Any = coop_jax.jit(step, budget=budget, donate_argnums=0)
        elif way == "coop_jax.run":
            self._step = coop_jax.run(step, budget, donate_argnums=0)
        else:
            options = None
            if way == "checkpoints" and self._device.platform == "cpu":
                from tests.benchmarks.contenders import KEEP_BARRIERS

                options = KEEP_BARRIERS
            self._step = jax.jit(step, donate_argnums=0, compiler_options=options)
        self._params: Any = gpt2.initial_params(self._shape)
        self._batches: list[Any] = []
        self._state: Any = None
        self._taken = 0
        self._compile_seconds = 0.0

    def compile(self, _: None) -> dict[str, Any]:
        """Compiles from shapes; what XLA says that it needs."""
        jax = self._jax
        params, tokens = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (self._params, self._batch(0))
        )
        state = params, jax.eval_shape(self._optimizer.init, params)
        found: dict[str, Any] = {"device": self._device.device_kind}
        begin = time.perf_counter()
        if self._way == "coop_jax.jit":
            found |= _plan(self._step.plan(state, tokens))
        compiled = self._step.lower(state, tokens).compile()
        self._compile_seconds = time.perf_counter() - begin
        memory = compiled.memory_analysis()
        parts = {
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "aliases": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
        }
        needed = parts["arguments"] + parts["outputs"] - parts["aliases"] + parts["temporaries"]
        return {
            **found,
            "needed_bytes": needed,
            "memory_analysis": parts,
            "compile_peak_bytes": self._peak_bytes(),
        }

    def train(self, steps: int) -> dict[str, Any]:
        """Puts the state on the device and takes steps one by one; the first may compile."""
        params, self._params = self._jax.device_put(self._params), None
        self._state = params, self._optimizer.init(params)
        self._batches = self._jax.device_put([self._batch(n) for n in range(_BATCHES)])
        self._jax.block_until_ready((self._state, self._batches))
        losses, seconds = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            losses.append(float(self._dispatch()))
            seconds.append(time.perf_counter() - begin)
        found = {
            "first_call_seconds": self._compile_seconds + seconds[0],
            "losses": losses,
            "single_step_seconds": statistics.median(seconds[len(seconds) // 2 :]),
            "peak_bytes": self._peak_bytes(),
        }
        if self._way == "coop_jax.run":
            found["needed_bytes"] = self._step.runtime.stats().peak_bytes
        return found

    def steps(self, number: int) -> dict[str, Any]:
        """Takes steps in a row, as a training that looks at its loss now and then."""
        begin = time.perf_counter()
        for _ in range(number):
            loss = self._dispatch()
        self._jax.block_until_ready((self._state, loss))
        return {
            "last_seconds": (time.perf_counter() - begin) / number,
            "peak_in_a_row_bytes": self._peak_bytes(),
        }

    def trace(self, directory: str) -> dict[str, Any]:
        """Takes one step under the profiler, without its tracer of Python, which slows launches."""
        options = self._jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with self._jax.profiler.trace(directory, profiler_options=options):
            return {"traced_seconds": self.steps(1)["last_seconds"]}

    def _dispatch(self) -> Any:
        tokens = self._batches[self._taken % _BATCHES]
        self._taken += 1
        self._state, loss = self._step(self._state, tokens)
        return loss

    def _batch(self, number: int) -> Any:
        return self._gpt2.batch_of(self._shape, number)

    def _peak_bytes(self) -> int | None:
        """None where the backend does not count, as on CPU."""
        stats = self._device.memory_stats()
        return None if stats is None else int(stats["peak_bytes_in_use"])


def _plan(report: Any) -> dict[str, Any]:
    return {
        "jit_bytes": report.jit_bytes,
        "budget_bytes": report.budget_bytes,
        "recomputations": report.recomputations,
        "recompute_share": report.recompute_share,
        "attempts": len(report.attempts),
        "plan_seconds": sum(a.plan_seconds for a in report.attempts),
        "plan": str(report),
    }


def _serve(options: dict[str, Any]) -> None:
    contender = _Contender(**options)
    for line in sys.stdin:
        request, argument = json.loads(line)
        try:
            answer = getattr(contender, request)(argument)
        except Exception as error:  # out of memory, a budget that nothing fits: a row of the table
            answer = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
