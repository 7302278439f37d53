"""What users see of memory: an account of any JAX program, and timelines of steps.

`memory`, an account before a program runs: `accepted` makes a compiled program of what users have,
`arguments` names and sorts its arguments, `xla_buffers` lists what XLA keeps in memory and when,
`live_set` finds the fullest moment, `memory_report` holds the account, `text` shows it,
`elsewhere` finds arrays that the process holds beside it. `api` puts them together; begin there.
A `buffers.Buffer` is the one record of memory that all of them share.

Timelines of steps, simulated or recorded: `timeline` has the public `Timeline`; `timeline_data` is
what it consists of, wherever it comes from (`plan_timeline`, `recording`). `timeline_page` and
`page/` make the page, `memory_viz`, `perfetto` and `figure` the other files.

Imports every other package but the command line, which alone imports it.
"""
