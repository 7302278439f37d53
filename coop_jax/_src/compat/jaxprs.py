"""Reading jaxprs: equations, nested programs, source lines.

Everything that depends on how JAX spells its intermediate language lives here; the modules above
see `Equation`s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax._src import core as _core
from jax._src import literals as _literals
from jax._src import source_info_util as _source_info_util
from jax._src.lax import lax as _lax
from jax.extend import core as _jex

from coop_jax._src.compat import wide

Jaxpr = _core.Jaxpr
ClosedJaxpr = _jex.ClosedJaxpr
Literal = _jex.Literal
Var = _jex.Var
JaxprEqn = _jex.JaxprEqn
Primitive = _jex.Primitive
ShapedArray = _core.ShapedArray
DropVar = _jex.DropVar
Tracer = _core.Tracer

# Python scalars as JAX canonicalises them: weakly typed, with their dtype as an attribute.
WEAK_LITERALS = frozenset({_literals.TypedInt, _literals.TypedFloat, _literals.TypedComplex})

# NumPy's arrays with an abstract value, as JAX makes them of others before it hands them out.
LITERAL_ARRAY = _literals.TypedNdArray

# The descriptor of the slot where they keep it, None until it is asked for; else of the attribute.
LITERAL_ARRAY_AVAL = getattr(LITERAL_ARRAY, "_aval", LITERAL_ARRAY.aval)

# Calls whose body is simply run in place of the call, and the parameter that holds the body.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "eval_jaxpr": "jaxpr",
}


def call_body(primitive: Any, params: dict[str, Any]) -> tuple[Any, Sequence[Any]] | None:
    """(jaxpr, values of its constants) of a call that may be run in place, None for others."""
    name = _CALLS.get(primitive.name)
    if name is None or name not in params:
        return None
    return open_closed(params[name])


def open_closed(body: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, constants) of a jaxpr that may hold its constants or not."""
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """The parts of a scan equation: operands are constants, carry, then stacked inputs."""

    body: Any
    constants: Sequence[Any]
    length: int
    reverse: bool
    num_consts: int
    num_carry: int


def scan_parts(params: dict[str, Any]) -> Scan:
    """Reads a scan's parameters, which are spelt differently from version to version."""
    body, constants = open_closed(params["jaxpr"])
    if "ft_in" in params:
        num_consts, num_carry, _ = (len(list(group)) for group in params["ft_in"].unpack())
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    return Scan(body, constants, params["length"], params["reverse"], num_consts, num_carry)


def linear_solve_parts(params: dict[str, Any]) -> tuple[Any, Sequence[Any], int, int]:
    """Of a custom_linear_solve: (jaxpr, constants) of what solves it, and which operands it reads.

    Those from the first number up to the second are its own, and all that come after the functions'
    are the right-hand sides: see `linear_solve_operands`.
    """
    lengths = params["const_lengths"]
    jaxpr, constants = open_closed(params["jaxprs"].solve)
    first = lengths.matvec + lengths.vecmat
    return jaxpr, constants, first, first + lengths.solve


