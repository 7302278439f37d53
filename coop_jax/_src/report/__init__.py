"""What users see of memory: the timeline of a step, and the files that show it.

`timeline` has the public `Timeline`; `timeline_data` is what it consists of, wherever it comes from
(`plan_timeline`, `recording`). `html` and `page/` make the page, `memory_viz`, `perfetto` and
`figure` the other files.

Imports every other package; nothing imports it.
"""
