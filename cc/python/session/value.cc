#include "cc/python/session/value.h"

#include <array>
#include <new>
#include <utility>

#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {

PyTypeObject* value_type = nullptr;

namespace {

void Deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Value& value = ValueOf(self);
  if (value.storage != kNone) value.dead->push_back(value.storage);
  value.~Value();
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* Storage(PyObject* self, void*) { return PyLong_FromLong(ValueOf(self).storage); }
PyObject* Key(PyObject* self, void*) { return PyLong_FromLong(ValueOf(self).key); }
PyObject* Aval(PyObject* self, void*) { return Py_NewRef(ValueOf(self).aval.ptr()); }

}  // namespace

nb::object MakeValue(Value value) {
  auto* const self = PyObject_New(ValueObject, value_type);
  if (self == nullptr) nb::raise_python_error();
  new (&self->value) Value(std::move(value));
  return nb::steal(reinterpret_cast<PyObject*>(self));
}

void BindValue(nb::module_& module) {
  static std::array<PyGetSetDef, 4> properties{{
      {"storage", Storage, nullptr, nullptr, nullptr},
      {"aval", Aval, nullptr, nullptr, nullptr},
      {"key", Key, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  }};
  static char doc[] = "One result of a session: a shape and dtype over a storage.";
  static std::array<PyType_Slot, 4> slots{{
      {Py_tp_dealloc, reinterpret_cast<void*>(&Deallocate)},
      {Py_tp_getset, properties.data()},
      {Py_tp_doc, doc},
      {0, nullptr},
  }};
  static PyType_Spec spec{
      .name = "coop_jax._core.Value",
      .basicsize = sizeof(ValueObject),
      .itemsize = 0,
      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
      .slots = slots.data(),
  };
  const nb::object type = Steal(PyType_FromSpec(&spec));
  module.attr("Value") = type;
  value_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.ptr()));
}

}  // namespace coop::python
