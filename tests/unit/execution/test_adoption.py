"""Donated arguments that lie outside the pool are copied into it."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import coop_jax
from coop_jax._src.execution import constants, executor

LEAST = constants.TUNED.least_returned_bytes


@pytest.mark.parametrize(("elements", "returns"), [(1 << 10, 0), (LEAST // 4, 3)])
def test_memory_is_returned_to_the_system_where_it_is_much(
    monkeypatch: pytest.MonkeyPatch, elements: int, returns: int
) -> None:
    """It takes milliseconds, and so does filling again what XLA's libraries had there."""
    returned: list[None] = []
    monkeypatch.setattr(executor._core, "return_freed_memory", lambda: returned.append(None))
    step = coop_jax.run(lambda x: x * 2 + 1, donate_argnums=0)
    for k in range(3):
        given = jax.device_put(np.full(elements, k, np.float32))
        assert float(step(given)[0]) == 2 * k + 1
        assert given.is_deleted()
    assert len(returned) == returns
