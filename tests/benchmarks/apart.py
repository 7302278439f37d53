"""A contender of `compiled` in a process of its own, which takes one step at a time, on request.

`coop_jax` turns off JAX's asynchronous dispatch on CPU for its whole process, and contenders in one
process share caches, XLA's threads and malloc's pages. Here each has its own, and `jax.jit` knows
nothing of `coop_jax`; while one process computes the others wait, so the times compare as if taken
in one process.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
import sys
from typing import Any, cast

from examples.paper.networks.base import Size
from tests.benchmarks.contenders import (
    KEEP_BARRIERS,
    Contender,
    Figures,
    Program,
    jitted,
    program_of,
)


class Apart(Contender):
    """Takes its steps in another process.

    Args:
      program: one of `contenders.KNOWN`.
      size: of `contenders.program_of`.
      options: as of `made`.
    """

    def __init__(self, name: str, program: str, size: Size = "small", **options: Any):
        super().__init__(name, lambda: None, Program(None, (), ()))  # type: ignore[arg-type]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, program, size, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._is_jitted = "budget" not in options
        if self._is_jitted:
            need, module = self._ask("need")
            self.need, self.module = need, base64.b64decode(module)

    def _ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(question, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name!r} ended")
        return json.loads(answer)

    def _elapsed(self) -> float:
        elapsed, self.failed = self._ask("step")
        return float(elapsed)

    def figures(self) -> Figures:
        """After the last step."""
        return super().figures() if self._is_jitted else Figures(**self._ask("figures"))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def made(program: Program, remat: str = "", barriers: bool = False, **run: Any) -> Contender:
    """A contender: `jax.jit`, with checkpoints if `remat` names them; `run` if given options."""
    if run:
        from tests.benchmarks.budgeted import Budgeted

        return Budgeted("", program, **run)
    program = program.checkpointed[remat] if remat else program
    return jitted("", program, KEEP_BARRIERS if barriers else None)


def _serve(name: str, size: Size, options: dict[str, Any]) -> None:
    if "budget" in options:
        import coop_jax  # noqa: F401  # before there is an array: it sets how the CPU backend starts
    contender = made(program_of(name, size), **options)
    for line in sys.stdin:
        if line.strip() == "figures":
            answer: Any = dataclasses.asdict(contender.figures())
        elif line.strip() == "need":
            answer = contender.need, base64.b64encode(contender.module).decode()
        else:
            answer = contender._elapsed(), contender.failed
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], cast(Size, sys.argv[2]), json.loads(sys.argv[3]))
