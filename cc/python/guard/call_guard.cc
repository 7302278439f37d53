#include "cc/python/guard/call_guard.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "cc/python/guard/blocked_signals.h"
#include "cc/python/guard/exclusive.h"
#include "cc/python/guard/signal_stack.h"
#include "cc/python/support/errors.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr std::array<int, Interrupts::kWatched> kSignals = {
    SIGINT, SIGALRM, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGCHLD};

// An undo that raises so often does not come to its end.
constexpr int kMostAttempts = 1000;

// So often what is raised while something is handed over is handed over, too.
constexpr int kMostHandovers = 8;

constexpr const char* kLost =
    "coop_jax: donated arguments of this call were already overwritten or freed; they cannot be "
    "used again.";

// Python's functions and the numbers of signals, found once.
struct Signals {
  Signals() {
    const nb::module_ module = nb::module_::import_("_signal");
    get = module.attr("getsignal");
    set = module.attr("signal");
    default_handler = module.attr("default_int_handler");
    for (size_t i = 0; i < kSignals.size(); ++i) numbers[i] = nb::int_(kSignals[i]);
  }
  nb::object get, set, default_handler;
  std::array<nb::object, kSignals.size()> numbers;
  nb::object arrived;    // what replaces handlers
  nb::object hand_over;  // called with what a call that is over held: an exception or None
  nb::object take_left;  // raises what was handed over and not raised yet
  bool left = false;     // whether there is something
  nb::object own_files;  // what the names of our own files begin with
};

Signals& TheSignals() {
  static Signals* const signals = new Signals();  // Python's objects: never freed
  return *signals;
}

Interrupts* active = nullptr;  // of the main thread; under the interpreter lock

bool ending = false;  // a call that blocked signals has not ended yet

bool IsMainThread() {
#ifdef __APPLE__
  return pthread_main_np() != 0;
#else
  return getpid() == static_cast<pid_t>(syscall(SYS_gettid));
#endif
}

// The later of two errors is raised; the earlier one is what it came of.
nb::object Later(nb::object later, nb::object earlier) {
  if (!later.is_valid()) return earlier;
  if (earlier.is_valid() && !later.is(earlier)) {
    PyException_SetContext(later.ptr(), earlier.release().ptr());
  }
  return later;
}

// Calls a function until it has come to its end. What was raised meanwhile, invalid if nothing was.
nb::object Complete(PyObject* function, PyObject* const* arguments, size_t count) {
  nb::object raised;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    PyObject* const result = PyObject_Vectorcall(function, arguments, count, nullptr);
    if (result != nullptr) {
      Py_DECREF(result);
      break;
    }
    raised = Later(TakeError(), std::move(raised));
  }
  return raised;
}

}  // namespace

// --- Interrupts ---

Interrupts* Interrupts::Active() { return IsMainThread() ? active : nullptr; }

void Interrupts::Enter() {
  consumed = interrupted_ = active_ = false;
  held_.reset();
  if (active != nullptr || !IsMainThread()) return;  // a call inside another: that one's wait
  Signals& signals = TheSignals();
  if (signals.left) {
    if (PyObject_CallNoArgs(signals.take_left.ptr()) == nullptr) nb::raise_python_error();
  }
  active = this;
  active_ = true;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    nb::object handler = Steal(PyObject_CallOneArg(signals.get.ptr(), signals.numbers[i].ptr()));
    if (!PyCallable_Check(handler.ptr()) || handler.is(signals.arrived)) continue;
    struct sigaction before{};
    sigaction(kSignals[i], nullptr, &before);
    PyObject* const arguments[] = {signals.numbers[i].ptr(), signals.arrived.ptr()};
    handlers_[i] = std::move(handler);
    PyObject* const old = PyObject_Vectorcall(signals.set.ptr(), arguments, 2, nullptr);
    if (old == nullptr) {  // one that arrived before: nothing has begun
      handlers_[i].reset();
      const nb::object error = TakeError();
      Leave();
      UnblockSignals();
      SetError(error);
      nb::raise_python_error();
    }
    Py_DECREF(old);
    sigaction(kSignals[i], &before, nullptr);  // with what `signal.siginterrupt` set
  }
  UnblockSignals();  // where a caller in C goes from call to call
}

