// Small helpers over Python objects, for the session.
//
// Thread rule: under the interpreter lock.

#ifndef COOP_PYTHON_OBJECTS_H_
#define COOP_PYTHON_OBJECTS_H_

#include <nanobind/nanobind.h>

#include <cstddef>

namespace coop::python {

// A new reference, or the Python error that there is instead.
inline nanobind::object Steal(PyObject* object) {
  if (object == nullptr) nanobind::raise_python_error();
  return nanobind::steal(object);
}

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

#endif  // COOP_PYTHON_OBJECTS_H_
