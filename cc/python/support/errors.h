// Python errors as objects, to be kept and raised later.
//
// Thread rule: under the interpreter lock.

#ifndef COOP_PYTHON_SUPPORT_ERRORS_H_
#define COOP_PYTHON_SUPPORT_ERRORS_H_

#include <nanobind/nanobind.h>

namespace coop::python {

// The exception that is set, which is cleared.
inline nanobind::object TakeError() {
#if PY_VERSION_HEX >= 0x030C0000
  return nanobind::steal(PyErr_GetRaisedException());
#else
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nanobind::steal(value);
#endif
}

// Sets an exception.
inline void SetError(nanobind::object error) {
#if PY_VERSION_HEX >= 0x030C0000
  PyErr_SetRaisedException(error.release().ptr());
#else
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(error.ptr()));
  Py_INCREF(type);
  PyObject* const trace = PyException_GetTraceback(error.ptr());
  PyErr_Restore(type, error.release().ptr(), trace);
#endif
}

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_ERRORS_H_
