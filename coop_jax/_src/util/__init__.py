"""What every other package may use: errors, switches, budgets as written, interrupts, progress.

- `errors`: what coop_jax raises, and how a failed plan becomes a message.
- `env`: environment variables that turn things on or off.
- `budget`, `options`, `call_arguments`: what users write, checked where it is given.
- `interrupts`, `progress`, `incremental_work`: long work that users can watch and stop.
- `calling_convention`, `closures`, `mutations`, `library_jits`: how a function takes its arguments,
  what it closes over or changes in place, and what other libraries' `jit` make of it.
- `recent`: caches that forget what was not asked for in a while; `droppable`: what can be told to.

Imports `compat` and the extension, nothing else of coop_jax.
"""
