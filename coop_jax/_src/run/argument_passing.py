"""Passing arrays to a call of `run` and back.

Arguments become inputs of the program, arrays on the device; where they lie decides on the plan.
What comes out becomes results, as weakly typed and as committed as `jax.jit` would make them.
A train step has hundreds of them, and the same kind at every step. So C++ asks the arrays
(`_core.ArgumentReader`), and Python sees those that are out of the ordinary: NumPy arrays, numbers,
arrays of another device or still being made, typed random keys, references, what is empty.

Thread rule: under the runtime's lock, but for what is about leaves. Cost: linear in the inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax._src.compat import argument_reader, arrays, holders, jaxprs, transfers, wide
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.execution.pool_memory import PoolMemory
from coop_jax._src.ir.program import Program
from coop_jax._src.planning.pool_state import ADOPT, FOREIGN, OUTSIDE, Residency
from coop_jax._src.util.call_arguments import check_leaves


def leaf_key(leaf: Any) -> Hashable:
    """What of a leaf a program depends on: shape, dtype, weak type, whether it is a reference."""
    aval = jaxprs.aval_of(leaf)
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False), compat_refs.is_ref(leaf)


class LeafKinds:
    """The kinds of leaves of a call, to tell another call of the same kinds at little cost."""

    def __init__(self, leaves: Sequence[Any], device: jax.Device):
        self.keys = tuple(map(leaf_key, leaves))
        self._avals = [jaxprs.aval_of(x) for x in leaves]
        self._reader = argument_reader.argument_reader(device)

    def match(self, leaves: list[Any]) -> bool:
        """Whether these leaves are of those kinds.

        Raises:
          RuntimeError: a leaf was deleted, or is a tracer.
        """
        if len(leaves) != len(self.keys):
            return False
        unlike = self._reader.unlike(leaves, self._avals)
        check_leaves([leaves[n] for n in unlike])
        return all(self.matches(n, leaves[n]) for n in unlike)

    def matches(self, number: int, leaf: Any) -> bool:
        """Whether a leaf is of the kind of the one of that number."""
        try:
            return leaf_key(leaf) == self.keys[number]
        except TypeError:  # no array; whoever looks closer says what it is
            return False


@dataclasses.dataclass(frozen=True, slots=True)
class InputKinds:
    """What is known of the inputs of a program before it is called, a byte for each of them.

    Attributes:
      plain: whether it is an ordinary array, of a strong type of whole bytes, and not empty.
      disposable: whether it is donated and lies in the pool; of a program that is not known,
        whether it is donated.
      viewed: numbers of those that are disposable, and have views in the program.
      keys: numbers of those that are typed random keys.
    """

    plain: bytes
    disposable: bytes
    viewed: tuple[int, ...]
    keys: tuple[int, ...]


def input_kinds(
    avals: Sequence[Any], donated: Sequence[bool], program: Program | None
) -> InputKinds:
    """The kinds of inputs of these abstract values; `program` may be None if it is not known."""
    plain = bytes(
        isinstance(a, jaxprs.ShapedArray)
        and not (arrays.is_keys(a.dtype) or a.weak_type or 0 in a.shape)
        and arrays.dlpack_type(a.dtype) is not None
        for a in avals
    )
    if program is None:
        return InputKinds(plain, bytes(donated), (), ())
    storages = [program.storages[program.values[v].storage] for v in program.inputs]
    disposable = [d and not s.outside for s, d in zip(storages, donated, strict=True)]
    viewed = [n for n, s in enumerate(storages) if disposable[n] and len(s.values) > 1]
    keys = [n for n, a in enumerate(avals) if arrays.is_keys(a.dtype)]
    return InputKinds(plain, bytes(disposable), tuple(viewed), tuple(keys))


@dataclasses.dataclass(slots=True)
class Inputs:
    """Arrays on the device of a call.

    Attributes:
      arrays: one for each input.
      places: their addresses; None for what has no memory.
      committed: whether one of the arguments was put on its device explicitly.
      from_host: numbers of those that came from the host, and may share its memory.
    """

    arrays: list[Any]
    places: list[int | None]
    committed: bool
    from_host: list[int]


def read_inputs(given: Sequence[Any], kinds: InputKinds, device: jax.Device) -> Inputs:
    """Arguments as arrays on the device, their contents there.

    Raises:
      ValueError: an array was put elsewhere, or lies on several devices.
    """
    found = list(given)
    places, committed, others = argument_reader.argument_reader(device).read(found, kinds.plain)
    from_host = [n for n in others if not isinstance(found[n], jax.Array)]
    for n in others:
        committed = committed or arrays.is_committed(found[n])
        found[n] = as_array(found[n], device)
        places[n] = place_of(arrays.stored(found[n]))
    return Inputs(found, places, committed, from_host)


def as_array(value: Any, device: jax.Device) -> jax.Array:
    """The value as an array of a strong type on the device, its contents there.

    Raises:
      ValueError: it was put elsewhere, or lies on several devices.
    """
    if getattr(value, "dtype", None) == jax.dtypes.float0:
        value = np.zeros(value.shape, bool)  # as `jax.jit` has it; nobody reads it
    if not isinstance(value, jax.Array):
        value = argument_reader.from_host(value, device)
    value = transfers.on_device(value, device)
    arrays.wait(value)
    if getattr(value, "weak_type", False) or arrays.dlpack_type(value.dtype) is None:
        value = arrays.uncommitted(value)
    return value  # type: ignore[no-any-return]


def constants_on(constants: Sequence[Any], device: jax.Device) -> list[jax.Array]:
    """What a function closes over, on the device.

    Copies of NumPy arrays, as whoever has them may write into them; of JAX's, other arrays over
    their memory: the caller's may be deleted or donated, and `jax.jit`, too, has what it closed
    over then. They are no transfers of the caller's, which may have forbidden those
    (`jax.transfer_guard`).
    """
    with jax.transfer_guard("allow"):
        return [_constant(c, device) for c in constants]


def _constant(value: Any, device: jax.Device) -> jax.Array:
    if isinstance(value, np.ndarray):
        value = value.copy()
        if wide.is_wide(value.dtype):  # its type is that of the program
            value = transfers.put(value, device)
    array = as_array(value, device)
    return array if arrays.is_keys(array.dtype) else transfers.alias(array, device)


def place_of(x: jax.Array) -> int | None:
    """The address of an array's memory; None if it has none."""
    if x.size == 0 or not hasattr(x, "unsafe_buffer_pointer"):
        return None
    return arrays.address_of(x)


