// What a call leaves as it was, whatever is raised at whatever moment.
//
// Purpose: an exception may be raised between any two bytecodes of Python (a signal's handler that
//   raises, PyThreadState_SetAsyncExc of another thread), also inside `__enter__`, `__exit__` and
//   `finally`. What has to be undone after a call is therefore begun and ended here, where none is.
// Model: Guarded calls a Python function. Before: the lock of a runtime, if one is given, and the
//   handlers of signals, if they are to wait. After, in any case: `undo`, a Python function that
//   may be called again and again, is called until it has come to its end; handlers and lock are
//   given back. While handlers wait (Interrupts), those of Python's that were installed are run as
//   signals arrive, but what they raise is held: Check raises it where the state is consistent. A
//   call that took donated arguments is finished; what is held then follows once the caller has the
//   results (see coop_jax/_src/util/interrupts.py).
// Invariants: what a handler raises is raised once; a handler is called once for each signal, but
//   Python's own of SIGINT, which is only noted and called later.
// Thread rule: under the interpreter lock. Handlers are those of the main thread. Complexity: O(1);
// a look at each of ten handlers.

#ifndef COOP_PYTHON_GUARD_CALL_GUARD_H_
#define COOP_PYTHON_GUARD_CALL_GUARD_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>

namespace coop::python {

// Handlers of signals that wait, in one call.
class Interrupts {
 public:
  // Signals whose handlers may raise; others' are left as they are.
  static constexpr size_t kWatched = 10;

  // Raises what an earlier call left, or what a handler raises now.
  void Enter();
  // Gives the handlers back. What handlers that did not wait raised meanwhile is held.
  void Leave();
  // Whether handlers wait for this one.
  [[nodiscard]] bool waits() const { return active_; }
  // Raises what is held, if there is something.
  void Check();
  [[nodiscard]] bool noted() const { return interrupted_ || held_.is_valid(); }
  // The error that is set now is held.
  void Hold();
  // What is held, to be raised later: an exception, None for Python's own of SIGINT; invalid if
  // there is nothing.
  [[nodiscard]] nanobind::object TakeHeld();

  // A donated array is gone: the call has to finish.
  bool consumed = false;

  // Those of the call that runs in the main thread, null if there is none.
  [[nodiscard]] static Interrupts* Active();
  // Called by Python for a signal.
  void Arrived(int number, nanobind::handle signal, nanobind::handle frame);

 private:
  bool active_ = false;
  bool interrupted_ = false;  // by SIGINT, where its handler is Python's own
  nanobind::object held_;
  std::array<nanobind::object, kWatched> handlers_;  // that were installed; invalid: not replaced
};

void BindCallGuard(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_GUARD_CALL_GUARD_H_
