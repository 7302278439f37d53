"""Segments: operations launched as one, with the bits that each has alone."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import coop_jax
from coop_jax._src.compat import calls, hlo
from coop_jax._src.execution import executable_cache, executables
from coop_jax._src.ir import kernels
from coop_jax._src.run import constants, planned_call, tiering
from coop_jax._src.run.specialization import Signature, Tier
from coop_jax._src.segments import isolation_check, partition
from coop_jax._src.util.errors import BudgetExceededError
from tests.testing import models
from tests.testing.comparison import assert_same_bits
from tests.testing.segmented import launches, signature_of, trained

pytestmark = [
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="segments are for XLA's CPU compiler"
    ),
    pytest.mark.usefixtures("by_estimates"),
    pytest.mark.unless_forced("who wants everything evicted wants to see each operation"),
]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments from the sixth call on."""
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")


@pytest.mark.parametrize("policy", ["coop", "lookahead"])
@pytest.mark.parametrize("name", ["cnn", "mlp", "gpt"])
def test_training_in_segments_gives_the_same_bits(
    name: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = getattr(models, name)()
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    expected, alone = trained(program, 8, policy=policy)
    assert launches(alone)[0] == launches(alone)[1]
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "1")
    got, together = trained(program, 8, policy=policy)
    now, before = launches(together)
    assert now <= before / 4
    assert_same_bits(got, expected)


