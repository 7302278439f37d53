"""What runs plans: the runtime and its pool, executables, the executor, statistics.

`runtime` holds the budget, the pool (`pool_memory`) and the counters (`stats`) of some calls;
`homes` says which runtime a call runs in, `function_settings` what a function under a budget was
given, `wrapped_function` puts another library's `jit` around it. `plan_lowering` makes instructions
(`instructions`) of a plan, which `executor` carries out in Python and `native_replay` in C++.
`executables` are what XLA compiled, `executable_cache` keeps them, `compilation` compiles several
together, `donation_probe` sees whether XLA writes where it is told. `fitting` makes plans again
until they fit with the workspace of what they launch. `verification` compares what is recomputed
with what was there.
"""
