"""JAX's name stacks, read: "jit(step)/transpose(jvp(CNN))/Dense_0/dot_general".

Flax and Haiku put the names of their modules there, users `jax.named_scope`s; JAX puts the
transformations and the loops that an operation is in, and the primitive at the end. XLA keeps the
whole as the name of an instruction, several joined by ";" where it has merged some.

Known of both supported versions of JAX (0.10 to 0.12).
Thread rule: functions of their arguments. Cost: linear in the name.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

# forward: below a differentiation, and kept or read by what it transposes; backward: transposed.
Phase = Literal["forward", "backward", "other"]

_WRAPPED = re.compile(r"\w+\((.*)\)$")
_CALLED = re.compile(r"(jit|pjit|xla_call|shard_map|cond|pmap)\(.*\)$|rng_uniform$")
# What JAX writes for the structure of a program; it names products of `einsum` by their subscripts.
_OF_JAX = frozenset(
    "while body cond scan closed_call remat remat2 checkpoint rematted_computation pjit jit"
    " core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr custom_lin jvp vmap transpose"
    " shard_map xla_pmap main eval_jaxpr call_exported".split()
)
# Calls whose name stack JAX writes twice where it transposes them, once for each way:
# "transpose(jvp(CNN))/Block_0/jvp(CNN)/Block_0/checkpoint/Dense_0".
CHECKPOINTS = frozenset(("checkpoint", "remat", "remat2"))
_BRANCH = re.compile(r"branch_\d+_fun$|cond_\d+$")


@dataclasses.dataclass(frozen=True, slots=True)
class NameStack:
    """A name stack.

    Attributes:
      modules: names of modules and scopes, outermost first, joined by "/".
      operation: the primitive; "" where there is none.
      phase: where a differentiation puts it.
    """

    modules: str
    operation: str
    phase: Phase


def read(op_name: str) -> NameStack:
    """The first name stack of an instruction's name."""
    parts = _split(op_name.partition(";")[0])
    names: list[str] = []
    phase: Phase = "other"
    for number, part in enumerate(parts, 1):
        if phase == "backward" and part in CHECKPOINTS:
            names = _once(names)
        if number == len(parts):
            break
        while (wrapped := _WRAPPED.match(part)) is not None and not _CALLED.match(part):
            if part.startswith("transpose("):
                phase = "backward"
            elif part.startswith("jvp(") and phase == "other":
                phase = "forward"
            part = wrapped[1]
        # One more where a module's name is itself a path: "jvp(CNN/Dense_0)".
        names += [n for n in _split(part) if n and not _is_of_jax(n)]
    return NameStack("/".join(names), parts[-1] if parts else "", phase)


def _once(names: list[str]) -> list[str]:
    """Names without the last of them, if those are what comes before them again."""
    for count in range(len(names) // 2, 0, -1):
        if names[-count:] == names[-2 * count : -count]:
            return names[:-count]
    return names


def _is_of_jax(name: str) -> bool:
    return bool(name in _OF_JAX or _CALLED.match(name) or _BRANCH.match(name) or "->" in name)


def _split(path: str) -> list[str]:
    """At slashes outside of parentheses."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append(path[begin:position])
            begin = position + 1
    return [*parts, path[begin:]] if path else []
