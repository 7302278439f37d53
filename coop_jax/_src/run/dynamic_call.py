"""A `run` program that branches or loops on values: planned as the values become known.

Invariants: donated arguments are overwritten or freed, unless they are returned or somebody else
reads their memory; references get their last contents as further results.
Thread rule: under the runtime's lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax._src.compat import arrays, number_checks
from coop_jax._src.eager import interpreter
from coop_jax._src.eager.session import Session
from coop_jax._src.execution.runtime import Runtime
from coop_jax._src.ir.refs import RefCell, wrapped
from coop_jax._src.planning.recorded_calls import Lesson, is_worthwhile
from coop_jax._src.run.argument_passing import Inputs, residency_of
from coop_jax._src.run.donation import warn_of_kept
from coop_jax._src.run.specialization import Signature, is_donatable
from coop_jax._src.util.errors import BudgetExceededError
from coop_jax._src.util.interrupts import Interrupts


def run_online(
    runtime: Runtime,
    signature: Signature,
    inputs: Inputs,
    interrupts: Interrupts,
) -> list[jax.Array]:
    """Runs a program equation by equation.

    Args:
      runtime: where to run.
      signature: the program, and which inputs are donated.
      inputs: arrays for the program's inputs; for references their contents.
      interrupts: checked between operations, until a donated input is consumed.

    Returns:
      The results, then the last contents of each input that is a reference.

    Raises:
      BudgetExceededError: an operation does not fit, by what was learned of earlier calls or
        without.
    """
    given = inputs.arrays
    stored = dataclasses.replace(inputs, arrays=[arrays.stored(x) for x in given])
    residency = residency_of(stored, signature.kinds, signature.constants, runtime.memory())
    warn_of_kept(signature, inputs, residency.donated)
    donated = [x for x, d in zip(given, residency.donated, strict=True) if d]
    if signature.lesson is None and is_worthwhile(runtime.policy, runtime.budget_bytes):
        signature.lesson = Lesson()
    while True:
        try:
            values = _attempt(runtime, signature, given, residency.donated, interrupts)
            break
        except BudgetExceededError as error:
            lesson = signature.lesson
            followed = lesson is not None and lesson.refuse()
            # Once more without what was learned, unless somebody would notice.
            if followed and not interrupts.consumed and not signature.jaxpr.effects:
                continue
            error.say_donatable(is_donatable(signature))
            raise
    returned = {arrays.address_of(arrays.stored(x)) for x in values if x.size}
    for x in donated:
        if x.is_deleted():
            continue
        if not x.size or arrays.address_of(arrays.stored(x)) not in returned:
            x.delete()
    return values


def _attempt(
    runtime: Runtime,
    signature: Signature,
    given: Sequence[jax.Array],
    is_donated: Sequence[bool],
    interrupts: Interrupts,
) -> list[jax.Array]:
    """One session that runs the program, by what was learned of it; learns from it."""
    donated = [x for x, d in zip(given, is_donated, strict=True) if d]
    # Half of what is learned may be old where something is raised meanwhile: then it is forgotten.
    lesson, signature.lesson = signature.lesson, None
    session = Session(runtime, interrupts, donated, lesson)
    signature.lesson = lesson
    try:
        cells: list[Any] = [
            wrapped(v.aval, session.donated_value_of(x) if d else session.value_of(x))
            for v, x, d in zip(signature.jaxpr.invars, given, is_donated, strict=True)
        ]
        written = [x for x in cells if type(x) is RefCell]
        with number_checks.noting() as noted:
            results = interpreter.call(session, signature.jaxpr, signature.constants, cells)
            results += [x.current for x in written]
            values = session.take([session.as_value(x) for x in results])
            noted.check(values)
        signature.lesson = None
        session.learn()
        signature.lesson = lesson
    finally:
        session.close()
    return values
