// Small helpers over Python objects, for the session.
//
// Thread rule: under the interpreter lock.

#ifndef COOP_PYTHON_SUPPORT_PY_OBJECTS_H_
#define COOP_PYTHON_SUPPORT_PY_OBJECTS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>

namespace coop::python {

// A new reference, or the Python error that there is instead.
inline nanobind::object Steal(PyObject* object) {
  if (object == nullptr) nanobind::raise_python_error();
  return nanobind::steal(object);
}

// The name of an attribute, made once.
class Name {
 public:
  explicit Name(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  [[nodiscard]] nanobind::object Of(nanobind::handle x) const {
    return Steal(PyObject_GetAttr(x.ptr(), name_));
  }
  // What the method of this name returns.
  [[nodiscard]] nanobind::object CalledOn(nanobind::handle x) const {
    return Steal(PyObject_CallMethodNoArgs(x.ptr(), name_));
  }

 private:
  PyObject* name_;  // for as long as the process runs
};

// What a type has to read an attribute of its instances by (a slot, a property), found once.
class Descriptor {
 public:
  explicit Descriptor(nanobind::object descriptor)
      : descriptor_(std::move(descriptor)),
        get_(reinterpret_cast<descrgetfunc>(
            PyType_GetSlot(Py_TYPE(descriptor_.ptr()), Py_tp_descr_get))) {
    if (get_ == nullptr) throw nanobind::type_error("a descriptor is needed");
  }
  // Of an instance of the type that it is of.
  [[nodiscard]] nanobind::object Of(nanobind::handle x) const {
    return Steal(get_(descriptor_.ptr(), x.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(x.ptr()))));
  }

 private:
  nanobind::object descriptor_;
  descrgetfunc get_;
};

// The items of a list or tuple, which must not change meanwhile.
class Sequence {
 public:
  explicit Sequence(nanobind::handle items)
      : owner_(Steal(PySequence_Fast(items.ptr(), "operands must be a list or tuple"))) {}
  [[nodiscard]] size_t size() const {
    return static_cast<size_t>(PySequence_Fast_GET_SIZE(owner_.ptr()));
  }
  [[nodiscard]] nanobind::handle operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(owner_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  nanobind::object owner_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_PY_OBJECTS_H_
