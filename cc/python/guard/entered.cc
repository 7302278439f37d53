#include "cc/python/guard/entered.h"

#include <array>

#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

PyObject* variable = nullptr;  // a contextvars.ContextVar, for as long as the process runs

nb::object Now() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, nullptr, &value) != 0) nb::raise_python_error();
  return value == nullptr ? nb::object(nb::tuple()) : nb::steal(value);
}

void Set(nb::handle entered) { Steal(PyContextVar_Set(variable, entered.ptr())); }

PyObject* Enter(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) noexcept {
  if (count != 1) {
    PyErr_SetString(PyExc_TypeError, "__enter__ takes no arguments");
    return nullptr;
  }
  try {
    nb::list entered(Now());
    entered.append(nb::handle(given[0]));
    Set(nb::tuple(entered));
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
  Py_INCREF(given[0]);
  return given[0];
}

PyObject* Exit(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) noexcept {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "__exit__ takes what was raised");
    return nullptr;
  }
  try {
    const nb::object entered = Now();
    nb::list left;
    size_t last = nb::len(entered);
    while (last > 0 && !nb::object(entered[last - 1]).is(nb::handle(given[0]))) --last;
    for (size_t i = 0; i < nb::len(entered); ++i) {
      if (i + 1 != last) left.append(entered[i]);
    }
    Set(nb::tuple(left));
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace

void BindEntered(nb::module_& module) {
  variable = PyContextVar_New("coop_jax_entered", nullptr);
  if (variable == nullptr) nb::raise_python_error();
  module.attr("entered") = nb::borrow(variable);
  static std::array<PyMethodDef, 2> methods{{
      {"__enter__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Enter)), METH_FASTCALL,
       nullptr},
      {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Exit)), METH_FASTCALL,
       nullptr},
  }};
  // As functions of a class: bound to the instance that they are asked of.
  const nb::object enter = Steal(PyCFunction_New(&methods[0], nullptr));
  const nb::object exit = Steal(PyCFunction_New(&methods[1], nullptr));
  module.attr("enter") = Steal(PyInstanceMethod_New(enter.ptr()));
  module.attr("exit") = Steal(PyInstanceMethod_New(exit.ptr()));
}

}  // namespace coop::python
