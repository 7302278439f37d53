"""What JAX sees of an eager call: a `Trace` that runs each primitive at once, and its tracers.

`trace` and `tracers` belong together. `scope` makes a trace current. `operators` and
`array_methods` give tracers what arrays have; `linearization_cache` and `residual_release` speed up
`jax.grad` and let go of what a backward pass has read; `key_trace` and `known_values` answer JAX's
questions.

Touches JAX's private parts, as `compat` does: nobody else may.
"""
