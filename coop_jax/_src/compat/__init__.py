"""JAX's and XLA's private parts, and nothing of ours: what changes with their versions lives here.

`jaxprs`, `arrays`, `contexts`, `refs`, `calls` are what most others use of it. `hlo`,
`hlo_messages`, `hlo_instructions`, `buffer_assignment`, `library_memory` read what XLA made of a
program. `transforms` has the rules that a primitive needs. `holders` finds out who else holds an
array's memory.

Imports nothing of coop_jax but the extension.
"""
