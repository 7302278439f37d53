#include "cc/python/scalar_arrays.h"

#include <cstring>

#include "cc/core/check.h"
#include "cc/python/objects.h"

namespace nb = nanobind;

namespace coop::python {

bool ScalarArrays::Has(nb::handle x) const {
  return x.type().is(type_) && nb::cast<int64_t>(x.attr("ndim")) == 0;
}

ScalarArrays::Kind ScalarArrays::KindOf(nb::handle x) {
  const nb::object aval = x.attr("aval");
  return {aval.attr("dtype"), nb::cast<bool>(aval.attr("weak_type"))};
}

nb::object ScalarArrays::CopyOf(nb::handle x) {
  const Kind kind = KindOf(x);
  const auto bytes = nb::cast<nb::bytes>(x.attr("tobytes")());
  if (bytes.size() > kMostBytes) return x.attr("copy")();
  Content content{.dtype = reinterpret_cast<uintptr_t>(kind.dtype.ptr()),
                  .weak_type = kind.weak_type};
  std::memcpy(content.words.data(), bytes.c_str(), bytes.size());
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
