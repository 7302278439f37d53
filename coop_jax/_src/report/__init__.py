"""What users see of memory: `memory`, an account of any JAX program before it runs.

`accepted` makes a compiled program of what users have, `arguments` names and sorts its arguments,
`xla_buffers` lists what XLA keeps in memory and when, `live_set` finds the fullest moment,
`memory_report` holds the account, `text` and `html` show it, `elsewhere` finds arrays that the
process holds beside it. `api` puts them together; begin there.

A `buffers.Buffer` is the one record of memory that all of them share.
Imports every other package; none imports it.
"""
