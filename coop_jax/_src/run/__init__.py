"""`run`: a function traced, planned and carried out again for each call.

`api` is the front end, `specialization` what is known of one signature of it. `argument_passing`
and `call_trees` read arguments, `donation` says which donated ones somebody else reads,
`planned_call` runs a plan, `fast_path` one that was run before, `dynamic_call` what depends on
values. `tiering` chooses among `segment_candidates`. `previews` tells costs before a call, `advice`
what to do where one does not fit. `transformed_calls` are calls under `jax.grad` and the like.
`budget_queries` has `min_budget` and `sweep`, which answer for `coop_jax.jit`, too.
"""
