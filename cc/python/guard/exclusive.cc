#include "cc/python/guard/exclusive.h"

#include <unistd.h>

#include <new>
#include <stdexcept>

namespace nb = nanobind;

namespace coop::python {

Exclusive::Exclusive() : lock_(PyThread_allocate_lock()), process_(getpid()) {
  if (lock_ == nullptr) throw std::bad_alloc();
}

Exclusive::~Exclusive() { PyThread_free_lock(lock_); }

void Exclusive::Enter() {
  const auto here = PyThread_get_thread_ident();
  if (owner_ == here) {
    throw std::runtime_error(
        "this coop_jax runtime is already running a call in this thread: do not call a budgeted "
        "function from a callback inside it; give the inner one its own Runtime");
  }
  if (process_ != getpid()) {  // in a forked process whoever had it is not there
    process_ = getpid();
    lock_ = PyThread_allocate_lock();  // the old one stays as it is
    owner_ = 0;
  }
  if (PyThread_acquire_lock(lock_, NOWAIT_LOCK) == 0) {
    PyLockStatus status = PY_LOCK_FAILURE;
    do {
      Py_BEGIN_ALLOW_THREADS;
      status = PyThread_acquire_lock_timed(lock_, -1, /*intr_flag=*/1);
      Py_END_ALLOW_THREADS;
      if (status == PY_LOCK_INTR && Py_MakePendingCalls() != 0) nb::raise_python_error();
    } while (status == PY_LOCK_INTR);
    if (status != PY_LOCK_ACQUIRED) throw std::runtime_error("a runtime's lock is broken");
  }
  if (closed) {
    PyThread_release_lock(lock_);
    throw std::runtime_error("this coop_jax.Runtime was closed");
  }
  owner_ = here;
}

void Exclusive::Leave() {
  owner_ = 0;
  PyThread_release_lock(lock_);
}

void BindExclusive(nb::module_& module) {
  nb::class_<Exclusive>(module, "Exclusive", "Lets one call at a time into a runtime.")
      .def(nb::init<>())
      .def_rw("closed", &Exclusive::closed);
}

}  // namespace coop::python
