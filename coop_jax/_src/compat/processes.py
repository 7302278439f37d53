"""Processes that run one program together (`jax.distributed`): whether they agree.

Thread rule: all processes call it, in the same order.
"""

from __future__ import annotations

import hashlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from coop_jax._src.compat import compiled_memory


def spans_processes(compiled: jax.stages.Compiled) -> bool:
    """Whether a program runs on devices of several processes."""
    shardings = compiled_memory.shardings_of(compiled)
    return len({d.process_index for s in shardings for d in s.device_set}) > 1


def agree(text: str) -> bool:
    """Whether all processes say the same."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint32)
    every = np.asarray(multihost_utils.process_allgather(digest))
    return bool((every.reshape(-1, digest.size) == digest).all())
