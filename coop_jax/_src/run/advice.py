"""What to say of a call that does not fit its budget: what holds the memory, what may help.

Thread rule: functions of their arguments. Cost: linear in the program.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from coop_jax._src.ir.program import Program
from coop_jax._src.run import constants


def largest_pinned(
    program: Program, operation: int, names: Sequence[str]
) -> tuple[tuple[str, int], ...]:
    """The largest storages that must be in memory while an operation runs, with their bytes.

    They are what it reads and makes, and arguments that are not gone yet: nothing brings those
    back. `operation` may be none of the program's, then all arguments are meant.
    """
    made_by: dict[int, str] = {}
    for op in program.operations:
        where = f" ({op.source})" if op.source else ""
        made_by.update((program.values[v].storage, f"{op.kernel.label}{where}") for v in op.results)
    for value, _ in program.constants:
        made_by[program.values[value].storage] = "an array that the function closes over"
    for number, value in enumerate(program.inputs):
        name = names[number] if number < len(names) else f"argument {number}"
        made_by[program.values[value].storage] = f"the argument {name}"
    given = [*program.inputs, *(value for value, _ in program.constants)]
    pinned = dict.fromkeys(program.values[v].storage for v in given)
    if 0 <= operation < len(program.operations):
        donated = {
            program.values[v].storage
            for v, d in zip(program.inputs, program.donated, strict=True)
            if d
        }
        for released in program.releases[:operation]:
            for storage in donated.intersection(released):
                pinned.pop(storage, None)
        op = program.operations[operation]
        pinned.update(dict.fromkeys(program.values[v].storage for v in (*op.operands, *op.results)))
    sizes = [(made_by.get(s, "a value"), program.storages[s].nbytes) for s in pinned]
    by_size = sorted((x for x in sizes if x[1]), key=lambda x: -x[1])
    return tuple(by_size[: constants.TUNED.named_storages])


def is_donatable(inputs: Sequence[Any], donated: Sequence[bool], outputs: Sequence[Any]) -> bool:
    """Whether a result could take over the memory of an argument that is not donated.

    Args:
      inputs: abstract values of arguments.
      donated: of each argument.
      outputs: abstract values of results.
    """
    free = collections.Counter(map(_kind, outputs))
    free.subtract(_kind(a) for a, d in zip(inputs, donated, strict=False) if d)
    return any(free[_kind(a)] > 0 for a, d in zip(inputs, donated, strict=False) if not d)


def _kind(aval: Any) -> Any:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)
