"""The error for a function that no plan of `coop_jax.jit` fits: what the smallest one has alive.

Model: XLA keeps arguments and results throughout, and values beside them while they are needed; it
says how much of each. What that consists of is known from the plan: at its fullest moment, values
by the line that makes them. XLA needs some percent more or less for them. A result that XLA can
write over a donated argument is not counted again.

Thread rule: functions of their arguments. Cost: linear in the plan.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence, Set
from typing import Any

from coop_jax._src.ir.program import Program
from coop_jax._src.jit.compiled_plans import CompiledPlan
from coop_jax._src.jit.fitting import Fitted
from coop_jax._src.util.errors import BudgetExceededError, CompiledBudgetReport
from coop_jax._src.util.held_memory import HeldStorage, by_size, typed


def exceeded(
    fitted: Fitted[CompiledPlan], budget_bytes: int, jit_bytes: int, names: Sequence[str]
) -> BudgetExceededError:
    """The error for what `fit` found.

    Args:
      fitted: of which no attempt fits.
      budget_bytes: of one device.
      jit_bytes: what `jax.jit` needs.
      names: of the arguments, as far as they are known.
    """
    assert fitted.smallest_bytes is not None
    smallest = min(jit_bytes, fitted.smallest_bytes)
    sizes = fitted.made.sizes
    program = fitted.planned.remade.program
    alive = by_size(storage for storage in _alive(program, names) if storage.nbytes)
    return BudgetExceededError(
        CompiledBudgetReport(
            budget_bytes,
            smallest,
            jit_bytes,
            len(fitted.attempts),
            sizes.arguments,
            sizes.results - sizes.aliases,
            sizes.temporaries,
            sum(storage.nbytes for storage in alive),
            alive,
        )
    )


def _alive(program: Program, names: Sequence[str]) -> Iterator[HeldStorage]:
    """Arguments, constants and results; and values, at the first moment at which most are alive."""
    donated: collections.Counter[Any] = collections.Counter()
    given: set[int] = set()
    for number, value in enumerate(program.inputs):
        aval, storage = program.values[value].aval, program.values[value].storage
        is_donated = program.donated[number]
        donated[_type_of(aval)] += is_donated
        if storage not in given:
            yield HeldStorage(
                program.storages[storage].nbytes,
                "donated arguments" if is_donated else "arguments",
                f"argument {names[number] if number < len(names) else number}",
                why="donated argument" if is_donated else "argument",
                **typed(aval),
            )
        given.add(storage)
    for value, _ in program.constants:
        given.add(program.values[value].storage)
        nbytes = program.storages[program.values[value].storage].nbytes
        what = "array that the function closes over"
        aval = program.values[value].aval
        yield HeldStorage(nbytes, "constants", what, why="constant", **typed(aval))
    results = {program.values[v].storage for v in program.outputs} - given
    fullest = _fullest(program, given | results)
    seen: set[int] = set()
    for op in program.operations:
        for value in op.results:
            aval, storage = program.values[value].aval, program.values[value].storage
            if storage in seen or storage not in results | fullest:
                continue
            seen.add(storage)
            is_result = storage in results
            if is_result and donated[_type_of(aval)]:  # XLA writes it over that argument
                donated[_type_of(aval)] -= 1
                continue
            yield HeldStorage(
                program.storages[storage].nbytes,
                "results" if is_result else "values",
                op.kernel.label,
                source=op.source,
                why="result" if is_result else "",
                **typed(aval),
            )


def _type_of(aval: Any) -> tuple[Any, Any]:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


def _fullest(program: Program, apart: Set[int]) -> set[int]:
    """The storages that are alive at the moment at which most are, without those `apart`."""
    alive: set[int] = set()
    fullest: set[int] = set()
    now = most = 0
    for op, released in zip(program.operations, program.releases, strict=True):
        operands = [program.values[v].storage for v in op.operands]
        made = {program.values[v].storage for v in op.results} - apart
        taken = alive.intersection(released, (operands[n] for n in op.in_place if n >= 0))
        alive = (alive - taken) | made
        now += sum(program.storages[s].nbytes for s in made)
        now -= sum(program.storages[s].nbytes for s in taken)
        if now > most:
            most, fullest = now, set(alive)
        gone = alive.intersection(released)
        alive -= gone
        now -= sum(program.storages[s].nbytes for s in gone)
    return fullest
