// A runtime's lock: one call at a time.
//
// Model: a lock that knows which thread of which process has it. A call from inside a call of the
//   same thread is an error, not a deadlock; in a forked process the lock is free.
// Thread rule: under the interpreter lock, which is let go while a thread waits. Complexity: O(1).

#ifndef COOP_PYTHON_GUARD_EXCLUSIVE_H_
#define COOP_PYTHON_GUARD_EXCLUSIVE_H_

#include <nanobind/nanobind.h>
#include <pythread.h>

#include <cstdint>

namespace coop::python {

// Lets one call at a time into a runtime that is not closed.
class Exclusive {
 public:
  Exclusive();
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;
  ~Exclusive();

  // Raises if this thread is in a call already, or if the runtime was closed.
  void Enter();
  void Leave();

  bool closed = false;

 private:
  PyThread_type_lock lock_;
  unsigned long owner_ = 0;  // NOLINT(google-runtime-int): the type of Python's thread numbers
  int64_t process_ = 0;
};

void BindExclusive(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_GUARD_EXCLUSIVE_H_
