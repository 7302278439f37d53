// A Value: the one handle of a result of a session.
//
// Purpose: the eager front end makes one for each result of each operation. It is a Python type of
//   its own, as to make an instance of a bound class takes several times longer.
// Model: a shape and dtype (`key`, see coop_jax/_src/eager/values.py) over a storage; it holds one
//   reference in the engine. When it goes, that is only noted: this may happen in the middle of
//   anything, even of an engine call.
// Lifetime: Values may outlive the session; they share its list of dead storages. They refer to
//   nothing that refers to them, so Python's collector does not look at them.
// Thread rule: under the interpreter lock.
// Source: ours.

#ifndef COOP_PYTHON_SESSION_VALUE_H_
#define COOP_PYTHON_SESSION_VALUE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/types.h"

namespace coop::python {

// Storages whose last Value is gone, in that order; the session releases them before it goes on.
using DeadList = std::vector<StorageId>;

struct Value {
  std::shared_ptr<DeadList> dead;
  StorageId storage = kNone;  // kNone: an operation took its memory
  int32_t key = -1;           // of shape and dtype
  nanobind::object aval;
};

struct ValueObject {
  PyObject header;
  Value value;
};

// Set when the module is made, and never again.
extern PyTypeObject* value_type;

[[nodiscard]] inline bool IsValue(nanobind::handle x) { return Py_TYPE(x.ptr()) == value_type; }

// Of an object that is one.
[[nodiscard]] inline Value& ValueOf(nanobind::handle x) {
  return reinterpret_cast<ValueObject*>(x.ptr())->value;
}

[[nodiscard]] nanobind::object MakeValue(Value value);

void BindValue(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_SESSION_VALUE_H_
