"""`remat_eager`: operations run as Python reaches them, on buffers of the pool.

`api` is the front end. `trace` is what JAX sees: tracers whose operations come to a `session`,
which lives for one call of one function. Its inner half is C++ (`cc/python/session`) and comes
first; what that does not know, and calls that are taken apart, `interpreter` does.
`session_protocol` says what these two need of it. `operation_cache` knows operations again,
`equation_steps` runs those that are several, `values` are what tracers hold, `session_inputs` what
came from outside, `beside` what is not in the pool, `lessons` what earlier calls did,
`transformed_calls` calls under `jax.grad` and the like, `compaction` moves values apart, `needs`
finds what a function needs before its first call.
"""
