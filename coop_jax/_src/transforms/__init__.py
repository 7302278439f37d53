"""JAX's transformations (`grad`, `vmap`, ...) around functions under a budget.

`budgeted_call` is the primitive that such a function is bound to, and its rules; `residuals` keeps
between forward and backward pass what there is room for. Front ends bring how to run a function
(`run.transformed_calls`, `eager.transformed_calls`).
"""
