// Arrays that sessions are done with, kept to be donated to what is written at their place next, or
// to read what lies there.
//
// Purpose: to import a slot anew takes longer than all else that an operation needs of us.
// Model: one array for each place in the pool and kind of array (see
// coop_jax/_src/eager/values.py). It
//   owns no memory and is not read while it is here; what lies at its place may be anybody's. What
//   a view of one kind as another is made by is kept here, too, as sessions last for one call.
// Invariants: no array here shares its buffer with an array that somebody else has.
// Thread rule: under the interpreter lock. Complexity: O(1); when there are very many, all go.
// Source: ours; as the cells of a replayed plan (plan_replay.h).

#ifndef COOP_PYTHON_MEMORY_SLOT_CELLS_H_
#define COOP_PYTHON_MEMORY_SLOT_CELLS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/python/memory/last_offsets.h"
#include "cc/python/support/py_objects.h"

namespace coop::python {

class SlotCells {
 public:
  // An array to donate or to read; invalid if none is kept.
  [[nodiscard]] nanobind::object Take(int64_t offset, int32_t key) {
    const auto found = cells_.find({offset, key});
    if (found == cells_.end() || !found->second.is_valid()) return {};
    nanobind::object array = std::move(found->second);  // the place stays: it is kept again soon
    // The user may delete any array that JAX lists as alive.
    static const Name is_deleted("is_deleted");
    if (nanobind::cast<bool>(is_deleted.CalledOn(array))) return {};
    return array;
  }

  void Keep(int64_t offset, int32_t key, nanobind::object array) {
    const auto found = cells_.find({offset, key});
    if (found != cells_.end()) {
      std::swap(found->second, array);
      return;
    }
    if (cells_.size() >= kMost) Clear();
    cells_.emplace(Place{offset, key}, std::move(array));
  }

  // The SlotSpec by which an array of one kind is seen as another, None where it can be taken as it
  // is; invalid until it is assigned.
  [[nodiscard]] nanobind::object& ViewSpec(int32_t from, int32_t to) {
    return view_specs_[{from, to}];
  }

  void Clear() {
    const auto gone = std::exchange(cells_, {});  // what letting go of them runs may come back here
  }

  // Places and kinds that something is, or was, kept for.
  [[nodiscard]] size_t size() const { return cells_.size(); }

  LastPlaces places;  // so that what is kept is of use again

 private:
  static constexpr size_t kMost = 1 << 14;
  using Place = std::pair<int64_t, int32_t>;
  struct Hash {
    size_t operator()(const Place& place) const {
      return static_cast<size_t>(HashValues(0, place.first, place.second));
    }
  };

  std::unordered_map<Place, nanobind::object, Hash> cells_;
  std::unordered_map<Place, nanobind::object, Hash> view_specs_;  // of few kinds: those in use
};

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_SLOT_CELLS_H_
