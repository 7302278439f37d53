"""The command `coop-jax`, also `python -m coop_jax`: what users ask of memory, from a shell.

`main` parses arguments, calls a subcommand and turns whatever is raised into a message and an exit
code; begin there. A subcommand is a file (`memory`, `timeline`, `simulate`, `doctor`) with two
functions, `add` for its arguments and `_run`. `targets` finds the user's function and its
arguments, `failures` tells mistakes on the command line from errors of the user's code, `options`
reads budgets and policies, `text` lays out tables. `checks` and `self_test` are what `doctor` does.

Only the answer goes to stdout: what the user's code prints goes to stderr, as do progress and
messages. Imports every other package; nothing imports it.
"""
