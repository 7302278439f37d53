"""`remat_eager`: operations run as Python reaches them, on buffers of the pool.

`api` is the front end. `trace` is what JAX sees: tracers whose operations come to `interpreter`,
which gives them to a `session`, one call of one function; its hot half is C++
(`cc/python/session`). `session_protocol` says what these two need of it. `operation_cache` knows
operations again, `equation_steps` runs those that are several, `values` are what tracers hold,
`session_inputs` what came from outside, `beside` what is not in the pool, `lessons` what earlier
calls did, `transformed_calls` calls under `jax.grad` and the like, `compaction` moves values apart,
`needs` finds what a function needs before its first call.
"""
