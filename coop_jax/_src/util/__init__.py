"""What every other package may use: errors, switches, budgets as written, interrupts, progress.

- `errors`: what coop_jax raises, and how a failed plan becomes a message.
- `env`: environment variables that turn things on or off.
- `budget`, `options`, `call_arguments`: what users write, checked where it is given.
- `interrupts`, `progress`, `incremental_work`: long work that users can watch and stop.
- `recent`: caches that forget what was not asked for in a while.

Imports `compat` and the extension, nothing else of coop_jax.
"""
