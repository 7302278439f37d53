"""Tests: `unit` mirrors `coop_jax/_src`, `behaviour` uses the public API; helpers in `testing`."""
