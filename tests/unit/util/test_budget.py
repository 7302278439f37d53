"""Budgets as users write them, and the errors for those that make no sense."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import coop_jax
from coop_jax._src.util.budget import check_budget


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("512B", 512),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2GB", 2 * 10**9),
        ("2GiB", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512MB", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("1e3 MB", 10**9),
        ("  12  mib  ", 12 * 2**20),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("0.5KiB", 512),
        ("1.9999B", 1),
    ],
)
def test_sizes_are_read_with_si_and_iec_units(text: str, expected_bytes: int) -> None:
    assert coop_jax.parse_bytes(text) == expected_bytes
    assert isinstance(coop_jax.parse_bytes(text), int)


@pytest.mark.parametrize(
    "text",
    "12 parsecs||  |MiB|-1GB|1 GB extra|1..5GB|0|0MiB|0.4B|nan|inf|1e400GB".split("|")
    + "1_000|0x10|1,5GB|Mi|5M|١GB".split("|"),
)
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).+"):
        coop_jax.parse_bytes(text)


def test_the_message_shows_the_text_and_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"'12 parsecs'.*MiB.*for example '512MiB'"):
        coop_jax.parse_bytes("12 parsecs")


@pytest.mark.parametrize("value", [1, 1.5, None, b"1MiB", ["1MiB"]])
def test_parse_bytes_takes_text_only(value: Any) -> None:
    with pytest.raises(TypeError, match="512MiB"):
        coop_jax.parse_bytes(value)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, None),
        (1, 1),
        (2**40, 2**40),
        (np.int64(77), 77),
        ("1KiB", 1024),
        (1.0, 1.0),
        (0.5, 0.5),
        (np.float32(0.25), 0.25),
        ("50%", 0.5),
        (" 12.5 % ", 0.125),
        ("100%", 1.0),
    ],
)
def test_good_budgets_are_taken(budget: Any, expected: Any) -> None:
    found = check_budget(budget)
    assert found == expected
    assert type(found) is type(expected)


BAD = [
    (0, ValueError),
    (-1, ValueError),
    (np.int32(0), ValueError),
    (0.0, ValueError),
    (-0.5, ValueError),
    (1.5, ValueError),
    (float("nan"), ValueError),
    (float("inf"), ValueError),
    (-math.inf, ValueError),
    ("12 parsecs", ValueError),
    ("-1", ValueError),
    ("0.5", ValueError),
    ("0%", ValueError),
    ("120%", ValueError),
    ("50 %%", ValueError),
    (True, TypeError),
    (False, TypeError),
    (np.bool_(True), TypeError),
    ([1], TypeError),
    (1j, TypeError),
    (b"1MiB", TypeError),
    pytest.param(object(), TypeError, id="object"),
]


@pytest.mark.parametrize(("budget", "error"), BAD, ids=lambda x: repr(x)[:30])
@pytest.mark.parametrize("front_end", ["run", "remat_eager", "Runtime"])
def test_bad_budgets_are_refused_before_anything_is_traced(
    front_end: str, budget: Any, error: type[Exception]
) -> None:
    def never(x: Any) -> Any:
        raise AssertionError("traced")

    make = coop_jax.Runtime
    if front_end != "Runtime":
        make = functools.partial(getattr(coop_jax, front_end), never)
    with pytest.raises(error, match=r"(?s)budget|bytes|expected"):
        make(budget=budget)


@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_a_shared_runtime_needs_bytes(budget: float) -> None:
    with pytest.raises(ValueError, match="in bytes"):
        coop_jax.Runtime(budget)  # type: ignore[arg-type]


def test_one_point_oh_is_a_fraction_and_one_is_a_byte() -> None:
    def double(x: Any) -> Any:
        return x * 2

    x = np.ones(4096, np.float32)
    whole = coop_jax.run(double, budget=1.0)
    np.testing.assert_array_equal(whole(x), x * 2)
    assert whole.runtime.budget_bytes >= x.nbytes
    with pytest.raises(coop_jax.BudgetExceededError):
        coop_jax.run(double, budget=1)(x)


@pytest.mark.unless_forced("asserts peaks or counts, which evictions change")
@pytest.mark.parametrize("fraction", [0.9, 0.6])
@pytest.mark.parametrize("front_end", ["run", "remat_eager"])
def test_a_fraction_of_a_program_becomes_bytes(front_end: str, fraction: float) -> None:
    def chain(x: Any) -> Any:
        kept = [x]
        for _ in range(12):
            kept.append(jnp.sin(kept[-1]))
        total = kept[-1]
        for value in reversed(kept):
            total = total * value
        return total

    x = np.ones(4096, np.float32)
    unbudgeted = getattr(coop_jax, front_end)(chain)
    expected = unbudgeted(x)
    step = getattr(coop_jax, front_end)(chain, budget=fraction)
    np.testing.assert_array_equal(step(x), expected)
    peak_bytes = unbudgeted.runtime.stats().peak_bytes
    budget_bytes = step.runtime.budget_bytes
    # Eager code holds what its variables name, which no trace of it knows.
    tolerance = 0.02 if front_end == "run" else 0.1
    assert abs(budget_bytes - fraction * peak_bytes) <= tolerance * peak_bytes
    assert step.runtime.stats().peak_bytes <= budget_bytes


@pytest.mark.parametrize("workspace", [-1, "1 parsec", 1.5, True, 0.5])
def test_a_workspace_that_makes_no_sense_is_refused(workspace: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        coop_jax.Runtime("1MiB", workspace=workspace)


@pytest.mark.parametrize("policy", ["coop ", "COOP", "", "lru"])
def test_an_unknown_policy_is_refused_with_the_names_there_are(policy: str) -> None:
    for make in (coop_jax.run, coop_jax.remat_eager):
        with pytest.raises(ValueError, match=r"'coop', 'dtr', 'dte', 'lookahead'"):
            make(lambda x: x, policy=policy)
    with pytest.raises(TypeError, match="Policy"):
        coop_jax.run(lambda x: x, policy=3)  # type: ignore[arg-type]