@pytest.mark.parametrize(
    "fraction", [*(pytest.param(x, marks=pytest.mark.slow) for x in (0.9, 0.7)), 0.5]
)
def test_a_budget_is_kept_in_segments_too(
    fraction: float, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = models.gpt()
    got, step = trained(program, 7, budget=fraction)
    stats = step.runtime.stats()
    assert stats.peak_bytes <= stats.budget_bytes
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    expected, _ = trained(program, 7)
    assert_same_bits(got, expected)


def test_where_there_is_room_everything_is_one_launch(at_once: None) -> None:
    step = coop_jax.run(lambda x, w: jnp.tanh(x @ w) @ w + jnp.tanh(w), fusion=True)
    x = jnp.ones((64, 64))
    for _ in range(6):
        step(x, x / 8)
    now, before = launches(step)
    assert now == 1 < before


def test_random_keys_go_through_a_segment(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, *keys = jax.random.split(key, 4)
        for k in keys:
            x = jnp.tanh(x @ x) * jax.random.bernoulli(k, 0.9, x.shape)
        return x, key

    def results() -> Any:
        step = coop_jax.run(dropped, fusion=True, donate_argnums=(0, 1))
        state = jax.random.normal(jax.random.key(1), (96, 96)) / 10, jax.random.key(0)
        for _ in range(6):
            state = step(*state)
        return step, (state[0], jax.random.key_data(state[1]))

    step, got = results()
    assert launches(step)[0] == 1
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    assert_same_bits(got, results()[1])


def test_a_reshaped_value_is_read_inside(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = (x @ w).reshape(4, 32, 64)
        z = jnp.einsum("abc,cd->abd", y, w)
        rows = lax.scan(lambda c, row: (c + row.sum(), (row @ w) * c), 1.0, y)[1]
        return z.reshape(-1), rows

    def results() -> Any:
        step = coop_jax.run(fn, fusion=True)
        x = jnp.arange(128 * 64, dtype=jnp.float32).reshape(128, 64) / 5000
        for _ in range(6):
            out = step(x, x[:64] / 7)
        return step, out

    step, got = results()
    assert launches(step)[0] < launches(step)[1]
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    assert_same_bits(got, results()[1])


def test_what_has_effects_keeps_its_place(at_once: None) -> None:
    seen: list[float] = []

    def fn(x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.tanh(x @ x) @ x
            jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return x

    step = coop_jax.run(fn, fusion=True)
    x = jnp.eye(64) / 2
    for _ in range(6):
        out = step(x)
    jax.effects_barrier()
    assert len(seen) == 18
    assert seen[:3] == seen[-3:]
    assert seen[-1] == float(out[0, 0])


@pytest.mark.parametrize("switch", ["0", ""])
def test_without_the_switch_short_programs_wait(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOP_JAX_SEGMENTS", switch)
    step = coop_jax.run(lambda x: jnp.tanh(x @ x) @ x, fusion=True)
    for _ in range(3):
        step(jnp.eye(64))
    assert signature_of(step).tier.segmented is None


def test_segments_come_once_launching_took_as_long_as_compiling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COOP_JAX_SEGMENTS", raising=False)
    tier, launches = Tier(), 1000
    calls = constants.TUNED.measured_calls
    tier.ran(calls * launches * constants.TUNED.launch_seconds)
    for number in range(2, calls + 1):
        assert not tiering._is_time(tier, launches)
        tier.ran(9.0)
        assert tiering._is_time(tier, launches) is (number == calls)
    assert not tiering._is_time(tier, launches // 2)
    for _ in range(calls):
        tier.ran(9.0)
    assert tiering._is_time(tier, launches // 2)


def test_what_cannot_be_compiled_together_goes_on_alone(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> int:
        raise RuntimeError("out of memory while compiling")

    step = coop_jax.run(lambda x: jnp.tanh(x @ x) @ x, fusion=True)
    expected = step(jnp.eye(64) / 3)
    monkeypatch.setattr(tiering, "compile_all", fails)
    for _ in range(2):
        assert_same_bits(step(jnp.eye(64) / 3), expected)
    assert signature_of(step).tier.segmented is None


@pytest.mark.parametrize(
    ("together", "again", "kept"),
    [(0.9, None, True), (1.1, 0.9, False), (1.1, 1.2, True)],
    ids=["faster", "slower", "the machine was slower"],
)
def test_segments_that_turn_out_slower_are_given_up(
    together: float, again: float | None, kept: bool
) -> None:
    segmented = cast(Signature, object())
    tier = Tier()
    for seconds in (10.0, 1.0, 2.0, 1.5):
        tier.ran(seconds)
    tier.settled, tier.segmented = True, segmented
    for seconds in (30.0, 5.0, *[together] * 8):
        tier.ran(seconds)
    if again is not None:  # single operations are measured once more, the first calls aside
        for seconds in (0.1, 0.1, 0.1, 2.0, *[again] * 6):
            assert tier.segmented is None
            tier.ran(seconds)
    for _ in range(20):
        assert (tier.segmented is segmented) is kept
        assert tier.settled
        tier.ran(5.0)


@pytest.mark.parametrize("kwargs", [{"fusion": False}, {"verify": True}])
def test_whoever_wants_to_see_each_operation_does(kwargs: dict[str, bool], at_once: None) -> None:
    fusion = kwargs.get("fusion", True)
    runtime = coop_jax.Runtime(None, verify=kwargs.get("verify", False))
    step = coop_jax.run(lambda x: jnp.tanh(x @ x) @ x, runtime=runtime, fusion=fusion)
    for _ in range(6):
        step(jnp.eye(64))
    assert signature_of(step).tier.segmented is None


def test_whoever_looks_for_nans_is_told_the_operation(at_once: None) -> None:
    step = coop_jax.run(lambda x: jnp.log(jnp.tanh(x @ x) @ x), fusion=True)
    with jax.debug_nans(True):
        for _ in range(3):
            step(jnp.ones((64, 64)))
        with pytest.raises(FloatingPointError, match="log"):
            step(-jnp.ones((64, 64)))
    assert signature_of(step).tier.segmented is None


def test_a_form_that_does_not_fit_any_more_is_given_up(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = coop_jax.run(lambda x: jnp.tanh(x @ x) @ x, fusion=True)
    x = jnp.eye(64) / 3
    for _ in range(6):
        expected = step(x)
    form = signature_of(step).tier.segmented
    assert form is not None
    original = planned_call.plan_of

    def refused(runtime: Any, signature: Any, *args: Any, **kwargs: Any) -> Any:
        if signature is form:
            raise BudgetExceededError.__new__(BudgetExceededError)
        return original(runtime, signature, *args, **kwargs)

    monkeypatch.setattr(planned_call, "plan_of", refused)
    assert_same_bits(step(x), expected)
    assert signature_of(step).tier.segmented is None


def test_weights_stay_where_they_are_also_if_their_gradient_is_written_in_parts(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written over a reshaped argument; moved weights would need a plan at each step."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.tanh(x @ w) @ w
        flat = lax.dynamic_update_slice(w.reshape(-1), y.reshape(-1)[:512], (64,))
        return flat.reshape(w.shape), y.sum()

    def results() -> tuple[Any, Any]:
        budgeted = coop_jax.run(step, fusion=True, donate_argnums=0)
        w = jnp.arange(4096, dtype=jnp.float32).reshape(64, 64) / 9000
        places = set()
        for _ in range(8):
            w, y = budgeted(w, jnp.eye(64) / 3)
            places.add(w.unsafe_buffer_pointer())
        assert len(places) == 1
        return budgeted, (w, y)

    budgeted, got = results()
    form = signature_of(budgeted).tier.segmented
    assert form is not None
    assert form.planned == 1
    monkeypatch.setenv("COOP_JAX_SEGMENTS", "0")
    assert_same_bits(got, results()[1])


def segment_of(fn: Any, *avals: Any) -> tuple[Any, Any]:
    """A program in one segment; the segment's executable."""
    cache = kernels.cache_for(jax.devices()[0])
    program = coop_jax.trace_program(fn, *avals, fusion=True).program
    for op in program.operations:
        executable_cache.executable(
            op.kernel, (executables.OUTSIDE,) * len(op.results), cache.device, cache
        )
    whole = partition.segmented(program, cache, float("inf"))
    (op,) = whole.operations
    return op.kernel, executable_cache.executable(
        op.kernel, (executables.OUTSIDE,) * len(op.results), cache.device, cache
    )


X = jax.ShapeDtypeStruct((64, 48), jnp.float32)
W = jax.ShapeDtypeStruct((48, 48), jnp.float32)


def test_members_are_compiled_as_alone() -> None:
    segment, executable = segment_of(lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum(0), X, W)
    assert len(segment.members) > 2
    assert isolation_check.differing([executable]) == []


def test_members_that_xla_mixes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the request to keep them apart XLA inlines every call."""
    monkeypatch.setattr(
        calls, "apart", lambda function, operands, name, after: function(*operands), raising=True
    )
    segment, executable = segment_of(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w).sum(0), X, W)
    found = isolation_check.differing([executable])
    assert {id(k) for k in found} == {id(m.kernel) for m in segment.members}


def test_a_member_that_became_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is computed with other equations than its own."""
    original = kernels.Kernel.called

    def otherwise(self: kernels.Kernel, *operands: Any) -> list[Any]:
        results = original(self, *operands)
        return [lax.neg(r) for r in results] if "cos" in self.label else results

    monkeypatch.setattr(kernels.Kernel, "called", otherwise)
    segment, executable = segment_of(lambda x, w: (jnp.cos(x) @ w) @ w, X, W)
    found = isolation_check.differing([executable])
    assert [k.label for k in found] == ["cos"]
    assert len(segment.members) == 3


def structure(fn: Any, *avals: Any) -> str:
    module = hlo.module_of(jax.jit(fn).lower(*avals).compile())
    assert module is not None
    return module.structure(module.entry)


def test_structures_tell_computations_apart() -> None:
    first = structure(lambda x, w: jnp.tanh(x @ w), X, W)
    assert structure(lambda a, b: jnp.tanh(a @ b), X, W) == first
    assert structure(lambda x, w: jnp.tanh(x @ w) + 1, X, W) != first
    assert structure(lambda x, w: jnp.sin(x @ w), X, W) != first
    assert structure(lambda x: x * 2.0, X) != structure(lambda x: x * 3.0, X)
    wider = jax.ShapeDtypeStruct((64, 49), jnp.float32)
    assert structure(lambda x: x * 2.0, X) != structure(lambda x: x * 2.0, wider)


def test_structures_leave_names_and_the_order_of_results_out() -> None:
    one = structure(lambda x: (x * 2.0, jnp.sin(x)), X)
    assert structure(lambda renamed: (jnp.sin(renamed), renamed * 2.0), X) == one


def test_an_executable_without_a_module_is_compared_with_nothing() -> None:
    class Silent:
        def runtime_executable(self) -> Any:
            raise NotImplementedError

    assert hlo.module_of(Silent()) is None


ORDERS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "OIHW", "NCHW"),
    ("CHWN", "IHWO", "HWNC"),
]


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(o) for o in ORDERS])
def test_a_convolution_in_another_order_is_the_same(order: tuple[str, str, str]) -> None:
    sizes = dict(zip("NHWC", (2, 9, 8, 3), strict=True))
    window = dict(zip("HWIO", (3, 2, 3, 4), strict=True))
    random = np.random.default_rng(0)
    x = random.normal(size=[sizes[c] for c in order[0]]).astype(np.float32)
    w = random.normal(size=[window[c] for c in order[1]]).astype(np.float32)

    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, w, (1, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=order
        )

    (eqn,) = jax.make_jaxpr(convolved)(x, w).eqns
    (got,) = jax.jit(lambda x, w: calls.bind_convolution(eqn.primitive, eqn.params, eqn.ctx, x, w))(
        x, w
    )
    np.testing.assert_allclose(got, jax.jit(convolved)(x, w), rtol=1e-5, atol=1e-5)
