"""Plans: a program, a budget and a state of the pool become actions and places.

`planner` makes a plan of a call with the engine (`_core`); `portfolio` makes several and chooses,
`local_search` improves one, `checkpoint_plans` plans around values that are kept (`keep_choices`);
`workspace` provides for XLA's temporary memory; `pool_state` says where inputs lie; `policies`
name what users choose; `recorded_calls` plans what an eager function did in its last calls, whose
results go where `result_layout` says; `settling` sends results back to the places of the arguments
that they replace; `rematerialized` writes a plan as a program, recomputations included; `constants`
holds what was tuned.

Knows neither arrays nor executables.
"""
