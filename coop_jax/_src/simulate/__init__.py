"""What a budget will cost, told without memory of the device and without running anything.

`simulator` plans with the runtime's own planner; `budget_search` looks for the smallest budget;
`traced_program` and `program_files` hold programs apart from JAX; `measured_costs` and
`cpu_calibration` say what operations take; `dtr` reads the logs of DTR's authors.

Never imports what runs programs (executor, pool memory, sessions): a test looks.
"""
