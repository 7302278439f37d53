// Where the operations of the last calls put their results.
//
// Purpose: an array over a place in the pool is dear to make, and kept for the next time something
//   of its kind lies there (slot_cells.h). First fit alone moves everything when one thing moves,
//   and what a call returns lies elsewhere each time, so that calls would not come to the same
//   places again for a long time.
// Model: calls are taken for repetitions of each other. What a call reads is what the one before
//   returned, so an operation is asked to go where it went in the call before that. Whether it
//   can is the engine's to say: these are wishes, and nothing depends on them.
// Thread rule: under the interpreter lock. Complexity: O(1) an operation.
// Source: ours.

#ifndef COOP_PYTHON_MEMORY_LAST_OFFSETS_H_
#define COOP_PYTHON_MEMORY_LAST_OFFSETS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/types.h"

namespace coop::python {

class LastPlaces {
 public:
  // A call begins.
  void Begin() {
    now_ = 1 - now_;
    next_ = 0;
  }
  // Where the next operation of this call went in the call before the last; kNone if that was not
  // `what`, an address, or went nowhere.
  [[nodiscard]] int64_t Next(const void* what) const {
    const std::vector<Place>& places = calls_[now_];
    return next_ < places.size() && places[next_].what == what ? places[next_].offset : kNone;
  }
  // It went there.
  void Went(const void* what, int64_t offset) {
    std::vector<Place>& places = calls_[now_];
    if (next_ < places.size()) {
      places[next_] = {what, offset};
    } else if (next_ < kMost) {
      places.push_back({what, offset});
    }
    ++next_;
  }

 private:
  static constexpr size_t kMost = 1 << 16;
  struct Place {
    const void* what = nullptr;
    int64_t offset = kNone;
  };

  std::array<std::vector<Place>, 2> calls_;  // in turn
  size_t now_ = 0;
  size_t next_ = 0;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_LAST_OFFSETS_H_
