"""What a session does with a program, equation by equation, found once for each program.

Invariant: nothing here depends on operands. A jaxpr is not kept alive by what is known of it.
Thread rule: two threads may find the same twice. Cost: linear in the equations.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir import primitives, refs
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.lowering import inlining


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """An equation of a program, and what is known of it whatever its operands are.

    Attributes:
      eqn: the equation.
      reads: its operands: variables, and literals.
      dead: variables that nothing reads after it.
      kept: number and variable of each result that is read.
      is_plain: whether nothing but what its operands are decides how it runs.
    """

    eqn: Any
    reads: tuple[Any, ...]
    dead: tuple[Any, ...]
    kept: tuple[tuple[int, Any], ...]
    is_plain: bool


_known_steps: weakref.WeakKeyDictionary[Any, list[Step]] = weakref.WeakKeyDictionary()


def steps_of(jaxpr: Any) -> list[Step]:
    """What there is to do; not what nothing needs: a compiled program would not hold it either."""
    found = _known_steps.get(jaxpr)
    if found is None:
        found = _known_steps[jaxpr] = _find_steps(jaxpr)
    return found


def _find_steps(jaxpr: Any) -> list[Step]:
    used = {x for x in jaxpr.outvars if not isinstance(x, jaxprs.Literal)}
    steps: list[Step] = []
    for eqn in reversed(jaxpr.eqns):
        kept = tuple((n, v) for n, v in enumerate(eqn.outvars) if v in used)
        if not kept and not eqn.effects and eqn.primitive.name not in refs.ENDING:
            continue
        reads, dead = [], []
        for x in eqn.invars:
            if isinstance(x, jaxprs.Literal):
                reads.append(LiteralValue(x.val, x.aval))
                continue
            reads.append(x)
            if x not in used:
                used.add(x)
                dead.append(x)
        steps.append(Step(eqn, tuple(reads), tuple(dead), kept, _is_plain(eqn)))
    return steps[::-1]


def _is_plain(eqn: Any) -> bool:
    name = eqn.primitive.name
    return (
        name not in refs.PRIMITIVES
        and name != "optimization_barrier"
        and (
            name not in primitives.CONTROL_FLOW
            or is_one_operation(eqn.primitive, eqn.params, eqn.effects)
        )
    )


def is_one_operation(primitive: Any, params: dict[str, Any], effects: Any) -> bool:
    """Whether an equation with nested programs runs as one operation."""
    # Which branch of a cond runs is known here, so the others are not computed.
    return primitive.name != "cond" and inlining.is_group(primitive, params, effects)
