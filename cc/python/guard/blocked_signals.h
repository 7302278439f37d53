// Signals that stay with the system until the caller has stored what a call returned.
//
// Purpose: an exception of a handler that runs between the end of a call and the bytecode that
//   stores its result would take the result with it.
// Model: a mask of the main thread, kept while it is set. When the caller goes on is seen by the
//   frame that is at work between two bytecodes.
// Thread rule: the main thread, under the interpreter lock. Complexity: O(1).

#ifndef COOP_PYTHON_GUARD_BLOCKED_SIGNALS_H_
#define COOP_PYTHON_GUARD_BLOCKED_SIGNALS_H_

#include <nanobind/nanobind.h>

#include <span>

namespace coop::python {

// Blocks signals in this thread; nothing if some are blocked already.
void BlockSignals(std::span<const int> numbers);

// Gives back the mask of before; nothing if none are blocked.
void UnblockSignals();

// Whether a frame of files whose names begin so is at work, or one that was called from there: a
// callback of the garbage collector, a destructor.
bool IsOursNear(nanobind::handle own_files);

}  // namespace coop::python

#endif  // COOP_PYTHON_GUARD_BLOCKED_SIGNALS_H_