def linear_solve_operands(params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    """The operands that the solving function of a custom_linear_solve reads."""
    _, _, begin, end = linear_solve_parts(params)
    return [*operands[begin:end], *operands[sum(params["const_lengths"]) :]]


def nested_jaxprs(params: dict[str, Any]) -> Iterable[Any]:
    """The open jaxprs that a parameter dictionary holds, directly or in tuples."""
    for body in bodies(params):
        yield open_closed(body)[0]


def bodies(params: dict[str, Any]) -> Iterable[Any]:
    """The jaxprs that a parameter dictionary holds, with their constants if they have any."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield item


def is_wide(params: dict[str, Any]) -> bool:
    """Whether a program among the parameters, or one in it, computes with types of 64 bits."""
    return any(
        wide.any_wide(v.aval for v in e.outvars) or is_wide(e.params)
        for jaxpr in nested_jaxprs(params)
        for e in jaxpr.eqns
    )


def closes_over_tracers(params: dict[str, Any]) -> bool:
    """Whether a program among the parameters, or one in it, has a tracer as a constant."""
    for body in bodies(params):
        jaxpr, constants = open_closed(body)
        if any(isinstance(c, Tracer) for c in constants):
            return True
        if any(closes_over_tracers(e.params) for e in jaxpr.eqns):
            return True
    return False


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """What the user calls the inputs of a traced program, such as "batch['x']"; as far as known."""
    return tuple(getattr(jaxpr.debug_info, "arg_names", None) or ())


def is_dropped(variable: Any) -> bool:
    """Whether an output is never read."""
    return isinstance(variable, DropVar)


def bind(
    primitive: Any, params: dict[str, Any], context: Any, operands: Sequence[Any]
) -> list[Any]:
    """Runs one equation under the current trace; always a list."""
    subfuns_and_params = primitive.get_bind_params(params)
    subfuns, bound = (
        subfuns_and_params if isinstance(subfuns_and_params, tuple) else ((), subfuns_and_params)
    )
    with within(context):
        result = primitive.bind(*subfuns, *operands, **bound)
    return list(result) if primitive.multiple_results else [result]


def called(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """What a closed jaxpr computes, under the current trace."""
    return list(_jex.jaxpr_as_fun(closed)(*operands))


def within(context: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which an equation means what it meant where it was traced."""
    return context.manager if context is not None else contextlib.nullcontext()


def strong(value: Any) -> Any:
    """The value without weak type, so that operations are compiled once, not per weakness."""
    if getattr(value, "weak_type", False) or getattr(_core.typeof(value), "weak_type", False):
        return _lax._convert_element_type(value, value.dtype, weak_type=False)
    return value


def as_weak_as(value: Any, aval: Any) -> Any:
    """The value, weakly typed if the abstract value of the same dtype is."""
    if getattr(aval, "weak_type", False) and not _core.typeof(value).weak_type:
        return _lax._convert_element_type(value, value.dtype, weak_type=True)
    return value


def current_context() -> Any:
    """The equation context (matmul precision, key generator flags...) in force now."""
    return _core.JaxprEqnContext()


def abstract_eval(primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Abstract results of a primitive; for a call those of its body."""
    body = call_body(primitive, params)
    if body is not None:
        return [x.aval for x in body[0].outvars]
    result, _ = primitive.abstract_eval(*avals, **params)
    return list(result) if primitive.multiple_results else [result]


def aval_of(value: Any) -> Any:
    """Shape, dtype and weak type of an array, scalar or ShapeDtypeStruct."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return ShapedArray(value.shape, value.dtype, weak_type=getattr(value, "weak_type", False))
    return _core.typeof(value)


def source_of(info: Any, caller: str = "") -> str:
    """The user's "file:line (function)" of an equation, "" where none is known.

    The innermost line that is not in an installed package: of a layer written with Flax that is the
    line of the user's model, not Flax's. Where all are in packages, `caller` if that is known: a
    library's loop or jitted function is traced once, and its equations do not know who called it.
    """
    own, other = ("", "") if info is None else _sources_of_traceback(info.traceback)
    return own or caller or other


def own_source_of(info: Any) -> str:
    """The same, "" where all lines are in installed packages."""
    return "" if info is None else _sources_of_traceback(info.traceback)[0]


def source_of_traceback(traceback: Any) -> str:
    """As `source_of`, of JAX's traceback."""
    own, other = _sources_of_traceback(traceback)
    return own or other


@functools.lru_cache(maxsize=64)  # an equation is asked for more than once, and its neighbours
def _sources_of_traceback(traceback: Any) -> tuple[str, str]:
    """The innermost line that is in no installed package, and the innermost one."""
    frames = list(_source_info_util.user_frames(traceback))
    own = [f for f in frames if "site-packages" not in f.file_name]
    return _source(own), _source(frames)


def _source(frames: Sequence[Any]) -> str:
    for frame in frames:
        return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
    return ""


def name_stack_of(info: Any) -> str:
    """The module path of an equation ("jvp(Cnn)/Conv_0")."""
    return "" if info is None else str(info.name_stack)


def current_source() -> Any:
    """The source information of the code that is running now."""
    return _source_info_util.current()


# This package's own frames are not the user's.
_source_info_util.register_exclusion(str(pathlib.Path(__file__).parents[2]))

_CLOSED_OVER = (
    "The function given to coop_jax closes over this value of another JAX transformation, which has"
    " ended or encloses the call. Pass it as an argument."
)


def trace(
    flat_function: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    *,
    under_transformations: bool = False,
) -> tuple[Any, Sequence[Any]]:
    """Traces a function of leaves to (jaxpr, constants).

    Raises:
      jax.errors.UnexpectedTracerError: the function closes over a value of another transformation,
        and is not called under it.
    """
    jaxpr, constants = open_closed(jax.make_jaxpr(flat_function)(*avals))
    for constant in constants:
        if isinstance(constant, Tracer) and not under_transformations:
            raise _core.escaped_tracer_error(constant, _CLOSED_OVER)
    return jaxpr, constants


def spec_of(aval: Any, *, placed: bool = False) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an abstract value; `placed`: its sharding, too, if it is on a mesh."""
    if placed and is_on_mesh(aval):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=aval.sharding)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def stacked_sharding(row: Any) -> Any:
    """How a stack of rows lies on a mesh (explicit mode): each as it is; None without a mesh."""
    if not is_on_mesh(row):
        return None
    spec = jax.sharding.PartitionSpec(None, *row.sharding.spec)
    return jax.sharding.NamedSharding(row.sharding.mesh, spec)


def is_on_mesh(aval: Any) -> bool:
    """Whether an abstract value says how it lies on a mesh (explicit mode)."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty
