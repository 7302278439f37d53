"""What an operation costs: a roofline estimate, the same on every run and every machine.

cost = launch + max(FLOPs / peak FLOP rate, bytes / memory bandwidth), from shapes and dtypes only.
Decisions must not depend on a noisy clock, so plans use these numbers; measured times go into the
statistics. The profile's rates matter only as ratios of each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from coop_jax._src.compat import jaxprs
from coop_jax._src.util import options

# Of XLA's allocations on a GPU; enough for it on any device.
ALIGNMENT_BYTES = 256


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Rates of a device.

    Attributes:
      name: for people.
      flops_per_second: of dense matrix work in float32.
      bytes_per_second: memory bandwidth.
      launch_seconds: fixed cost of one operation.
      alignment_bytes: of XLA's allocations.
      small_flops, small_bytes: operations that do a few times that may run together with
        neighbours; what a device does while it launches one if None.
      expensive_passes: an operation is expensive if it takes as long as this many passes over its
        output.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float
    alignment_bytes: int = ALIGNMENT_BYTES
    small_flops: float | None = None
    small_bytes: float | None = None
    expensive_passes: float = 6.0

    def __post_init__(self) -> None:
        for name in ("flops_per_second", "bytes_per_second"):
            if not options.number(getattr(self, name), name, least=0):
                raise ValueError(f"{name} must be more than 0")
        options.number(self.launch_seconds, "launch_seconds", least=0)
        options.number(self.alignment_bytes, "alignment_bytes", least=1, most=1 << 30)
        options.number(self.expensive_passes, "expensive_passes", least=0)
        for name in ("small_flops", "small_bytes"):
            if getattr(self, name) is not None and not options.number(
                getattr(self, name), name, least=0
            ):
                raise ValueError(f"{name} must be more than 0, or None")

    @property
    def expensive_seconds_per_byte(self) -> float:
        """Cost density from which an operation counts as expensive (the paper's class C1).

        Elementwise work reads one to three operands and writes one: at most about four passes over
        its output. The paper's table 1 has 4 to 5 us/MB for it and 33 to 89 for matrix work.
        """
        return self.expensive_passes / self.bytes_per_second

    def smallness(self, flops: float, moved_bytes: float) -> float:
        """The work of an operation in units of a small one."""
        small_flops = self.small_flops or self.launch_seconds * self.flops_per_second
        small_bytes = self.small_bytes or self.launch_seconds * self.bytes_per_second
        return max(flops / small_flops, moved_bytes / small_bytes)


# Of two cores with AVX-512, from what the operations of the benchmarks' networks take there: caches
# serve most of them, and a launch has to wake XLA's threads.
CPU = DeviceProfile(
    "cpu",
    flops_per_second=2.5e11,
    bytes_per_second=6e10,
    launch_seconds=2e-5,
    alignment_bytes=64,
    small_flops=3e5,
    small_bytes=6e4,
    expensive_passes=30.0,  # else what a launch costs makes all but the largest outputs expensive
)
# The time of a launch is that of an H200's host: XLA's call, and the wait for what it does.
GPU = DeviceProfile(
    "gpu",
    flops_per_second=1.5e13,
    bytes_per_second=1.5e12,
    launch_seconds=6e-5,
    small_flops=7.5e7,
    small_bytes=7.5e6,
    expensive_passes=30.0,  # as on the CPU
)

# From the makers' data sheets: matrix work on float32 arrays as JAX runs it by default (TF32 where
# there is such a thing; "-fp32" is with full precision), memory bandwidth. A kernel that does next
# to nothing takes 3 us.
PROFILES = {
    "a100-80gb": DeviceProfile("a100-80gb", 1.56e14, 2.039e12, 3e-6),
    "a100-80gb-fp32": DeviceProfile("a100-80gb-fp32", 1.95e13, 2.039e12, 3e-6),
    "rtx-2080ti": DeviceProfile("rtx-2080ti", 1.345e13, 6.16e11, 3e-6),
    "h200": DeviceProfile("h200", 4.945e14, 4.8e12, 3e-6),
}


def profile_for(platform: str) -> DeviceProfile:
    """The profile used for planning on a platform ("cpu", "gpu")."""
    return CPU if platform == "cpu" else GPU


def nbytes(aval: Any) -> int:
    """Bytes of a value of this shape and dtype."""
    return int(math.prod(aval.shape)) * max(1, int(getattr(aval.dtype, "itemsize", 1)))


_TRANSCENDENTAL = frozenset(
    """
    exp exp2 log log1p expm1 tanh sin cos tan logistic erf erfc erf_inv pow sqrt rsqrt cbrt
    lgamma digamma atan2 asin acos atan sinh cosh asinh acosh atanh random_bits threefry2x32
    """.split()
)


def flops(primitive: Any, params: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> float:
    """Floating-point operations of one equation, to the accuracy that planning needs."""
    name = primitive.name
    out_size = float(sum(math.prod(a.shape) for a in outs))
    if name == "dot_general":
        (lhs_contract, _), _ = params["dimension_numbers"]
        return 2.0 * out_size * float(math.prod(ins[0].shape[d] for d in lhs_contract))
    if name == "conv_general_dilated":
        kernel = ins[1].shape
        out_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * out_size * float(math.prod(kernel)) / max(1.0, float(out_features))
    in_size = float(sum(math.prod(a.shape) for a in ins))
    if name in ("sort", "top_k", "argsort"):
        return in_size * max(1.0, math.log2(max(2.0, in_size))) * 4
    if name == "fft":
        return 5.0 * in_size * max(1.0, math.log2(max(2.0, in_size)))
    if name in ("cholesky", "lu", "qr", "eigh", "svd", "triangular_solve", "eig", "geqrf"):
        return 4.0 * in_size * float(max((a.shape[-1] for a in ins if a.shape), default=1))
    if name == "reduce_window_sum" or name.startswith("reduce_window"):
        return out_size * float(math.prod(params.get("window_dimensions", (1,))))
    nested = sum(
        flops(e.primitive, e.params, [x.aval for x in e.invars], [v.aval for v in e.outvars])
        for jaxpr in jaxprs.nested_jaxprs(params)
        for e in jaxpr.eqns
    )
    trips = float(params.get("length", 1) or 1)
    return max(in_size, out_size) * (12.0 if name in _TRANSCENDENTAL else 1.0) + nested * trips


def cost_seconds(profile: DeviceProfile, work: float, moved_bytes: float) -> float:
    """Roofline seconds of an operation of `work` FLOPs that moves `moved_bytes`."""
    return profile.launch_seconds + max(
        work / profile.flops_per_second, moved_bytes / profile.bytes_per_second
    )
