"""Whose an error is, and the exit code that it gets."""

from __future__ import annotations

import pytest

from coop_jax._src.command_line import failures


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ValueError("a\n  b\n\nmore of it"), "coop-jax: error: a b", 2),
        (FileNotFoundError(2, "No such file", "x"), "coop-jax: error: x: No such file", 2),
        (
            RuntimeError("out of memory"),
            "coop-jax: error: RuntimeError: out of memory; --traceback shows where it happened",
            1,
        ),
        (failures.FailureError("it is so"), "coop-jax: error: it is so", 1),
        (KeyboardInterrupt(), "coop-jax: interrupted", 130),
    ],
    ids=lambda x: type(x).__name__,
)
def test_an_error_has_a_message_and_a_code(error: BaseException, message: str, code: int) -> None:
    assert failures.described(error) == (message, code)


def test_a_message_is_not_endless() -> None:
    message, _ = failures.described(ValueError("x" * 10_000))
    assert len(message) < 1000


def test_an_error_with_a_frame_of_a_user_is_the_users() -> None:
    try:
        raise ValueError("planted")
    except ValueError as error:
        message, code = failures.described(error)
    assert message.startswith("Traceback")
    assert code == 1
