// Objects that are entered with `with`, the innermost last, in the current context.
//
// Purpose: what a `with` block makes current must not stay so where an exception is raised between
//   two bytecodes of `__enter__` or `__exit__`. Here are none.
// Model: a context variable holds a tuple, so threads and tasks of asyncio have their own, and a
//   task that is begun inside a block sees what is entered there.
// Thread rule: under the interpreter lock. Complexity: linear in the depth.

#ifndef COOP_PYTHON_GUARD_ENTERED_H_
#define COOP_PYTHON_GUARD_ENTERED_H_

#include <nanobind/nanobind.h>

namespace coop::python {

void BindEntered(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_GUARD_ENTERED_H_