def contents_of(refs: Sequence[Any]) -> list[jax.Array]:
    """What references hold.

    Raises:
      ValueError: one of them is there twice.
    """
    if len({id(r) for r in refs}) < len(refs):
        raise ValueError(
            "a mutable reference was passed twice, or passed and closed over: which of its versions"
            " is meant would depend on the order of execution"
        )
    return [compat_refs.contents(r) for r in refs]


def store_keys(inputs: Inputs, kinds: InputKinds) -> None:
    """Replaces typed random keys by their data."""
    for number in kinds.keys:
        inputs.arrays[number] = arrays.stored(inputs.arrays[number])


def copy_viewed(
    inputs: Inputs, kinds: InputKinds, closed_over: Sequence[Any], residency: Residency
) -> Residency:
    """Replaces inputs that are viewed and cannot be moved into the pool by copies, which can.

    A view is of memory in the pool. What others read (see `residency_of`) stays outside.

    Returns:
      The residency of the copies, which the call may dispose of.
    """
    copied = [n for n in kinds.viewed if residency.where[n] == OUTSIDE and inputs.places[n]]
    if not copied:
        return residency
    where, donated = list(residency.where), list(residency.donated)
    originals = {inputs.places[n]: inputs.arrays[n].nbytes for n in copied}
    for n in copied:
        copy = inputs.arrays[n].copy()
        arrays.wait(copy)
        inputs.arrays[n], inputs.places[n] = copy, place_of(copy)
        where[n], donated[n] = ADOPT, True
    counted = {*inputs.places, *(place_of(arrays.stored(x)) for x in closed_over)}
    return dataclasses.replace(
        residency,
        where=tuple(where),
        donated=tuple(donated),
        beside_bytes=sum(nbytes for place, nbytes in originals.items() if place not in counted),
    )


