// Lists that are made once and are mostly very short.
//
// Purpose: what an operation is lies in memory that the operation before has driven out of the
//   caches; each list on its own would be one more place to wait for.
// Model: up to N items lie in the object itself, more are elsewhere. Items do not change.
// Thread rule: none.

#ifndef COOP_PYTHON_SUPPORT_SMALL_VECTOR_H_
#define COOP_PYTHON_SUPPORT_SMALL_VECTOR_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace coop::python {

template <typename T, size_t N>
class ShortList {
 public:
  ShortList() = default;
  explicit ShortList(std::vector<T> items) : size_(items.size()) {
    if (size_ <= N) {
      std::move(items.begin(), items.end(), here_.begin());
    } else {
      elsewhere_ = std::move(items);
    }
  }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] const T* begin() const { return size_ <= N ? here_.data() : elsewhere_.data(); }
  [[nodiscard]] const T* end() const { return begin() + size_; }
  [[nodiscard]] const T& operator[](size_t i) const { return begin()[i]; }

 private:
  size_t size_ = 0;
  std::array<T, N> here_{};
  std::vector<T> elsewhere_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_SMALL_VECTOR_H_
