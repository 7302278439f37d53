"""A `cond` of two cheap branches as straight-line operations: both are computed, one is selected.

So the program keeps its fixed order, its plan is made ahead and updates stay in place, which is
what train steps need that guard their update (skip where a gradient is not finite, apply every k-th
step). Branches are merged output by output: a value that both branches have is selected at once, so
that not all outputs of both exist at a time.

Thread rule: that of the program being built. Cost: linear in the equations of the branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import jaxprs
from coop_jax._src.ir.equations import LiteralValue, MadeEquation, Typed
from coop_jax._src.lowering import constants as tuning
from coop_jax._src.lowering import inlining
from coop_jax._src.lowering.builder import Walk


def is_selection(params: dict[str, Any]) -> bool:
    """Whether a `cond` is to be computed by selecting from both branches."""
    bodies = list(jaxprs.nested_jaxprs(params))
    return (
        len(bodies) == 2
        and all(inlining.equation_count(b) <= tuning.TUNED.select_max_equations for b in bodies)
        and inlining.is_cheap_cond(params)
    )


class _Branch:
    """One branch on the way: which equations ran, what is known."""

    def __init__(self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]):
        self.jaxpr = jaxpr
        self.env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        self.env.update(zip(jaxpr.invars, operands, strict=True))
        self.maker = {v: k for k, e in enumerate(jaxpr.eqns) for v in e.outvars}

    def find(self, number: int) -> Any:
        """An output, None as long as it is not computed."""
        x = self.jaxpr.outvars[number]
        return LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else self.env.get(x)

    def missing(self, number: int) -> list[Any]:
        """The equations that an output still needs, in order."""
        wanted, stack = set(), [self.jaxpr.outvars[number]]
        while stack:
            x = stack.pop()
            if isinstance(x, jaxprs.Literal) or x in self.env or self.maker[x] in wanted:
                continue
            wanted.add(self.maker[x])
            stack.extend(self.jaxpr.eqns[self.maker[x]].invars)
        return [self.jaxpr.eqns[k] for k in sorted(wanted)]

    def run(self, program: Walk, eqn: Any) -> None:
        """Computes one equation."""
        operands = [
            LiteralValue(x.val, x.aval) if isinstance(x, jaxprs.Literal) else self.env[x]
            for x in eqn.invars
        ]
        self.env.update(zip(eqn.outvars, program.equation(eqn, operands), strict=True))


def select(
    program: Walk,
    bodies: Sequence[Any],
    constants: Sequence[Sequence[Any]],
    index: Any,
    operands: Sequence[Any],
) -> list[Any]:
    """The outputs of the branch that `index` names, computed by selecting.

    Args:
      program: what the operations are added to.
      bodies: the jaxprs of the two branches.
      constants: what they close over.
      index: 0 or 1, or outside of that: then the nearer.
      operands: of both branches.
    """
    if isinstance(index, LiteralValue):
        chosen = min(max(int(index.value), 0), 1)
        branch = _Branch(bodies[chosen], constants[chosen], operands)
        for eqn in bodies[chosen].eqns:
            branch.run(program, eqn)
        return [branch.find(k) for k in range(len(bodies[chosen].outvars))]
    branches = [_Branch(b, c, operands) for b, c in zip(bodies, constants, strict=True)]
    avals = [v.aval for v in bodies[0].outvars]
    results: list[Any] = [None] * len(avals)
    (predicate,) = program.emit(
        program.cache.from_function(lambda i: i > 0, [program.avals[index]]), [index]
    )

    def settle() -> None:
        for k, aval in enumerate(avals):
            if results[k] is None:
                cases = [b.find(k) for b in branches]
                if all(c is not None for c in cases):
                    results[k] = _selected(program, predicate, cases, aval)

    settle()
    for number in range(len(avals)):
        for branch in branches:
            for eqn in branch.missing(number):
                branch.run(program, eqn)
                if any(v in branch.jaxpr.outvars for v in eqn.outvars):
                    settle()
    return results


def _selected(program: Walk, predicate: int, cases: Sequence[Any], aval: Any) -> Any:
    if cases[0] is cases[1] or (isinstance(cases[0], int) and cases[0] == cases[1]):
        return cases[0]
    same = [
        LiteralValue(np.asarray(c.value, aval.dtype), aval) if isinstance(c, LiteralValue) else c
        for c in cases
    ]
    typed = (Typed(program.avals[predicate]), Typed(aval), Typed(aval))
    eqn = MadeEquation(jax.lax.select_n_p, {}, None, None, typed, (Typed(aval),))
    return program.equation(eqn, [predicate, *same])[0]
