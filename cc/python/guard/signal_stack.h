// A stack for signal handlers of its own, for every thread that computes.
//
// Purpose: oneDNN's matrix product on CPU, compiled at run time for AVX-512, points the stack
//   register at a workspace on the heap while it runs. The kernel puts a handler's frame, 3.6 kB
//   with AVX-512, where that register points: below the workspace, over whatever malloc put there.
//   So any handler, also one that does nothing, corrupts the heap within seconds where the caller's
//   thread computes.
// Model: handlers installed with SA_ONSTACK, as all of Python's are, run on the alternative stack
//   of the thread instead. Computing costs nothing more. Of a handler that other code installed
//   without that flag nothing is known; it is not protected.
// Thread rule: the calling thread's; asked for again it is a look at a thread-local variable.

#ifndef COOP_PYTHON_GUARD_SIGNAL_STACK_H_
#define COOP_PYTHON_GUARD_SIGNAL_STACK_H_

#include <nanobind/nanobind.h>

namespace coop::python {

// Gives the calling thread such a stack until it ends, unless it has one.
void EnsureSignalStack();

void BindSignalStack(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_GUARD_SIGNAL_STACK_H_
