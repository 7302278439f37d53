"""A program whose pairs of scans stack what was chosen; see `residuals`.

Thread rule: functions of their arguments. Cost: JAX's, of tracing the bodies of the scans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax._src.compat import arrays, jaxprs
from coop_jax._src.ir import cost_model
from coop_jax._src.ir.equations import LiteralValue
from coop_jax._src.ir.program import Operation, Program, Storage, Value, releases_of
from coop_jax._src.jit.emission import Emitter
from coop_jax._src.jit.local_sizes import share_of
from coop_jax._src.jit.loops import Lowering, divided, rebuilt, scanned
from coop_jax._src.jit.residuals import Choice, Pair


def with_choices(
    program: Program, chosen: Sequence[tuple[Pair, Choice]], lowering: Lowering
) -> Program:
    """The program with these pairs rewritten."""
    operations = list(program.operations)
    values, storages = list(program.values), list(program.storages)
    for pair, choice in chosen:
        replaced = {program.values[pair.scan.stacked_results[k]].storage for k in pair.residuals}
        share = share_of(program, replaced)
        rewrite = _Rewrite(pair, choice, values, storages, lowering, share)
        operations[pair.forward] = rewrite.forward()
        operations[pair.backward] = rewrite.backward()
    operations = _written_over_what_is_gone(operations, values)
    return dataclasses.replace(
        program,
        values=tuple(values),
        storages=tuple(storages),
        operations=tuple(operations),
        releases=releases_of(operations, values, program.inputs, program.outputs, program.donated),
    )


def _written_over_what_is_gone(
    operations: Sequence[Operation], values: Sequence[Value]
) -> list[Operation]:
    """The operations, in place only where nothing later reads what they overwrite.

    A backward scan reads what only the forward scan did.
    """
    last: dict[int, int] = {}
    for number, op in enumerate(operations):
        last.update((values[v].storage, number) for v in op.operands)
    return [
        dataclasses.replace(
            op,
            in_place=tuple(
                -1 if k >= 0 and last[values[op.operands[k]].storage] > number else k
                for k in op.in_place
            ),
        )
        for number, op in enumerate(operations)
    ]


class _Rewrite:
    """A pair's two operations; new values go behind the program's.

    The forward scan returns what it carries, then the stacked results that stay, then the stacks
    that were chosen. The backward scan reads the last, and of the forward scan's operands what runs
    again needs.
    """

    def __init__(
        self,
        pair: Pair,
        choice: Choice,
        values: list[Value],
        storages: list[Storage],
        lowering: Lowering,
        share: float,
    ):
        self._pair, self._choice = pair, choice
        self._values, self._storages = values, storages
        self._lowering = lowering
        self._body = pair.scan.body
        # On several devices new stacks are divided about as those are that they replace.
        self._share = share
        self._first: dict[int, int] = {}  # of each storage of the body the value that holds it
        for v in (
            *self._body.inputs,
            *(v for op in self._body.operations for v in op.results),
        ):
            self._first.setdefault(self._body.values[v].storage, v)
        parts = pair.scan.parts
        self._staying = [
            k for k in range(len(pair.scan.stacked_results)) if k not in pair.residuals
        ]
        self._row_values = [self._first[s] for s in choice.stacked]
        self._stacks = [self._new_stack(v, parts.length) for v in self._row_values]

    def _new_stack(self, row_value: int, length: int) -> int:
        row = arrays.stored_aval(self._body.values[row_value].aval)
        aval = arrays.aval_like((length, *row.shape), row.dtype)
        number = len(self._values)
        self._values.append(Value(len(self._storages), aval))
        nbytes = int(cost_model.nbytes(aval) * self._share)
        self._storages.append(Storage(nbytes, False, (number,)))
        return number

    def forward(self) -> Operation:
        """The forward scan."""
        scan, body = self._pair.scan, self._body
        parts = scan.parts
        made_rows = [body.outputs[parts.num_carry + k] for k in self._staying]
        carried_out = body.outputs[: parts.num_carry]
        needed = _needed(body, [*body.outputs[: parts.num_carry], *made_rows, *self._row_values])

        def function(*operands: Any) -> list[Any]:
            consts, carry, xs = divided(scan, operands)

            def iteration(c: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                emitter = Emitter(body)
                for value, array in zip(body.inputs, (*consts, *c, *x), strict=True):
                    emitter.put(value, array)
                for number in needed:
                    emitter.run(body.operations[number])
                rows = [emitter.result(v) for v in made_rows]
                rows += [emitter.get(v) for v in self._row_values]
                return [emitter.result(v) for v in carried_out], rows

            last, rows = scanned(scan, iteration, carry, xs)
            return [*last, *rows]

        results = [
            *scan.results[: parts.num_carry],
            *(scan.stacked_results[k] for k in self._staying),
            *self._stacks,
        ]
        made = rebuilt(scan.op, function, scan.operands, results, self._aval, self._lowering)
        avals = dict(zip(made.results, made.kernel.out_avals, strict=True))
        for stack in self._stacks:  # on a mesh in explicit mode: with their shardings
            self._values[stack] = dataclasses.replace(self._values[stack], aval=avals[stack])
        return made

    def backward(self) -> Operation:
        """The backward scan."""
        scan, reader, body, choice = self._pair.scan, self._pair.reader, self._body, self._choice
        fixed = scan.parts.num_consts + scan.parts.num_carry
        given = {body.values[v].storage: k for k, v in reversed(list(enumerate(body.inputs)))}
        read = _read(body, choice, self._wanted_values())
        stacked = {*choice.stacked, *choice.pinned}  # carries among them are read row by row
        passed = sorted({given[s] for s in read if s in given and s not in stacked})
        whole, rows = [k for k in passed if k < fixed], [k for k in passed if k >= fixed]
        pinned = self._pinned()
        residual_places = {
            place: k for k, places in self._pair.residuals.items() for place in places
        }
        kept_places = [k for k in range(len(reader.stacked_operands)) if k not in residual_places]
        reader_fixed = reader.parts.num_consts + reader.parts.num_carry
        operands: list[int | LiteralValue] = [
            *reader.operands[:reader_fixed],
            *(reader.stacked_operands[k] for k in kept_places),
            *self._stacks,
            *(v for _, v in pinned),
            *(scan.operands[k] for k in rows),
            *(scan.operands[k] for k in whole),
        ]
        length = len(operands) - len(whole)

        def function(*given_operands: Any) -> list[Any]:
            consts = given_operands[: reader.parts.num_consts]
            carry = given_operands[reader.parts.num_consts : reader_fixed]
            xs, fixed_values = given_operands[reader_fixed:length], given_operands[length:]

            def iteration(c: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                own, others = x[: len(kept_places)], x[len(kept_places) :]
                fixed_now, c = _after(fixed_values, c, choice.again)
                emitter = Emitter(body)
                numbers = [
                    *self._row_values,
                    *(v for v, _ in pinned),
                    *(body.inputs[k] for k in (*rows, *whole)),
                ]
                for value, array in zip(numbers, (*others, *fixed_now), strict=True):
                    emitter.put(value, array)
                for number in choice.again:
                    emitter.run(body.operations[number])
                all_rows: list[Any] = [None] * len(reader.stacked_operands)
                for k, array in zip(kept_places, own, strict=True):
                    all_rows[k] = array
                for place, k in residual_places.items():
                    all_rows[place] = emitter.result(body.outputs[scan.parts.num_carry + k])
                results = jaxprs.called(reader.params["jaxpr"], [*consts, *c, *all_rows])
                count = reader.parts.num_carry
                return list(results[:count]), list(results[count:])

            last, made = scanned(reader, iteration, carry, xs)
            return [*last, *made]

        return rebuilt(
            reader.op, function, operands, list(reader.results), self._aval, self._lowering
        )

    def _aval(self, value: int) -> Any:
        return self._values[value].aval

    def _wanted_values(self) -> list[int]:
        body, parts = self._body, self._pair.scan.parts
        return [body.outputs[parts.num_carry + k] for k in self._pair.residuals]

    def _pinned(self) -> list[tuple[int, int]]:
        """Values of the body that are stacked anyway and are read again, with their stacks."""
        body, scan = self._body, self._pair.scan
        found: dict[int, tuple[int, int]] = {}
        for k in self._staying:
            value = body.outputs[scan.parts.num_carry + k]
            storage = body.values[value].storage
            if storage in self._choice.pinned:
                found.setdefault(storage, (value, scan.stacked_results[k]))
        return list(found.values())


def _after(
    whole: Sequence[Any], carry: Sequence[Any], again: Sequence[int]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """What runs again waits for the iteration before: else XLA takes it out of the loop.

    What reads rows cannot be taken out.
    """
    if not again:
        return whole, carry
    joined: tuple[Sequence[Any], Sequence[Any]] = jax.lax.optimization_barrier(
        (tuple(whole), tuple(carry))
    )
    return joined


def _needed(body: Program, values: Sequence[int]) -> list[int]:
    """The operations that make these values, and those with effects, in order."""
    wanted = {body.values[v].storage for v in values}
    found = []
    for number in reversed(range(len(body.operations))):
        op = body.operations[number]
        effectful = any(e.effects for e in op.kernel.equations)
        if effectful or any(body.values[v].storage in wanted for v in op.results):
            wanted.update(body.values[v].storage for v in op.operands)
            found.append(number)
    return found[::-1]


def _read(body: Program, choice: Choice, wanted: Sequence[int]) -> set[int]:
    """Storages that the residuals, and what runs again for them, are made of."""
    read = {body.values[v].storage for v in wanted}
    for number in choice.again:
        read.update(body.values[v].storage for v in body.operations[number].operands)
    return read
