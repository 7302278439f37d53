// A Python context manager that is entered for a scope of C++.
//
// Purpose: annotations of profilers around what C++ does.
// Model: None, or nothing, stands for no context.
// Invariant: what is entered is left, also where something is raised; what leaving raises is lost.
// Thread rule: under the interpreter lock.

#ifndef COOP_PYTHON_SUPPORT_SCOPED_CONTEXT_H_
#define COOP_PYTHON_SUPPORT_SCOPED_CONTEXT_H_

#include <nanobind/nanobind.h>

#include <utility>

namespace coop::python {

class ScopedContext {
 public:
  explicit ScopedContext(nanobind::object context) {
    if (!context.is_valid() || context.is_none()) return;
    context.attr("__enter__")();
    context_ = std::move(context);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext() {
    if (!context_.is_valid()) return;
    nanobind::error_scope raised;  // of the scope that is left
    PyObject* const left =
        PyObject_CallMethod(context_.ptr(), "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == nullptr) PyErr_Clear();
    Py_XDECREF(left);
  }

 private:
  nanobind::object context_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_SCOPED_CONTEXT_H_