void Interrupts::Leave() {
  if (!active_) return;
  Signals& signals = TheSignals();
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (!handlers_[i].is_valid()) continue;
    const nb::object now =
        nb::steal(PyObject_CallOneArg(signals.get.ptr(), signals.numbers[i].ptr()));
    if (!now.is(signals.arrived)) {  // the user's code has set another one meanwhile
      PyErr_Clear();
      handlers_[i].reset();
      continue;
    }
    struct sigaction before{};
    sigaction(kSignals[i], nullptr, &before);
    PyObject* const arguments[] = {signals.numbers[i].ptr(), handlers_[i].ptr()};
    // It may raise what another handler raises, before it has done anything.
    if (nb::object raised = Complete(signals.set.ptr(), arguments, 2); raised.is_valid()) {
      held_ = Later(std::move(raised), std::move(held_));
    }
    sigaction(kSignals[i], &before, nullptr);
    handlers_[i].reset();
  }
  active_ = false;
  active = nullptr;
}

void Interrupts::Arrived(int number, nb::handle signal, nb::handle frame) {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != number || !handlers_[i].is_valid()) continue;
    if (handlers_[i].is(TheSignals().default_handler)) {
      interrupted_ = true;
      return;
    }
    const nb::object handler = handlers_[i];
    PyObject* const arguments[] = {signal.ptr(), frame.ptr()};
    PyObject* const result = PyObject_Vectorcall(handler.ptr(), arguments, 2, nullptr);
    if (result == nullptr) {
      Hold();
    } else {
      Py_DECREF(result);
    }
    return;
  }
}

void Interrupts::Hold() { held_ = Later(TakeError(), std::move(held_)); }

