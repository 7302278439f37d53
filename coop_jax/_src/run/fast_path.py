"""Calls of `run` that find everything as an earlier one did: the steps of a training loop.

A step is given what the last one returned, in the same places of the pool. What is known of
arguments that lie so is known, so they are not asked again: C++ says that it is the same state
(`_core.CallRecognizer`), the plan for it is carried out, and its results are returned as they are.
Whatever is other than then, or out of the ordinary, goes the long way (see `api`), which notes the
state it ends in here.

Invariant: a repeated call does what the long way would have done.
Thread rule: under the runtime's lock. Cost: linear in the arguments, a fraction of the long way.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax import _core
from coop_jax._src.compat import argument_reader, arrays, holders
from coop_jax._src.compat.contexts import Context
from coop_jax._src.execution.instructions import CompiledPlan
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.planning.pool_state import Residency
from coop_jax._src.run import constants
from coop_jax._src.run.argument_passing import (
    Inputs,
    LeafKinds,
    as_array,
    as_result,
    as_results,
    delete_donated,
)
from coop_jax._src.run.call_trees import CallTrees
from coop_jax._src.run.planned_call import Ran, carry_out
from coop_jax._src.run.specialization import Signature
from coop_jax._src.run.tiering import settled_form
from coop_jax._src.util.calling_convention import Convention, Fixed

UNKNOWN: Any = object()  # no result: the call is like none that is known


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """Where arguments lay, and what was done then.

    Attributes:
      residency: where they lay.
      plan: for that.
      wrapped: numbers of results that are given to the caller as other arrays.
    """

    residency: Residency
    plan: CompiledPlan
    wrapped: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LastCall:
    """What the last call was: most often the next one is like it.

    Attributes:
      convention: of the function.
      tree: the structure of its arguments.
      static: those that are static.
      context: the state of JAX's configuration.
      kinds: of its leaves.
      signature: that it has.
      runtime: that it runs in.
      trees: of calls like it.
    """

    convention: Convention
    tree: Any
    static: Fixed
    context: Context
    kinds: LeafKinds
    signature: Signature
    runtime: Runtime
    trees: CallTrees

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The leaves of a call of the same trees and static arguments, None of another one."""
        leaves = self.trees.leaves(args, kwargs)
        if leaves is None:
            fixed, leaves, tree = self.convention.flatten(args, kwargs)
            if self.tree != tree or self.static != fixed:
                return None
            self.trees.learn(args, kwargs)
        return leaves


class KnownCalls:
    """States in which a signature was called in one form, each with its plan.

    The form holds these, so they hold neither it nor the signature.
    """

    __slots__ = (
        "_committed",
        "_from_host",
        "_kinds",
        "_recognizer",
        "_runtime",
        "_states",
    )

    def __init__(
        self,
        runtime: Runtime,
        signature: Signature,
        kinds: LeafKinds,
        inputs: Inputs,
    ):
        self._runtime, self._kinds = runtime, kinds
        self._from_host, self._committed = tuple(inputs.from_host), inputs.committed
        memory = runtime.memory()
        reader = argument_reader.argument_reader(runtime.device)
        self._recognizer = _core.CallRecognizer(
            reader,
            memory.pool,
            [x.aval for x in inputs.arrays],
            signature.kinds.disposable,
            inputs.committed,
        )
        self._states: list[_State] = []

    def fit(self, inputs: Inputs) -> bool:
        """Whether these inputs came from where they did in these calls."""
        return tuple(inputs.from_host) == self._from_host and inputs.committed == self._committed

    def add(self, residency: Residency, plan: CompiledPlan, wrapped: Sequence[int]) -> None:
        """Notes a call that went the long way, and which of its results it wrapped."""
        known = any(s.residency == residency for s in self._states)
        if known or len(self._states) == constants.TUNED.repeated_states:
            return
        if self._recognizer.add(
            residency.where, residency.offsets, residency.donated, residency.others
        ):
            self._states.append(_State(residency, plan, tuple(wrapped)))

    def repeat(
        self, signature: Signature, form: Signature, leaves: list[Any], trees: CallTrees
    ) -> Any:
        """Carries out the call if everything is as in an earlier one; `UNKNOWN` if it is not.

        Args:
          signature: of the call.
          form: the form of it whose calls these are.
          leaves: the arguments.
          trees: what puts the results together, as long as their loss would be noticed.
        """
        begin = time.perf_counter()
        given = list(leaves)
        for n in self._from_host:
            if isinstance(given[n], jax.Array) or not self._kinds.matches(n, given[n]):
                return UNKNOWN
            given[n] = as_array(given[n], self._runtime.device)
        number = self._recognizer.recognize(given)
        if number < 0:
            return UNKNOWN
        state = self._states[number]
        with arrays.compiling():
            values, obeyed = carry_out(
                self._runtime, form, state.plan, given, self._runtime.interrupts
            )
        if obeyed:  # then all that was donated is gone, and the results are as they were
            for n in state.wrapped:
                aval = signature.out_avals[n]
                values[n] = as_result(values[n], aval, committed=self._committed)
            self._recognizer.returned(number, values)
        else:
            device = self._runtime.device
            delete_donated(state.residency, given, values, device)
            inputs = Inputs(given, [None] * len(given), self._committed, list(self._from_host))
            values = as_results(values, signature.out_avals, inputs, device)
        seconds = time.perf_counter() - begin
        signature.tier.ran(seconds)
        self._runtime.counters.call_seconds += seconds
        return trees.result(values)


def known_form(runtime: Runtime, signature: Signature) -> Signature | None:
    """The form that is run now, with its known calls; None while that is not settled."""
    form = settled_form(runtime, signature)
    return None if form is None or form.known is None else form


def note(
    runtime: Runtime,
    signature: Signature,
    kinds: LeafKinds,
    leaves: Sequence[Any],
    inputs: Inputs,
    ran: Ran,
    results: Sequence[Any],
) -> None:
    """Remembers a call that went the long way, if another like it can be told by what C++ sees."""
    host = set(inputs.from_host)
    if (
        settled_form(runtime, signature) is not ran.form
        or not ran.obeyed
        or ran.left
        or signature.has_refs
        or signature.kinds.keys
        or None in inputs.places
        or holders.are_hidden(runtime.device)
        or not {id(x) for x in inputs.arrays}.isdisjoint(map(id, ran.values))
        or any(
            x is not y and n not in host
            for n, (x, y) in enumerate(zip(leaves, inputs.arrays, strict=True))
        )
    ):
        return
    form = ran.form
    if form.known is None or not form.known.fit(inputs):
        form.known = KnownCalls(runtime, signature, kinds, inputs)
    wrapped = [n for n, (x, y) in enumerate(zip(results, ran.values, strict=True)) if x is not y]
    form.known.add(ran.residency, ran.plan, wrapped)
