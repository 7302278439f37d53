// Arrays without dimensions that JAX makes of literals, as operands.
//
// Purpose: `x * 0.5` gives an operation such an array, made anew each time. To ask Python what its
//   key is, and NumPy for a copy (the class has Python code that runs for each), takes as long as
//   the rest of what an operation needs of us; so do the attributes that are written in Python.
// Model: what an operation depends on is the dtype and weak type; the content is given at each
//   launch. Whoever has the array may write into it, so what a recipe keeps is a copy, the same one
//   for equal contents.
// Invariants: copies are never written to.
// Thread rule: under the interpreter lock. Complexity: O(1); when very many are known, all go.
// Source: ours.

#ifndef COOP_PYTHON_SESSION_SCALAR_ARRAYS_H_
#define COOP_PYTHON_SESSION_SCALAR_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "cc/python/support/py_objects.h"

namespace coop::python {

class ScalarArrays {
 public:
  // `type`: NumPy's arrays with an abstract value as their attribute `aval`. `aval`: its
  // descriptor, or that of a slot which has it or None.
  ScalarArrays(nanobind::object type, nanobind::object aval)
      : type_(std::move(type)), ndim_(type_.attr("ndim")), aval_(std::move(aval)) {}

  // Whether it is of that type itself, and without dimensions.
  [[nodiscard]] bool Has(nanobind::handle x) const;
  struct Kind {
    nanobind::object dtype;
    bool weak_type = false;
  };
  // Of one that it has.
  [[nodiscard]] Kind KindOf(nanobind::handle x) const;
  [[nodiscard]] nanobind::object CopyOf(nanobind::handle x);
  void Clear();

 private:
  static constexpr size_t kMost = 4096;
  static constexpr size_t kMostBytes = 16;  // the widest are of complex numbers
  struct Content {
    uintptr_t dtype = 0;
    uint64_t weak_type = 0;
    std::array<uint64_t, kMostBytes / sizeof(uint64_t)> words{};
    bool operator==(const Content&) const = default;
  };
  // The content; false where it is too large.
  static bool ReadInto(nanobind::handle x, void* to);
  struct Hash {
    size_t operator()(const Content& content) const;
  };

  nanobind::object type_;
  Descriptor ndim_;
  Descriptor aval_;
  std::unordered_map<Content, nanobind::object, Hash> copies_;  // which keep their dtypes alive
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SESSION_SCALAR_ARRAYS_H_
