// Arrays that sessions are done with, kept to be donated to what is written at their place next.
//
// Purpose: to import a slot anew takes longer than all else that an operation needs of us.
// Model: one array for each place in the pool and kind of array (see coop_jax/_src/values.py). It
//   owns no memory and is never read; what lies at its place may be anybody's.
// Invariants: no array here shares its buffer with an array that somebody else has.
// Thread rule: under the interpreter lock. Complexity: O(1); when there are very many, all go.
// Source: ours; as the cells of a replayed plan (replay.h).

#ifndef COOP_PYTHON_SLOT_CELLS_H_
#define COOP_PYTHON_SLOT_CELLS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "cc/core/check.h"

namespace coop::python {

class SlotCells {
 public:
  // An array to donate; invalid if none is kept.
  [[nodiscard]] nanobind::object Take(int64_t offset, int32_t key) {
    const auto found = cells_.find({offset, key});
    if (found == cells_.end()) return {};
    nanobind::object array = std::move(found->second);
    cells_.erase(found);
    // The user may delete any array that JAX lists as alive.
    if (nanobind::cast<bool>(array.attr("is_deleted")())) return {};
    return array;
  }

  void Keep(int64_t offset, int32_t key, nanobind::object array) {
    if (cells_.size() >= kMost) Clear();
    cells_.insert_or_assign({offset, key}, std::move(array));
  }

  void Clear() {
    const auto gone = std::exchange(cells_, {});  // what letting go of them runs may come back here
  }

  [[nodiscard]] size_t size() const { return cells_.size(); }

 private:
  static constexpr size_t kMost = 1 << 14;
  using Place = std::pair<int64_t, int32_t>;
  struct Hash {
    size_t operator()(const Place& place) const {
      return static_cast<size_t>(HashValues(0, place.first, place.second));
    }
  };

  std::unordered_map<Place, nanobind::object, Hash> cells_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SLOT_CELLS_H_