def residency_of(
    inputs: Inputs, kinds: InputKinds, closed_over: Sequence[Any], memory: PoolMemory
) -> Residency:
    """Where the inputs lie, and which of them this call may dispose of.

    Memory that two inputs share (the same array twice, a view of one in the other), that the
    function closes over, or that anybody else may read (another array, a NumPy view, a DLPack
    tensor), is only read, whatever was donated. Of inputs that share a block of the pool the first
    stands for it; the others count as outside, which is safe.
    """
    given = kinds.disposable
    if closed_over and any(given):
        read = {place_of(arrays.stored(x)) for x in closed_over}
        given = bytes(d and p not in read for d, p in zip(given, inputs.places, strict=True))
    if holders.are_hidden(memory.device):
        _lend_anew(inputs, given, memory)
    reader = argument_reader.argument_reader(memory.device)
    where, offsets, donated, others = reader.lie(memory.pool, inputs.arrays, inputs.places, given)
    return Residency(where, offsets, donated, others)


def _lend_anew(inputs: Inputs, given: bytes, memory: PoolMemory) -> None:
    """Lets each array that was given away be another holder of its memory than its views.

    Where nobody can tell what else holds it, the pool can: after this it counts both.
    """
    for n, x in enumerate(inputs.arrays):
        place = inputs.places[n]
        offset = memory.pool.offset_of(place) if given[n] and place is not None else -1
        if offset >= 0 and memory.pool.live_count(offset) == 1:
            arrays.replace_buffer(x, memory.lend(offset, memory.spec(x.aval)))


def moved_out(residency: Residency) -> Residency:
    """How the inputs lie once `move_out` is done: donated ones as in a first call."""
    move = [w == FOREIGN and d for w, d in zip(residency.where, residency.donated, strict=True)]
    return dataclasses.replace(
        residency,
        where=tuple(ADOPT if m else w for m, w in zip(move, residency.where, strict=True)),
        offsets=tuple(-1 if m else o for m, o in zip(move, residency.offsets, strict=True)),
    )


def move_out(inputs: Inputs, residency: Residency, memory: PoolMemory) -> None:
    """Moves donated inputs out of the pool, one by one; a plan moves them in where it wants them.

    For pools in which they lie where they leave no room for what is large. While they are outside,
    and until they are in again, the pool has pages of what lives in it alone.
    """
    for n, (where, donated) in enumerate(zip(residency.where, residency.donated, strict=True)):
        if where == FOREIGN and donated:
            copy = inputs.arrays[n].copy()
            arrays.wait(copy)
            inputs.arrays[n].delete()
            inputs.arrays[n], inputs.places[n] = copy, place_of(copy)
    pool = memory.pool
    pool.drain_freed()
    end = 0
    for offset, nbytes in [*pool.live_blocks(), (pool.capacity_bytes, 0)]:
        pool.discard(end, offset - end)
        end = offset + nbytes


def delete_donated(
    residency: Residency, inputs: list[Any], outputs: Sequence[jax.Array], device: jax.Device
) -> list[int]:
    """Donated arguments are gone after the call, whether their memory was used or not.

    Returns:
      Numbers of those that the call has left.
    """
    left = argument_reader.argument_reader(device).left(inputs, residency.donated)
    if left:
        returned = {id(x) for x in outputs}
        for n in left:
            if id(inputs[n]) not in returned and not inputs[n].is_deleted():
                inputs[n].delete()
    return left


def as_results(
    values: Sequence[Any], avals: list[Any], inputs: Inputs, device: jax.Device
) -> list[Any]:
    """Outputs as the results of the function.

    Args:
      values: arrays for them; arguments that are returned as they are included.
      avals: what they are for the caller: typed keys, weak types.
      inputs: of the call.
      device: of the call.
    """
    results = list(values)
    wrapped = set(argument_reader.argument_reader(device).unlike(results, avals, inputs.committed))
    # An argument that is returned is another array; what the host may change has to be copied.
    given = {id(x) for x in inputs.arrays}
    wrapped.update(n for n, x in enumerate(results) if id(x) in given)
    shared = {id(inputs.arrays[n]) for n in inputs.from_host}
    for n in wrapped:
        if id(results[n]) in shared:
            results[n] = results[n].copy()
            arrays.wait(results[n])
        results[n] = as_result(results[n], avals[n], committed=inputs.committed)
    return results


def as_result(value: Any, aval: Any, *, committed: bool) -> Any:
    """An output as another array: of the abstract value that the caller expects, as committed."""
    if not isinstance(aval, jaxprs.ShapedArray):
        return value
    if aval.dtype == jax.dtypes.float0:  # there is nothing on the device, nor in what `jit` returns
        return np.zeros(aval.shape, jax.dtypes.float0)
    return arrays.with_aval(
        value, weak_type=aval.weak_type, committed=committed, shape=aval.shape, dtype=aval.dtype
    )
