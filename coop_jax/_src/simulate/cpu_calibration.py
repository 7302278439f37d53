"""Device profiles by name; that of this CPU by a short run, kept in a file.

Model: three rates: matrix products of float32 (FLOPs), copies larger than caches (bandwidth), tiny
operations (launch). Each is the best of a few runs: what the machine can do, not what it did while
something else was running.
Thread rule: may be called from several threads; each measures, the last one writes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from coop_jax._src.ir import cost_model
from coop_jax._src.simulate import constants
from coop_jax._src.util.options import shown

Profile = str | cost_model.DeviceProfile | None


def cache_file() -> pathlib.Path:
    """Where the profile is kept; in COOP_JAX_CACHE_DIR, if it is set."""
    given = os.environ.get("COOP_JAX_CACHE_DIR")
    folder = pathlib.Path(given) if given else pathlib.Path.home() / ".cache" / "coop_jax"
    return folder / f"cpu-profile-{platform.machine()}-{os.cpu_count()}-jax{jax.__version__}.json"


def profile_of(given: Profile) -> cost_model.DeviceProfile | None:
    """A device profile by name.

    Raises:
      ValueError: an unknown name.
      TypeError: neither a name nor a profile.
    """
    if given is None or isinstance(given, cost_model.DeviceProfile):
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"device_profile must be a name or a coop_jax.DeviceProfile, got {shown(given)}"
        )
    if given == "cpu":
        return cpu_profile()
    if given not in cost_model.PROFILES:
        names = ", ".join(map(repr, [*cost_model.PROFILES, "cpu"]))
        raise ValueError(f"unknown device profile {given!r}; there are {names}")
    return cost_model.PROFILES[given]


def cpu_profile() -> cost_model.DeviceProfile:
    """The profile of this CPU: from the file, or measured (some seconds) and written there."""
    path = cache_file()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return cost_model.DeviceProfile(**data)
    except (OSError, ValueError, TypeError):
        pass  # never measured, or by another version
    profile = measure_cpu()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(profile)) + "\n", encoding="utf-8")
    except OSError:
        pass  # a machine without a home; it is measured again next time
    return profile


def measure_cpu() -> cost_model.DeviceProfile:
    """Measures this CPU; takes a few seconds and about 200 MB."""
    device = jax.devices("cpu")[0]
    with jax.default_device(device):
        n = 1024
        square = jnp.full((n, n), 0.5, jnp.float32)
        large = jnp.ones((1 << 24,), jnp.float32)
        small = jnp.ones((8,), jnp.float32)
        product = _best(lambda x: x @ x, square)
        negated = _best(lambda x: -x, large)
        launch = _best(lambda x: -x, small)
    return cost_model.DeviceProfile(
        "cpu",
        flops_per_second=2.0 * n**3 / product,
        bytes_per_second=2.0 * large.nbytes / negated,
        launch_seconds=launch,
        alignment_bytes=cost_model.CPU.alignment_bytes,
    )


def _best(function: Callable[[Any], Any], argument: jax.Array) -> float:
    jitted = jax.jit(function)
    jax.block_until_ready(jitted(argument))
    best = float("inf")
    for _ in range(constants.TUNED.calibration_runs):
        begin = time.perf_counter()
        jax.block_until_ready(jitted(argument))
        best = min(best, time.perf_counter() - begin)
    return best
