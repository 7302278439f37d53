"""Comparison of results to the last bit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def bits_of(tree: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of every leaf: equal only if all bits are, NaNs included."""
    leaves = []
    for leaf in jax.tree_util.tree_leaves(tree):
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaf = np.asarray(leaf)
        leaves.append((str(leaf.dtype), leaf.shape, leaf.tobytes()))
    return leaves


def assert_same_bits(found: Any, expected: Any) -> None:
    """Fails, naming the first leaf that differs."""
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for number, (a, b) in enumerate(zip(bits_of(found), bits_of(expected), strict=True)):
        assert a[:2] == b[:2], f"leaf {number}: dtype and shape {a[:2]}, expected {b[:2]}"
        assert a[2] == b[2], f"leaf {number} of {a[:2]}: bits differ"
