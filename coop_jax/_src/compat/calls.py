"""Calls of compiled code: from Python, and from code to code.

`dispatcher` is the way from Python that costs least. The rest are calls that XLA keeps apart: what
is called is compiled as if it were alone.

XLA's inliner leaves a call alone whose frontend attributes say so (`inlineable`), and works on each
computation by itself: it fuses nothing across the call. Two things would still differ from a
computation compiled alone, and are said explicitly here:

* Layouts. The arguments and results of a compiled function are row-major; those of a called one are
  what suits the caller, unless they are pinned.
* Convolutions. XLA on CPU brings them to the dimension order that its fast code wants only in the
  entry computation; in a called one they would run hundreds of times slower.

Whether it worked is to be seen in the optimised module (see `hlo`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.scheduling_groups import xla_metadata_call

from coop_jax._src.compat import jaxprs

ATTRIBUTE = "coop_jax_member"


def dispatcher(compiled: jax.stages.Compiled) -> Callable[..., Sequence[jax.Array]]:
    """A function that calls what `lower().compile()` returned, without Python where that can be.

    `compiled(...)` itself does the same behind one more Python call.
    """
    try:
        found = compiled._executable.create_cpp_call(compiled._params)
    except (AttributeError, TypeError):  # another version of JAX
        found = None
    return compiled if found is None else found


def apart(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    name: str,
    after: Sequence[Any] = (),
) -> Sequence[Any]:
    """Calls a function such that XLA compiles it by itself; `name` is found with `Module.calls`.

    `after` are arrays that have to be there before: operands that nobody reads. XLA goes in the
    order of dependences only, and takes for one what is called twice of the same operands.
    """

    def called(*given: Any) -> Sequence[Any]:
        return function(*given[: len(operands)])

    call = xla_metadata_call(called, inlineable="false", **{ATTRIBUTE: name})
    return call(*operands, *after)  # type: ignore[no-any-return]


def row_major(value: Any) -> Any:
    """The value, laid out in memory as what a compiled function takes and returns."""
    if getattr(value, "ndim", 0) < 2 or not isinstance(value.dtype, np.dtype):
        return value
    return with_layout_constraint(value, Layout(tuple(range(value.ndim))))


def bind_convolution(
    primitive: Any, params: dict[str, Any], context: Any, left: Any, right: Any
) -> list[Any]:
    """`conv_general_dilated` in the dimension order that XLA would have chosen."""
    numbers = params["dimension_numbers"]
    if params["batch_group_count"] != 1:
        return jaxprs.bind(primitive, params, context, [left, right])
    rank = left.ndim
    batch, feature, *space = numbers.lhs_spec
    made, read, *window = numbers.rhs_spec
    out_batch, out_feature, *out_space = numbers.out_spec
    left = _transposed(left, (batch, *space, feature))
    right = _transposed(right, (*window, read, made))
    image = (0, rank - 1, *range(1, rank - 1))
    params = {
        **params,
        "dimension_numbers": jax.lax.ConvDimensionNumbers(
            image, (rank - 1, rank - 2, *range(rank - 2)), image
        ),
    }
    (result,) = jaxprs.bind(primitive, params, context, [left, right])
    order = (out_batch, *out_space, out_feature)
    return [_transposed(result, tuple(order.index(d) for d in range(rank)))]


def _transposed(value: Any, order: tuple[int, ...]) -> Any:
    if order == tuple(range(value.ndim)):
        return value
    return jax.lax.transpose(value, order)
