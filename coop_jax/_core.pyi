"""Types of the extension module: the pool and the engine."""

import contextvars
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, final, overload

from typing_extensions import CapsuleType

def return_freed_memory() -> None:
    """Give memory that was freed back to the system, where the C library keeps it."""

class SlotSpec:
    """Shape and element type of a slot; made once for each kind, reused for every slot."""

    def __init__(
        self, shape: Sequence[int], dlpack_type_code: int, bits: int, nbytes: int = -1
    ) -> None:
        """Describe a slot; ``nbytes`` (when not -1) overrides what shape and ``bits`` amount to."""

    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

class Pool:
    """One range of memory in which slots are handed out."""

    @overload
    def __init__(self, capacity_bytes: int) -> None: ...
    @overload
    def __init__(
        self,
        base_pointer: int,
        capacity_bytes: int,
        owner: object,
        device_type: int,
        device_id: int,
    ) -> None: ...
    @property
    def base(self) -> int:
        """The address of offset 0."""

    @property
    def capacity_bytes(self) -> int: ...
    def slot(self, offset: int, spec: SlotSpec, exclusive: bool = False) -> CapsuleType:
        """Return a DLPack capsule at ``offset``.

        Raises:
            RuntimeError: the memory is still in use (with ``exclusive``, also by the same extent).
            ValueError: the slot leaves the pool.
        """

    def take(self, offset: int, spec: SlotSpec) -> CapsuleType:
        """Return an uncounted capsule, for the running call to write into.

        Raises:
            RuntimeError: somebody holds the memory.
        """

    def view(self, offset: int, spec: SlotSpec) -> CapsuleType:
        """Return an uncounted capsule, for the running call to read what lies there."""

    def reclaim(self, offset: int) -> bool:
        """Dispose of the block at ``offset``: its slots count no more, however long they live."""

    def live_blocks(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of everything that somebody holds, in address order."""

    def live_count(self, offset: int) -> int:
        """Return how many slots at ``offset`` are alive."""

    def are_live(self, offsets: Sequence[int]) -> list[bool]:
        """Return for each offset whether a slot there is alive."""

    def drain_freed(self) -> list[int] | None:
        """Return the offsets let go of entirely since the last call, None when there are none."""

    def offset_of(self, pointer: int) -> int:
        """Return the offset of an address, -1 outside the pool."""

    def discard(self, offset: int, nbytes: int) -> None:
        """Give whole pages inside an unused range back to the system (host pools only)."""

    def write(self, offset: int, source_pointer: int, nbytes: int) -> None:
        """Copy from host memory into a range that nobody holds (host pools only)."""

    def resident_bytes(self) -> int:
        """Return the physical memory behind a host pool, -1 for others. Slow: for tests."""

    def validate(self) -> None:
        """Raise RuntimeError naming the invariant that does not hold."""

def ffi_targets(name: str = "coop_copy") -> dict[str, CapsuleType]:
    """Return the handlers of "coop_copy", "coop_store" or "coop_scratch" by platform name.

    Platforms are "cpu" and "CUDA".

    Raises:
        ValueError: there is no such custom call.
    """

def ffi_version() -> tuple[int, int]:
    """Return XLA's FFI interface that the custom calls were compiled for: (major, minor).

    A jaxlib with an older one refuses them.
    """

@final
class Placement:
    """Where an output of a run lies.

    Attributes:
      storage: the storage, -1 for scratch (free again after the run).
      offset: its place in the pool in bytes, -1 for outside.
      in_place_input: position of the input whose block it takes over, -1 for none.
    """

    __match_args__ = ("storage", "offset", "in_place_input")
    def __init__(self, storage: int, offset: int, in_place_input: int = -1) -> None: ...
    @property
    def storage(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def in_place_input(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Run:
    """Run an operation.

    Attributes:
      operation: its index in the program.
      recompute: whether it has run before.
      placements: a `Placement` for each output, in order.
    """

    __match_args__ = ("operation", "recompute", "placements")
    def __init__(
        self, operation: int, recompute: bool, placements: Sequence[Placement]
    ) -> None: ...
    @property
    def operation(self) -> int: ...
    @property
    def recompute(self) -> bool: ...
    @property
    def placements(self) -> tuple[Placement, ...]:
        """Built anew by each access."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Evict:
    """Drop the memory of a storage, which may be computed again.

    Attributes:
      storage: its index in the program.
    """

    __match_args__ = ("storage",)
    def __init__(self, storage: int) -> None: ...
    @property
    def storage(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Drop:
    """Drop the memory of a storage that nothing reads any more.

    Attributes:
      storage: its index in the program.
    """

    __match_args__ = ("storage",)
    def __init__(self, storage: int) -> None: ...
    @property
    def storage(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

Action: TypeAlias = Run | Evict | Drop

INPUT_OUTSIDE: int
INPUT_FOREIGN: int
INPUT_ADOPT: int

FailureReason: TypeAlias = Literal["none", "no_space", "thrashing", "limit"]

HoldReason: TypeAlias = Literal[
    "evictable", "read", "permanent", "no_recipe", "output", "reservation"
]
"""Why a block of the pool is held.

"evictable": it could be evicted; "read": an operation reads it that is to run, or that waits;
"permanent": a result, or made from what was overwritten; "no_recipe": a source, or made by an
operation that is never repeated; "output": placed for the operation that is to run.
"""

@final
class Failure:
    """Why a request failed, measured when it did: before what it had begun was taken back.

    Attributes:
      reason: "no_space": no run of free and evictable blocks is large enough; "thrashing":
        recomputation did not come to an end within its bound; "limit": more would be recomputed
        than is allowed; "none": no request has failed.
      requested_bytes: what was asked for, in one contiguous piece.
      capacity_bytes: of the pool.
      in_use_bytes: in the pool, reservations included.
      pinned_bytes: of those, what could not be evicted then.
      largest_free_block_bytes: the largest free block.
      largest_window_bytes: the largest run of free and evictable neighbours.
      operation: the operation that was to run (perhaps a recomputation), -1 for none.
      held: (why, storage, offset, bytes) of each block that was held, in address order; together
        `in_use_bytes`, and those that are not "evictable" `pinned_bytes`. The storage is -1 for
        what is none, or nobody's that is known.
    """

    @property
    def reason(self) -> FailureReason: ...
    @property
    def requested_bytes(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def pinned_bytes(self) -> int: ...
    @property
    def largest_free_block_bytes(self) -> int: ...
    @property
    def largest_window_bytes(self) -> int: ...
    @property
    def operation(self) -> int: ...
    @property
    def held(self) -> list[tuple[HoldReason, int, int, int]]:
        """Built anew by each access."""

@final
class EngineStats:
    """What an engine counted since it was made, as it was when asked for.

    All but `search_seconds` are deterministic; seconds of operations are those of the cost model.

    Attributes:
      operations: operations run for the first time.
      recomputations: operations run again.
      evictions: storages evicted to make room, not those that nobody references.
      compute_seconds: of first runs.
      recompute_seconds: of recomputations.
      searches: requests that found no free block.
      search_seconds: measured, of choosing what to evict and of evicting it; 0 where not timed.
      fragmentation_sum: of free bytes / pool bytes at each request that found no free block, before
        evicting.
      fragmentation_max: the largest of these.
      fragmentation_count: how many there are.
      in_use_bytes: blocks of the pool in use, except reservations.
      outside_bytes: counted, but not in the pool.
      reserved_bytes: by ``reserve``.
      peak_in_use_bytes: the most `in_use_bytes` + `outside_bytes` so far.
      peak_outside_bytes: the most `outside_bytes` so far.
      peak_pool_bytes: the most `in_use_bytes` so far.
    """

    @property
    def operations(self) -> int: ...
    @property
    def recomputations(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def compute_seconds(self) -> float: ...
    @property
    def recompute_seconds(self) -> float: ...
    @property
    def searches(self) -> int: ...
    @property
    def search_seconds(self) -> float: ...
    @property
    def fragmentation_sum(self) -> float: ...
    @property
    def fragmentation_max(self) -> float: ...
    @property
    def fragmentation_count(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def outside_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def peak_in_use_bytes(self) -> int: ...
    @property
    def peak_outside_bytes(self) -> int: ...
    @property
    def peak_pool_bytes(self) -> int: ...

class NoSpaceError(RuntimeError):
    """No room for a request; nothing has changed."""

    failure: Failure

class Policy:
    """Which storages are evicted, and where new ones are placed.

    `heuristic`: "coop", "dtr", "dte" or "lookahead" (where the program is known, or an earlier call
    did the same, it knows when each value is read next). `neighborhood`, of what is evicted around
    a value, that counts as its cost: "union_find", "exact", "ancestors" or "awaited" (ancestors,
    and those descendants that are still to be read). What is None is as the heuristic's method has
    it: "ancestors" for "lookahead" and "union_find" for the others; switches on for "coop" and
    "lookahead", off for the others.
    `keep_demanded`: a value stays in memory at its last use while something evicted that is made
    from it is still to be read. `unheld_first`: what nothing holds any more, recomputed on the way
    to something else, goes first and at no cost. (The published methods do neither.)
    `search_effort`: where the program is known, so many operations may be planned, again and again
    with other preferences, to find plans that recompute less; 0 for none. None is 1,000,000 for
    "lookahead", which takes a second or a few, and 0 for the others.
    """

    def __init__(
        self,
        heuristic: str = "coop",
        neighborhood: str | None = None,
        *,
        sliding_window: bool | None = None,
        cheap_partitioning: bool | None = None,
        in_place: bool | None = None,
        evict_always: bool = False,
        keep_demanded: bool = True,
        unheld_first: bool = True,
        search_effort: int | None = None,
    ) -> None: ...
    @property
    def heuristic(self) -> str: ...
    @property
    def neighborhood(self) -> str: ...
    @property
    def sliding_window(self) -> bool: ...
    @property
    def cheap_partitioning(self) -> bool: ...
    @property
    def in_place(self) -> bool: ...
    @property
    def evict_always(self) -> bool: ...
    @property
    def keep_demanded(self) -> bool: ...
    @property
    def unheld_first(self) -> bool: ...
    @property
    def search_effort(self) -> int: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...

class OperationSpec:
    """An operation's outputs and cost; made once for each compiled operation."""

    def __init__(
        self,
        output_bytes: Sequence[int],
        output_outside: Sequence[bool],
        in_place: Sequence[int],
        cost_seconds: float,
        recomputable: bool,
    ) -> None: ...
    @property
    def cost_seconds(self) -> float: ...
    @property
    def recomputable(self) -> bool: ...

class Engine:
    """The planner: placement, eviction, recomputation. Rules: cc/core/engine/engine.h."""

    def __init__(
        self,
        capacity_bytes: int,
        alignment_bytes: int,
        policy: Policy,
        expensive_seconds_per_byte: float,
        timed: bool = False,
    ) -> None: ...
    def submit(
        self, inputs: Sequence[int], spec: OperationSpec
    ) -> tuple[int, tuple[int, ...], tuple[int, ...], list[Action] | None, tuple[int, ...] | None]:
        """Add an operation and run it.

        Returns:
            Its id, output storages, output offsets (-1: outside), the actions to carry out before
            it (None: nothing), and the inputs whose blocks its outputs take (None: fresh ones).

        Raises:
            NoSpaceError: the operation is forgotten.
        """

    def rerun(
        self, operation: int
    ) -> tuple[int, tuple[int, ...], tuple[int, ...], list[Action] | None, tuple[int, ...] | None]:
        """Run an operation whose run was aborted; as ``submit``, but it stays on failure."""

    def abort(self, actions_done: int) -> int:
        """Go back to where only the first actions of the last call were carried out.

        An operation's own run counts as the action after those that ``submit`` returned. Drops
        directly after ``actions_done`` belong to them: returns how many count as done.
        """

    def forget(self, operation: int) -> list[int] | None:
        """Drop an operation that has not run, with its outputs."""

    def release(self, storage: int) -> list[int] | None:
        """Drop a reference; returns the storages whose memory is gone, None when there are none."""

    def retain(self, storage: int) -> None: ...
    def make_permanent(self, storage: int) -> list[int] | None:
        """Never evict a resident storage again; returns as ``release``."""

    def materialize(self, storage: int) -> list[Action] | None:
        """Bring a storage back; returns the actions to carry out (NoSpaceError: no room)."""

    def discard(self, storage: int) -> bool:
        """Drop the memory of an evictable storage that is most likely not read again."""

    def evict_all(self) -> list[Action] | None:
        """Evict everything evictable."""

    def freed(self) -> list[int] | None:
        """Return storages whose memory is gone that no other call has returned."""

    def retired(self) -> list[int] | None:
        """Return operations that will never run again since the last call.

        Call it after the actions of ``submit`` were carried out, and before adding operations.
        """

    def add_foreign(self, offset: int, nbytes: int, donated: bool) -> int: ...
    def add_outside(self, nbytes: int) -> int: ...
    def add_adopted(self, nbytes: int) -> int:
        """Place a source at an end of the pool; -1 when no free block is large enough."""

    def reserve(self, nbytes: int) -> list[Action] | None:
        """Keep blocks for workspace; returns the evictions this took (NoSpaceError: no room)."""

    def reserved_blocks(self) -> list[tuple[int, int]]: ...
    def offset_of(self, storage: int) -> int: ...
    def bytes_of(self, storage: int) -> int: ...
    def refs_of(self, storage: int) -> int: ...
    def state_of(self, storage: int) -> str:
        """Return "dead", "unborn", "resident", "evicted" or "consumed"."""

    def is_permanent(self, storage: int) -> bool: ...
    def is_evictable(self, storage: int) -> bool: ...
    def projected_cost(self, storage: int) -> float: ...
    def reset_peak(self) -> None:
        """Let the statistics' peak begin anew from what is in use now."""

    def failure(self) -> Failure:
        """Return why the last failed request failed."""

    def stats(self) -> EngineStats: ...
    def validate(self) -> None:
        """Raise RuntimeError naming the invariant that does not hold."""

    def fingerprint(self) -> int: ...
    @property
    def live_storages(self) -> int: ...
    @property
    def live_operations(self) -> int: ...
    @property
    def largest_free_block_bytes(self) -> int: ...
    @property
    def clock_seconds(self) -> float: ...

class Value:
    """One result of a session: a shape and dtype over a storage; holds a reference to that."""

    @property
    def storage(self) -> int: ...
    @property
    def aval(self) -> Any: ...
    @property
    def key(self) -> int:
        """The number of its shape, dtype and weak type."""

class CompiledCall:
    """A compiled function whose outputs were seen to lie where they are told to.

    ``call(*slots, *operands)`` returns the results in ``order``; ``slots`` names the result and
    the description of each.
    """

    def __init__(
        self,
        call: Callable[..., Sequence[Any]],
        order: Sequence[int],
        slots: Sequence[tuple[int, SlotSpec]],
    ) -> None: ...

class Replay:
    """A plan's instructions, carried out again and again over a list of values.

    Cells number places in the pool and kinds of arrays; a cell keeps an array that the plan is done
    with until something is written there.
    """

    def __init__(
        self,
        pool: Pool,
        load: Callable[..., Any],
        load_arguments: tuple[Any, ...],
        reader: ArgumentReader,
        wait: Callable[[Any], object] | None = None,
        ordered: bool = False,
    ) -> None:
        """``wait``: called after each launch with one of its results, until which it takes.

        ``ordered``: a launch begins when those before are done, so only the last is waited for.
        """

    def add_cell(self, offset: int, spec: SlotSpec) -> int: ...
    def add_launch(
        self,
        call: Callable[..., Sequence[Any]],
        slots: Sequence[int],
        operands: Sequence[int],
        results: Sequence[tuple[int, int]],
        overwritten: Sequence[int],
        gone: Sequence[int],
        recompute: bool,
        consumes_input: bool,
        reclaimed: Sequence[int],
        emptied: Sequence[tuple[int, int]],
    ) -> None:
        """Append a call; ``results`` are (value, cell), -1 for none, in the order of the call.

        ``slots`` are cells, ``overwritten`` offsets of the results after those, ``gone`` the values
        that were there, ``reclaimed`` the offsets where slots of the user count no more,
        ``emptied`` (offset, bytes) whose pages are given back before the call.
        """

    def add_view(self, value: int, cell: int) -> None: ...
    def add_forget(self, values: Sequence[tuple[int, int]]) -> None:
        """Append that values are gone; the cell (or -1) of each keeps its array."""

    def add_other(self) -> None:
        """Append an instruction that is always the caller's."""

    def make_ready(self, instruction: int) -> None:
        """Carry out a launch from now on; until then it is the caller's."""

    def run(
        self,
        values: list[Any],
        begin: int,
        interrupts: Interrupts,
        misplaced: Callable[[int, Sequence[Any]], Sequence[Any]],
        annotate: Callable[[int], Any] | None = None,
    ) -> int:
        """Carry out instructions from ``begin`` on; return the number of the caller's next one.

        ``interrupts``: checked between two operations, until a donated array of the user is gone.
        ``annotate``: called with the number of each launch; returns a context manager, or None.

        Raises:
            Whatever an operation raises, or ``interrupts.check()``.
        """

    def time_launches(self) -> None:
        """Note when launches begin from the next ``run`` on, until that is taken."""

    def take_launch_seconds(self) -> list[float]:
        """Return it for each instruction, as ``time.perf_counter``; NaN where Python launched."""

    compute_seconds: float
    recompute_seconds: float
    obeyed: bool
    """Whether all that overwrote donated arrays since ``run`` began at 0 lies where it should."""

class Interrupts:
    """Handlers of signals that wait, in one call (see cc/python/guard/call_guard.h)."""

    consumed: bool
    """Whether a donated array is gone: the call has to finish."""

    def __init__(self) -> None: ...
    def check(self) -> None:
        """Raise what a handler raised since the call began, if one did."""

    @property
    def noted(self) -> bool:
        """Whether one did."""

class Exclusive:
    """Lets one call at a time into a runtime that is not closed."""

    closed: bool

    def __init__(self) -> None: ...

def guarded(
    exclusive: Exclusive | None,
    interrupts: Interrupts | None,
    undo: Callable[[], object] | None,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Call a function of which something is left to be undone, and undo it whatever is raised.

    ``exclusive`` is held meanwhile. With ``interrupts`` Python's handlers of signals are run as
    they arrive, but what they raise waits for ``interrupts.check()``, or for the end. ``undo`` is
    called where the function raises, until it came to its end: it may be called again and again.

    Raises:
        Whatever the function, a handler or ``undo`` raises; what came later if there are several.
        RuntimeError: this thread is in a call already, or the runtime was closed.
    """

def check_interrupts() -> None:
    """Raise what waits in the call of this thread, unless the call has to finish."""

def set_handover(
    hand_over: Callable[[BaseException | None], object],
    take_left: Callable[[], object],
    own_files: str,
) -> None:
    """Set what is called with what a call that is over left, and what raises it in the next one.

    None stands for a KeyboardInterrupt by Python's own handler. The names of our own files begin
    with ``own_files``: handlers wait until results have left their frames.
    """

def nothing_is_left() -> None:
    """What was handed over was raised."""

def raise_in_main_thread(error: BaseException) -> bool:
    """Raise an exception in the main thread between two bytecodes; False where it cannot be."""

entered: contextvars.ContextVar[tuple[Any, ...]]
"""What `enter` and `exit` of a class were called for, the innermost last."""

def enter(self: Any) -> Any:
    """`__enter__` of a class, without bytecodes between which something may be raised."""

def exit(self: Any, *raised: object) -> None:
    """`__exit__` of a class, likewise."""

def ensure_signal_stack() -> None:
    """Give this thread a stack of its own for handlers (see cc/python/guard/signal_stack.h)."""

class HolderCount:
    """How many hold the memory of an array besides it: see cc/python/memory/holder_count.h."""

    def __init__(
        self, array_at: int, array_type: int, buffer_at: int, buffer_type: int, count_at: int
    ) -> None: ...
    def of(self, array: Any) -> int:
        """Return the count for an array that is not deleted, -1 where it is not known."""

class ArgumentReader:
    """Asks the arrays of a call what it has to know of them, in one pass.

    Accessors are functions of one array; ``lies_here`` is one of what ``placement`` returns. What
    is not exactly of ``type`` is left to the caller, by its position. ``holders`` counts who else
    holds the memory of an array; None where nobody can.
    """

    def __init__(
        self,
        type: type[Any],
        aval: Callable[[Any], Any],
        is_deleted: Callable[[Any], bool],
        is_committed: Callable[[Any], bool],
        is_ready: Callable[[Any], bool],
        address: Callable[[Any], int],
        placement: Callable[[Any], Any],
        lies_here: Callable[[Any], bool],
        holders: HolderCount | None = None,
    ) -> None: ...
    def unlike(
        self, values: list[Any], avals: list[Any], committed: bool | None = None
    ) -> list[int]:
        """Return where there is no array, a deleted one, or one of another abstract value.

        With ``committed`` also where that differs.
        """

    def read(self, values: list[Any], plain: bytes) -> tuple[list[int | None], bool, list[int]]:
        """Return addresses, whether any array is committed, positions left to the caller.

        Only values where ``plain`` is not 0 are looked at.
        """

    def left(self, values: list[Any], given: tuple[bool, ...]) -> list[int]:
        """Return where something was given away (``given``) and is not deleted."""

    def lie(
        self,
        pool: Pool,
        arrays: list[Any],
        places: list[int | None],
        given: bytes,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], tuple[tuple[int, int], ...]]:
        """Return where, offsets, donated and others of a ``Residency``.

        ``given`` is not 0 for what the caller gives away.
        """

class CallRecognizer:
    """Tells whether a call finds its arguments and the pool as an earlier one did.

    ``avals`` are the abstract values of the arguments; ``disposable`` is not 0 for what the caller
    gives away; ``committed`` says whether one of them was put on its device explicitly.
    """

    def __init__(
        self,
        reader: ArgumentReader,
        pool: Pool,
        avals: list[Any],
        disposable: bytes,
        committed: bool,
    ) -> None: ...
    def add(
        self,
        where: tuple[int, ...],
        offsets: tuple[int, ...],
        donated: tuple[bool, ...],
        others: tuple[tuple[int, int], ...],
    ) -> bool:
        """Remember a ``Residency``; False if it cannot be recognised."""

    def recognize(self, arrays: list[Any]) -> int:
        """Return the number of the residency that is there, in the order of ``add``, or -1."""

    def returned(self, state: int, values: list[Any]) -> None:
        """Say what the caller gets of a call for a state: alike each time, arguments soon."""

class TreeStructure:
    """Takes trees of Python containers of one structure apart and puts them together.

    ``nodes`` are (kind, type, data, arity, make), parents first; kinds are 0 for a leaf, 1 for
    None, 2 a tuple, 3 a list, 4 a dictionary, whose keys are its data, 5 a named tuple, which
    ``make`` makes of its items, or ``tuple.__new__`` if that is None, 6 another container, which
    ``one_level`` takes apart into children and data, and ``make`` makes of a list of children.
    Leaves of other types than ``leaf_types`` are not known as such.
    """

    def __init__(
        self,
        nodes: list[tuple[int, type, Any, int, Callable[..., Any] | None]],
        leaf_types: tuple[type, ...],
        one_level: Callable[[Any], Any],
    ) -> None: ...
    def leaves(self, tree: Any) -> list[Any] | None:
        """Return the leaves of a tree; None if it has not this structure."""

    def build(self, leaves: list[Any]) -> Any:
        """Return the tree of these leaves."""

class Prepared:
    """What a primitive on operands of given shapes is: an operand, a view of it, an operation.

    ``executable`` has the attributes ``workspace_bytes`` and ``obedient_call``; ``in_place`` names
    operands (in the order of ``selection``) that the one result may overwrite.
    """

    def __init__(
        self,
        executable: Any,
        kernel: Any,
        spec: OperationSpec,
        selection: Sequence[int],
        out_avals: tuple[Any, ...],
        out_keys: Sequence[int],
        in_place: Sequence[int] = ...,
        identity: bool = False,
        view: bool = False,
    ) -> None: ...
    @property
    def executable(self) -> Any: ...
    @property
    def kernel(self) -> Any: ...
    @property
    def out_avals(self) -> tuple[Any, ...]: ...
    @property
    def selection(self) -> list[int]: ...

def check_launches(checked: bool) -> None:
    """Has launches of this thread's sessions go through Python, or not."""

def operation_key(
    operand_key: Callable[[Any], Hashable],
    primitive: Any,
    operands: Sequence[Any],
    params: dict[str, Any],
    context: Any,
) -> tuple[Any, tuple[Any, ...], tuple[Hashable, ...], tuple[int, ...] | None, Any]:
    """What an operation is looked up by; without a hash where a parameter has none."""

class PreparedOperations:
    """Prepared operations by their keys. See cc/python/session/operation_key.h."""

    def __init__(
        self, literals: frozenset[type], constant: type, literal_array: type, literal_aval: Any
    ) -> None: ...
    def find(
        self,
        operand_key: Callable[[Any], Hashable],
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any,
        otherwise: Any = None,
    ) -> Any:
        """As `get` with the `operation_key` of these, in less time."""
    def get(self, key: Hashable, otherwise: Any = None) -> Any: ...
    def __setitem__(self, key: Hashable, prepared: Prepared | None) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...

class SlotCells:
    """Arrays donated to the next writer of their place: see cc/python/memory/slot_cells.h."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...

class SessionLog:
    """What a session does, for whoever records it. See cc/python/session/session_log.h."""

    def __init__(self, note_source: Callable[[], object]) -> None:
        """``note_source``: called at each first launch."""

    @property
    def rows(self) -> bytes:
        """Rows of 32 bytes each, as they lie in memory."""

    @property
    def prepared(self) -> list[Prepared]:
        """What is launched, by number."""

class SessionCallbacks(Protocol):
    """What a core calls of its session, of ``coop_jax._src.eager.session``."""

    def _on_operand(self, x: Any) -> Value | None: ...
    def _on_view(self, base: Any, key: int) -> SlotSpec | None: ...
    def _on_room_needed(self, workspace_bytes: int, incoming_bytes: int = 0) -> None: ...
    def _on_no_space(self, prepared: Prepared | None, failure: Failure) -> None: ...
    def _on_in_place(self, prepared: Prepared, operand: int) -> Any: ...
    def _on_move(self, array: Any, key: int, offset: int) -> Any: ...
    def _on_launch(
        self,
        prepared: Prepared,
        executable: Any,
        places: Sequence[tuple[int, int, int, int]],
        operands: list[Any],
        recompute: bool,
        given: bool,
    ) -> list[Any]: ...

class SessionCore(Engine):
    """An engine and what a session holds; runs operations. See cc/python/session/session_core.h."""

    def __init__(
        self,
        capacity_bytes: int,
        alignment_bytes: int,
        policy: Policy,
        expensive_seconds_per_byte: float,
        pool: Pool,
        cells: SlotCells,
        load: Callable[..., Any],
        load_arguments: tuple[Any, ...],
        operand_key: Callable[[Any], Hashable],
        prepared: PreparedOperations,
        fast: bool,
        roomy: bool,
        max_recompute: float,
    ) -> None: ...
    def apply(
        self,
        session: SessionCallbacks,
        primitive: Any,
        operands: Sequence[Any],
        params: dict[str, Any],
        context: Any = None,
        /,
    ) -> list[Value] | Literal[False] | None:
        """Run what is prepared for a primitive.

        None if that is not known, False for a call that is to be taken apart.
        """

    def run(
        self, session: SessionCallbacks, prepared: Prepared, operands: Sequence[Any]
    ) -> list[Value]: ...
    def bring(self, session: SessionCallbacks, storage: int) -> None:
        """Bring a storage back."""

    def reserve_room(self, session: SessionCallbacks, nbytes: int) -> bool:
        """Keep blocks of the pool free; False where there is no room (see ``failure``)."""

    def give_up(self) -> bool:
        """Follow nothing that was recorded any more, and release what was held for it.

        False if nothing was followed.
        """

    def hint(self, storage: int) -> None:
        """Say that one of the storage's values is most likely not read again."""

    def treasure(self, storage: int) -> None:
        """Say that making the storage again would be out of proportion."""

    def collect(self) -> None:
        """Release storages whose values are gone."""

    def make_permanent(self, storage: int) -> None: ...
    def record(self, history: History, follow: bool) -> None:
        """Note in it what is done; tell the engine what it recorded before."""

    def log(self, log: SessionLog) -> None:
        """Note in it what is done, until ``clear``; before the first source."""

    def new_value(self, storage: int, aval: Any, key: int) -> Value: ...
    def alias(self, storage: int, aval: Any, key: int) -> Value:
        """Return another value over the same storage."""

    def put(self, storage: int, array: Any, key: int, offset: int = -1) -> None:
        """Hold an array for a storage; `offset`: in the pool, -1 if outside or not known."""

    def holds(self, storage: int) -> bool: ...
    def array_of(self, session: SessionCallbacks, storage: int, key: int) -> Any: ...
    def note_outside(self, storage: int, nbytes: int) -> None: ...
    def is_outside(self, storage: int) -> bool: ...
    def annotate(self, make: Callable[[Prepared | None, int], Any]) -> None:
        """Be in the context managers that it makes, of what is run again, or of evicted bytes."""

    def recomputed(self) -> list[tuple[Prepared, int]]:
        """Return what was run again, and how often."""

    def makers(self) -> dict[int, Prepared]:
        """Return what would make them again, by storage; slow, for messages."""

    def key_of(self, storage: int) -> int:
        """Return the number of its shape and dtype, -1 where it is not known."""

    def is_donated(self, storage: int) -> bool: ...
    def donate(self, storage: int) -> None:
        """Delete the array when it is dropped: its owner gave it up."""

    def clear(self) -> None:
        """Let go of everything."""

    @property
    def outside_bytes(self) -> int: ...
    @property
    def peak_outside_bytes(self) -> int: ...
    workspace_bytes: int
    reserved_bytes: int
    @property
    def compute_seconds(self) -> float: ...
    @property
    def recompute_seconds(self) -> float: ...
    treasures: bool
    def interrupt_by(self, interrupts: Interrupts) -> None:
        """Check ``interrupts`` before each operation, until a donated array is gone."""

class Program:
    """Metadata of a straight-line program; ids are indices. See cc/core/planner/plan.h."""

    def __init__(
        self,
        *,
        storage_bytes: Sequence[int],
        storage_outside: Sequence[bool],
        input_storages: Sequence[int],
        input_donated: Sequence[bool],
        op_input_begin: Sequence[int],
        op_inputs: Sequence[int],
        op_output_begin: Sequence[int],
        op_outputs: Sequence[int],
        op_in_place: Sequence[int],
        op_cost_seconds: Sequence[float],
        op_recomputable: Sequence[bool],
        release_begin: Sequence[int],
        releases: Sequence[int],
        outputs: Sequence[int],
    ) -> None: ...
    @property
    def storage_count(self) -> int: ...
    @property
    def operation_count(self) -> int: ...

class Plan:
    """The actions that carry out a program, as data; ids are those of the program."""

    @property
    def feasible(self) -> bool: ...
    @property
    def failure(self) -> Failure | None:
        """Why there was no room; None where the plan is feasible."""

    @property
    def failed_operation(self) -> int:
        """The operation without room; -1: the inputs, ``operation_count``: the outputs."""

    @property
    def actions(self) -> list[Action]:
        """Built anew by each access."""

    @property
    def execution_order(self) -> list[int]:
        """The operations of its runs, in order; recomputed ones more than once."""

    @property
    def action_count(self) -> int: ...
    @property
    def input_offsets(self) -> list[int]: ...
    @property
    def output_offsets(self) -> list[int]: ...
    @property
    def reserved(self) -> list[tuple[int, int]]: ...
    @property
    def stats(self) -> EngineStats:
        """Copied by each access."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def tried_recomputations(self) -> int:
        """Those that were undone, too: what planning took."""

    @property
    def search_seconds(self) -> list[float]:
        """Seconds of each search, in order; empty where they were not timed."""

def make_plan(
    program: Program,
    *,
    capacity_bytes: int,
    alignment_bytes: int,
    policy: Policy,
    expensive_seconds_per_byte: float,
    foreign: Sequence[tuple[int, int]] = ...,
    reserve_bytes: int = 0,
    pin_outputs_early: bool = False,
    input_where: Sequence[int],
    input_offsets: Sequence[int],
    timed: bool = False,
    max_recomputations: int = 0,
    max_tried_recomputations: int = 0,
    max_recompute_seconds: float = 0,
    max_recompute: float = 0,
    worth: Sequence[float] = ...,
    sides: Sequence[int] = ...,
    places: Sequence[int] = ...,
    held_for: Sequence[int] = ...,
    checkpoints: Sequence[bool] = ...,
    only_packed: bool = False,
) -> Plan:
    """Plan a program; ``input_where`` holds INPUT_* and ``input_offsets`` offsets of foreign ones.

    None that recomputes more than ``max_recomputations`` operations (0: any number), or for longer
    than ``max_recompute_seconds``, or for which more than ``max_tried_recomputations`` were tried,
    undone ones included. ``max_recompute`` is the limit of a session (0: none): times as many
    operations as have run may be recomputed at any time. ``worth`` holds factors of the scores of
    storages, from 0 to 1e6; empty: 1 each. ``sides`` says from which end of the pool to look for
    their room: -1 from the left, 1 from the right, 0 as the policy has it;
    ``places`` names offsets to take where they are free, -1 for none; ``held_for`` an operation
    that counts as reading a storage too, -1 for none. Where ``checkpoints`` says what is kept over
    the fullest moment, the rest is made again (see cc/core/planner/checkpoint_plan.h), if
    ``only_packed`` where addresses for all of it are found ahead; empty: the engine decides.

    Raises:
        ValueError: the program is malformed, or foreign blocks overlap.
    """

def cheapest_to_keep(
    program: Program, *, input_where: Sequence[int], pool_bytes: Sequence[int]
) -> list[tuple[list[int], list[int], float]]:
    """What is cheapest to keep where most is alive, for each size of the pool.

    Returns:
        For each: the storages to keep; by storage, the operation that a kept one is held for, as
        ``held_for`` of ``make_plan``; seconds of what runs again.

    Raises:
        ValueError: there is not one ``input_where`` an input.
    """

def checkpoints_within(
    program: Program,
    *,
    input_where: Sequence[int],
    pool_bytes: int,
    shares: Sequence[float],
    parts: int,
    first: bool = False,
) -> list[tuple[list[int], int, float]]:
    """What is cheapest to keep if the rest is made again; then ``shares`` of its bytes.

    With ``parts``, what is alive over the narrow cuts between so many parts is kept in any case;
    of equally narrow ones the last or the first. See cc/core/planner/checkpoint_plan.h.

    Returns:
        For each: the storages to keep, ``checkpoints`` of ``make_plan``; the most bytes alive in
        the pool at once; seconds of what runs again.

    Raises:
        ValueError: there is not one ``input_where`` an input.
    """

def checkpoints_at_cuts(
    program: Program, *, input_where: Sequence[int], parts: Sequence[int], first: bool = False
) -> list[tuple[list[int], int, float]]:
    """What is alive over the narrow cuts between so many parts, for each number of parts.

    Returns, raises: as ``checkpoints_within``.
    """

class History:
    """What a function did in its last call. See cc/core/planner/call_history.h."""

    def __init__(self) -> None: ...
    def finish(self) -> bool:
        """The call is complete: what it did is what is recorded. False if it is not known."""

    def advise(
        self,
        worth: Sequence[float],
        sides: Sequence[int],
        places: Sequence[int],
        held_for: Sequence[int],
    ) -> None:
        """What to tell the engine of the recorded storages, as for ``make_plan``."""

    @property
    def gave_up(self) -> bool:
        """Whether the last call had no room by what was recorded."""

    @property
    def repetitions(self) -> int:
        """Calls in a row that did what the one before did."""

    @property
    def overwritten(self) -> list[int]:
        """Storages whose place an output of an operation takes."""

    @property
    def program(self) -> Program: ...
    @property
    def storage_count(self) -> int:
        """0 if nothing is recorded."""

    @property
    def storage_bytes(self) -> list[int]: ...
    @property
    def outputs(self) -> list[int]: ...
    @property
    def made_by(self) -> list[int]:
        """By storage: the operation that makes it, -1 for none."""

    def alive_at(self, operation: int) -> list[int]:
        """Storages that are made before an operation, and read by it or after it."""

    @property
    def input_where(self) -> list[int]: ...
    @property
    def input_offsets(self) -> list[int]: ...
    @property
    def kinds(self) -> list[list[int]]:
        """Storages that the pool holds, by what makes them."""

class FungibleProgram:
    """Operations over tensors and a schedule; ids are indices. See cc/baselines/dtr/simulator.h."""

    def __init__(
        self,
        *,
        op_cost_ns: Sequence[int],
        op_arg_begin: Sequence[int],
        op_args: Sequence[int],
        op_result_begin: Sequence[int],
        result_bytes: Sequence[int],
        result_alias: Sequence[int],
        step_kinds: Sequence[int],
        step_ids: Sequence[int],
    ) -> None: ...
    @property
    def operation_count(self) -> int: ...
    @property
    def tensor_count(self) -> int: ...

@final
class FungibleResult:
    """What a simulation without addresses did, until its end or failure.

    Attributes:
      status: "ok", "out_of_memory" or "thrashing".
      clock_ns: when it ended or failed.
      compute_ns: of first runs.
      recompute_ns: of recomputations.
      peak_bytes: most bytes held at once.
      operations: operations run for the first time.
      recomputations: operations run again.
      evictions: to make room.
      scores: evaluations of the heuristic.
    """

    @property
    def status(self) -> Literal["ok", "out_of_memory", "thrashing"]: ...
    @property
    def clock_ns(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def recompute_ns(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def operations(self) -> int: ...
    @property
    def recomputations(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def scores(self) -> int: ...

def simulate_fungible(
    program: FungibleProgram,
    *,
    heuristic: str,
    budget_bytes: int = -1,
    recompute_limit_ns: int = -1,
    release_pinned: bool = False,
) -> FungibleResult:
    """Run a program in memory without addresses, by the rules of the authors of DTR.

    Raises:
        ValueError: an unknown heuristic, or a malformed program.
    """

def search_window(
    bytes: Sequence[int],
    scores: Sequence[float],
    evictable: Sequence[bool],
    request_bytes: int,
    prefer_right: bool,
    free: Sequence[bool] = ...,
) -> tuple[int, int] | None:
    """Return (first, last) of the cheapest run of neighbours that holds the request, or None."""
