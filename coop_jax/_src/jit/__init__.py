"""`coop_jax.jit`: the plan of a program as one XLA program.

`api` is the front end: JAX's own dispatch, which a guard (`compat.guards`) watches. `programs`
makes the program of a signature: `plain_program` is what `jax.jit` makes of it, `program_planner`
plans what JAX traced, with loops left whole (`loops`, `residuals`, `residual_rewrite`), `emission`
writes the plan as a JAX function, `compiled_plans` compiles it, `fitting` goes on until what XLA
needs for that is within the budget. `plan_cache` keeps plans on disk, `report` says what came out.
`budget_search` says which budgets are accepted, and what is planned for them.

XLA places buffers: of a plan lifetimes and sizes count, addresses do not. No runtime, no pool.
"""