void Interrupts::Check() {
  if (!noted()) return;
  if (held_.is_valid()) {
    SetError(std::move(held_));
    held_ = nb::object();
  } else {
    interrupted_ = false;
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
  nb::raise_python_error();
}

nb::object Interrupts::TakeHeld() {
  if (held_.is_valid()) return std::exchange(held_, nb::object());
  if (std::exchange(interrupted_, false)) return nb::none();
  return {};
}

namespace {

// The note that arguments are gone, unless the error has it.
void AddNote(nb::handle error) {
  const nb::object notes = nb::getattr(error, "__notes__", nb::none());
  if (!notes.is_none() && nb::cast<bool>(notes.attr("__contains__")(kLost))) return;
  error.attr("add_note")(kLost);
}

// What is held goes to the caller once it has the results, or the error that there is instead; so
// does what is raised meanwhile. Returns what cannot be handed over.
nb::object HandOver(nb::object held) {
  for (int attempt = 0; attempt < kMostHandovers && held.is_valid(); ++attempt) {
    PyObject* const arguments[] = {held.ptr()};
    TheSignals().left = true;
    nb::object raised = Complete(TheSignals().hand_over.ptr(), arguments, 1);
    if (!raised.is_valid()) return {};
    held = held.is_none() ? std::move(raised) : Later(std::move(raised), std::move(held));
  }
  return held;
}

// Run between two bytecodes: signals arrive again once the caller's frame goes on, whose next
// bytecodes store what the call returned.
int UnblockOnceStored(void* /*nothing*/) {
  if (active != nullptr || ending) return 0;  // another call has begun: its end sees to it
  if (IsOursNear(TheSignals().own_files) && Py_AddPendingCall(&UnblockOnceStored, nullptr) == 0)
    return 0;
  UnblockSignals();
  return 0;
}

// Until the caller has what a call returned that took its arguments no handler runs: what is raised
// before it is stored would take the results with it.
class BlockedUntilStored {
 public:
  explicit BlockedUntilStored(bool needed) : needed_(needed) {
    if (needed_) {
      ending = true;
      BlockSignals(kSignals);
    }
  }
  BlockedUntilStored(const BlockedUntilStored&) = delete;
  BlockedUntilStored& operator=(const BlockedUntilStored&) = delete;
  ~BlockedUntilStored() {
    if (!needed_) return;
    ending = false;
    if (Py_AddPendingCall(&UnblockOnceStored, nullptr) != 0) UnblockSignals();
  }

 private:
  bool needed_;
};

// The end of a call: `result`, or the error that is set.
PyObject* End(PyObject* result, PyObject* undo, Interrupts* interrupts, Exclusive* exclusive) {
  nb::object error;
  if (result == nullptr) error = TakeError();
  if (error.is_valid() && undo != Py_None) {
    error = Later(Complete(undo, nullptr, 0), std::move(error));
  }
  nb::object held;
  bool consumed = false;
  const BlockedUntilStored until_stored(interrupts != nullptr && interrupts->consumed &&
                                        interrupts->waits() && !error.is_valid());
  if (interrupts != nullptr) {
    interrupts->Leave();
    held = interrupts->TakeHeld();
    consumed = interrupts->consumed;
  }
  if (exclusive != nullptr) exclusive->Leave();
  if (error.is_valid() && consumed) AddNote(error);
  if (held.is_valid()) {
    if (!error.is_valid() && !consumed) {  // nothing is lost: it can be called again
      if (held.is_none()) {
        held = nb::steal(PyObject_CallNoArgs(PyExc_KeyboardInterrupt));
      }
      error = std::move(held);
    } else if (nb::object raised = HandOver(std::move(held)); raised.is_valid()) {
      error = Later(std::move(raised), std::move(error));
    }
  }
  if (!error.is_valid()) return result;
  Py_XDECREF(result);
  SetError(std::move(error));
  return nullptr;
}

// guarded(exclusive, interrupts, undo, function, *arguments)
PyObject* Guarded(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) noexcept {
  if (count < 4) {
    PyErr_SetString(PyExc_TypeError, "guarded takes a lock, interrupts, an undo and a function");
    return nullptr;
  }
  EnsureSignalStack();
  Exclusive* exclusive = nullptr;
  Interrupts* interrupts = nullptr;
  try {
    if (given[0] != Py_None) exclusive = nb::cast<Exclusive*>(nb::handle(given[0]));
    if (given[1] != Py_None) interrupts = nb::cast<Interrupts*>(nb::handle(given[1]));
    if (exclusive != nullptr) exclusive->Enter();
    if (interrupts != nullptr) {
      try {
        interrupts->Enter();
      } catch (...) {
        if (exclusive != nullptr) exclusive->Leave();
        throw;
      }
    }
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  PyObject* const result =
      PyObject_Vectorcall(given[3], given + 4, static_cast<size_t>(count - 4), nullptr);
  try {
    return End(result, given[2], interrupts, exclusive);
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* Arrived(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) noexcept {
  if (count == 2 && active != nullptr) {
    active->Arrived(static_cast<int>(PyLong_AsLong(given[0])), given[0], given[1]);
  }
  Py_RETURN_NONE;
}

int RaiseNow(void* error) {
  SetError(nb::steal(static_cast<PyObject*>(error)));
  if (active == nullptr) return -1;
  active->Hold();  // a call has begun meanwhile
  return 0;
}

}  // namespace

void BindCallGuard(nb::module_& module) {
  nb::class_<Interrupts>(module, "Interrupts", "Handlers of signals that wait, in one call.")
      .def(nb::init<>())
      .def("check", &Interrupts::Check)
      .def_prop_ro("noted", &Interrupts::noted)
      .def_rw("consumed", &Interrupts::consumed);

  BindExclusive(module);

  static std::array<PyMethodDef, 2> functions{{
      {"guarded", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Guarded)), METH_FASTCALL,
       nullptr},
      {"arrived", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Arrived)), METH_FASTCALL,
       nullptr},
  }};
  module.attr("guarded") = Steal(PyCFunction_New(&functions[0], nullptr));
  TheSignals().arrived = Steal(PyCFunction_New(&functions[1], nullptr));

  module.def("check_interrupts", [] {
    if (Interrupts* const here = Interrupts::Active(); here != nullptr && !here->consumed) {
      here->Check();
    }
  });
  module.def(
      "set_handover",
      [](nb::object hand_over, nb::object take_left, nb::str own_files) {
        TheSignals().own_files = std::move(own_files);
        TheSignals().hand_over = std::move(hand_over);
        TheSignals().take_left = std::move(take_left);
      },
      nb::arg("hand_over"), nb::arg("take_left"), nb::arg("own_files"));
  module.def(
      "nothing_is_left", [] { TheSignals().left = false; },
      "Nothing was handed over, or it was raised.");
  module.def(
      "raise_in_main_thread",
      [](nb::object error) { return Py_AddPendingCall(&RaiseNow, error.release().ptr()) == 0; },
      nb::arg("error"), "Raises an exception in the main thread between two bytecodes.");
}

}  // namespace coop::python
