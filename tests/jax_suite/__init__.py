"""JAX's own tests, run under `coop_jax.remat_eager`; see README.md."""
