// Addresses for what is there for known stretches of time.
//
// Model. An item takes a run of bytes of the pool from `begin` up to `end` (moments, in any unit);
// items that are there at the same time must not overlap, and none is ever moved. Some have an
// address already. Items are placed one after the other, each in the lowest room (or the highest,
// as the item's side says) that those already placed leave for as long as it is there. In which
// order is what decides, so several are tried; what found no room comes earlier in the next pass,
// and perhaps on the other side.
//
// An engine that places as it goes cannot do that: it does not know for how long what it places
// will stay. Where as much is alive as the pool holds, that is the difference between a plan and
// none.
//
// Invariants: what is returned fits: no two items overlap, all lie within the pool, addresses given
// are kept. Deterministic.
// Thread rule: functions of their arguments. Complexity: a pass looks for each item at all that are
// there with it.
// Source: dynamic storage allocation; first fit in order of size or time as compilers do it, and
// what found no room first in the next pass, after Joslin and Clements, "Squeaky Wheel
// Optimization" (1999).
#ifndef COOP_CORE_POOL_OFFSET_PACKING_H_
#define COOP_CORE_POOL_OFFSET_PACKING_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/core/base/types.h"

namespace coop {

struct PackedItem {
  int32_t begin = 0;
  int32_t end = 0;  // the first moment at which it is gone
  int64_t bytes = 0;
  int64_t offset = kNone;  // kNone: to be found
};

// The offset of each item; none if no way was found within so many passes. Bytes and offsets
// given must be multiples of a common alignment if those returned are to be. At most
// `most_neighbors` pairs of items may be there at the same time: more are not tried.
[[nodiscard]] std::optional<std::vector<int64_t>> Pack(const std::vector<PackedItem>& items,
                                                       int64_t capacity_bytes, int32_t passes,
                                                       int64_t most_neighbors = int64_t{1} << 24);

}  // namespace coop

#endif  // COOP_CORE_POOL_OFFSET_PACKING_H_
