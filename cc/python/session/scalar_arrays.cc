#include "cc/python/session/scalar_arrays.h"

#include <cstring>

#include "cc/core/base/check.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {

bool ScalarArrays::Has(nb::handle x) const {
  return x.type().is(type_) && nb::cast<int64_t>(ndim_.Of(x)) == 0;
}

ScalarArrays::Kind ScalarArrays::KindOf(nb::handle x) const {
  static const Name dtype("dtype"), weak_type("weak_type");
  nb::object aval = aval_.Of(x);
  if (aval.is_none()) aval = x.attr("aval");
  return {dtype.Of(aval), nb::cast<bool>(weak_type.Of(aval))};
}

bool ScalarArrays::ReadInto(nb::handle x, void* to) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(x.ptr(), &buffer, PyBUF_SIMPLE) == 0) {
    const bool fits = buffer.len <= static_cast<Py_ssize_t>(kMostBytes);
    if (fits) std::memcpy(to, buffer.buf, static_cast<size_t>(buffer.len));
    PyBuffer_Release(&buffer);
    return fits;
  }
  PyErr_Clear();  // dtypes that NumPy does not know itself have no buffers
  const auto bytes = nb::cast<nb::bytes>(x.attr("tobytes")());
  if (bytes.size() > kMostBytes) return false;
  std::memcpy(to, bytes.c_str(), bytes.size());
  return true;
}

nb::object ScalarArrays::CopyOf(nb::handle x) {
  const Kind kind = KindOf(x);
  Content content{.dtype = reinterpret_cast<uintptr_t>(kind.dtype.ptr()),
                  .weak_type = kind.weak_type};
  if (!ReadInto(x, content.words.data())) return x.attr("copy")();
  const auto found = copies_.find(content);
  if (found != copies_.end()) return found->second;
  nb::object copy = x.attr("copy")();
  if (!copy.attr("dtype").is(kind.dtype)) return copy;
  if (copies_.size() >= kMost) Clear();
  return copies_.emplace(content, std::move(copy)).first->second;
}

void ScalarArrays::Clear() {
  const auto gone = std::exchange(copies_, {});  // what letting go of them runs may come back here
}

size_t ScalarArrays::Hash::operator()(const Content& content) const {
  return static_cast<size_t>(
      HashValues(content.dtype, content.weak_type, content.words[0], content.words[1]));
}

}  // namespace coop::python
