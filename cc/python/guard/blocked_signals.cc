#include "cc/python/guard/blocked_signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace nb = nanobind;

namespace coop::python {
namespace {

// Frames of a callback that may lie above one of ours.
constexpr int kMostCallbackFrames = 8;

bool blocked = false;
sigset_t mask_before;

}  // namespace

void BlockSignals(std::span<const int> numbers) {
  if (blocked) return;
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : numbers) sigaddset(&mask, number);
  blocked = pthread_sigmask(SIG_BLOCK, &mask, &mask_before) == 0;
}

void UnblockSignals() {
  if (std::exchange(blocked, false)) pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
}

bool IsOursNear(nb::handle own_files) {
  if (!own_files.is_valid()) return false;
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  for (int depth = 0; frame.is_valid() && depth < kMostCallbackFrames; ++depth) {
    auto* const here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    const nb::object file = nb::steal(PyObject_GetAttrString(code.ptr(), "co_filename"));
    const bool ours = file.is_valid() &&
                      PyUnicode_Tailmatch(file.ptr(), own_files.ptr(), 0, PY_SSIZE_T_MAX, -1) == 1;
    PyErr_Clear();
    if (ours) return true;
    frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return false;
}

}  // namespace coop::python
