"""Train JAX programs under a hard memory budget, without annotations."""

__version__ = "0.1.0"
