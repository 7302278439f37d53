"""Equations of a kernel: primitives over kernel-local numbers, calls inlined.

Numbers 0 to n - 1 are the kernel's operands; each equation makes the next ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax._src.compat import equation_keys, jaxprs


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """One primitive inside a kernel. Operands are kernel-local numbers or literals."""

    primitive: Any
    params: dict[str, Any]
    context: Any
    operands: tuple[int | LiteralValue, ...]
    results: tuple[int, ...]
    out_avals: tuple[Any, ...]
    effects: Any


@dataclasses.dataclass(frozen=True, slots=True)
class LiteralValue:
    """A constant scalar inside a program, as JAX keeps it in its equations."""

    value: Any
    aval: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """Stands for a variable of an equation that is not part of a jaxpr."""

    aval: Any


@dataclasses.dataclass(frozen=True, slots=True)
class MadeEquation:
    """An equation that no jaxpr holds; it is read like one that does."""

    primitive: Any
    params: dict[str, Any]
    ctx: Any
    source_info: Any
    invars: tuple[Typed, ...]
    outvars: tuple[Typed, ...]
    effects: tuple[()] = ()


class KernelBuilder:
    """Collects equations of a group, calls inlined, into kernel-local numbers.

    `keeps_shardings`: of programs over several devices. Else equations are without the mesh of one
    device that their results are laid on.
    """

    def __init__(self, in_avals: Sequence[Any], *, keeps_shardings: bool = False):
        self.equations: list[Equation] = []
        self._next = len(in_avals)
        self._keeps_shardings = keeps_shardings

    def add(
        self,
        primitive: Any,
        params: dict[str, Any],
        context: Any,
        effects: Any,
        out_avals: Sequence[Any],
        operands: Sequence[int | LiteralValue],
        results: Sequence[int],
    ) -> None:
        """Adds one equation with operands and results in kernel-local numbers."""
        self.equations.append(
            Equation(
                primitive,
                params if self._keeps_shardings else equation_keys.unsharded(primitive, params),
                context,
                tuple(operands),
                tuple(results),
                tuple(out_avals),
                effects,
            )
        )

    def inline(
        self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[int | LiteralValue]
    ) -> list[int | LiteralValue]:
        """Adds the equations of a jaxpr; returns what its outputs are."""
        env: dict[Any, int | LiteralValue] = {}
        for var, constant in zip(jaxpr.constvars, constants, strict=True):
            env[var] = LiteralValue(constant, var.aval)
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> int | LiteralValue:
            if isinstance(atom, jaxprs.Literal):
                return LiteralValue(atom.val, atom.aval)
            return env[atom]

        for eqn in jaxpr.eqns:
            ins = [read(x) for x in eqn.invars]
            body = jaxprs.call_body(eqn.primitive, eqn.params)
            if body is not None:
                results = self.inline(body[0], body[1], ins)
            else:
                results = [*range(self._next, self._next + len(eqn.outvars))]
                self._next += len(results)
                avals = [v.aval for v in eqn.outvars]
                numbers = [n for n in results if isinstance(n, int)]
                self.add(eqn.primitive, eqn.params, eqn.ctx, eqn.effects, avals, ins, numbers)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]
