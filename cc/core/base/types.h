// Words shared by every part of the engine.
//
// A *storage* is the unit that is placed, pinned and evicted. A *block* is a range of the pool,
// free or holding one storage. An *operation* with its input edges is the *recipe* of its outputs.
// Ids are small integers that index records inside the engine. An id is recycled once its record
// is dead, so a caller must not keep ids it has released. kNone stands for "no id" everywhere.
//
// Thread rule: plain values; nothing here is shared.
#ifndef COOP_CORE_BASE_TYPES_H_
#define COOP_CORE_BASE_TYPES_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace coop {

using StorageId = int32_t;
using OperationId = int32_t;
using BlockId = int32_t;

inline constexpr int32_t kNone = -1;

// How the cost of evicting one storage is scored (c: projected cost, s: staleness, b: bytes).
enum class Heuristic : uint8_t {
  kCoop,       // c / s; the window accounts for sizes (paper section 3.3)
  kDtr,        // c / (b * s)
  kDte,        // c / ((b + free bytes beside it) * s)
  kLookahead,  // as Coop, but s is the time until it is read next, where that is known
};

// How the evicted neighbourhood in the projected cost is found.
enum class NeighborhoodMode : uint8_t {
  kUnionFind,  // components of evicted storages; never less than the exact one
  kExact,      // walks the evicted ancestors and descendants; the reference
  kAncestors,  // the evicted ancestors alone: what bringing it back would run
  kAwaited,    // them, and those descendants that something held still waits for
};

struct Policy {
  Heuristic heuristic = Heuristic::kCoop;
  NeighborhoodMode neighborhood = NeighborhoodMode::kUnionFind;
  bool sliding_window = true;      // off: evict the least score, rescan, until a block fits
  bool cheap_partitioning = true;  // off: every allocation is leftmost
  bool in_place = true;            // off: in-place outputs are copy-on-write
  // Debug: every Run begins by evicting everything evictable, so that every input is recomputed.
  bool evict_always = false;
  // Off: what its owner lets go of is dropped, even if something evicted will be made from it.
  bool keep_demanded = true;
  // Off: what nothing holds any more, recomputed on the way to something else, is scored like
  // anything else (as published). On: it costs nothing and goes first.
  bool unheld_first = true;
  // For front ends that know the program, the engine does not look at it: so many operations may be
  // planned in search of plans that are better than the policy's own.
  int64_t search_effort = 0;

  friend bool operator==(const Policy&, const Policy&) = default;

  static Policy Coop() { return {}; }
  static Policy Lookahead() {
    Policy policy{Heuristic::kLookahead, NeighborhoodMode::kAncestors};
    policy.search_effort = 1'000'000;
    return policy;
  }
  static Policy Dtr() {
    return {Heuristic::kDtr, NeighborhoodMode::kUnionFind, false, false, false, false};
  }
  static Policy Dte() {
    return {Heuristic::kDte, NeighborhoodMode::kUnionFind, false, false, false, false};
  }
};

struct EngineOptions {
  int64_t capacity_bytes = 0;    // of the pool; may be huge (1 << 50) to mean "no budget"
  int64_t alignment_bytes = 64;  // a power of two
  Policy policy;
  // Operations that cost at least this much per output byte are placed from the left.
  double expensive_seconds_per_byte = 0.0;
  // Seconds since anything; times the searches. Null: they are not timed.
  std::function<double()> timer;
  // Projected costs are kept from the first search on, not before: for a front end that expects
  // none. What was evicted and died by then no longer joins what is around it.
  bool costs_from_first_search = false;
  // A request that would bring EngineStats::recomputations above this fails; 0: any number.
  int64_t max_recomputations = 0;
  // The same for those that were tried, also where what they were for failed and they were undone:
  // a bound on how long the engine may take. 0: any number.
  int64_t max_tried_recomputations = 0;
  // A request fails that would recompute more than this many times as many operations as have run
  // (and kRecomputeAllowance besides); kRecomputeTries times as many may be tried. 0: any number.
  double max_recompute = 0;
  static constexpr int64_t kRecomputeAllowance = 1024;
  static constexpr int64_t kRecomputeTries = 6;  // one for each attempt at an operation
  // The executor can copy within the pool: what is treasured is moved out of the way of a window.
  bool may_move = false;
};

// At which end of the pool to look for room, where the front end knows better than the policy.
enum class SideHint : uint8_t { kByPolicy, kLeft, kRight };

// Of a value outside the pool, as a budget counts it.
[[nodiscard]] constexpr int64_t RoundUpOutside(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// One output of an operation that is being added.
struct OutputSpec {
  int64_t bytes = 0;
  bool outside = false;  // lives outside the pool, is never evicted, only counted
  // Position of the input whose block the output may take. By setting it the caller promises that
  // this Run is the input's last use: its refs are 1, held for this use, and Release(input) is the
  // next thing it does with it after the Run. (With other refs the output gets a fresh block.)
  int32_t in_place_input = kNone;
  SideHint side = SideHint::kByPolicy;
  int64_t place = kNone;  // an aligned offset to take where nothing of use lies; kNone: anywhere
};

// Where one output of a run lies.
struct Placement {
  StorageId storage = kNone;       // kNone: scratch, free again directly after the run
  int64_t offset = -1;             // -1: outside the pool
  int32_t in_place_input = kNone;  // position of the input whose block it takes over
  friend bool operator==(const Placement&, const Placement&) = default;
};

enum class ActionKind : uint8_t {
  kEvict = 0,  // drop the memory of storage `id`; it may come back
  kRun = 1,    // run operation `id` with its outputs at the placements
  kDrop = 2,   // drop the memory of storage `id`; it is dead
  kMove = 3,   // copy storage `id` to the offset of its placement, where nothing lies
};

struct Action {
  ActionKind kind = ActionKind::kEvict;
  int32_t id = kNone;
  bool recompute = false;       // kRun: the operation has run before
  int32_t first_placement = 0;  // kRun, kMove: into placements(), in output order
  int32_t placement_count = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

enum class FailureReason : uint8_t {
  kNoFailure,
  kNoSpace,    // no run of free and evictable blocks is large enough
  kThrashing,  // recomputation did not come to an end within its bound
  kLimit,      // more would be recomputed than EngineOptions::max_recompute allows
};

// Why a block of the pool is held.
enum class HoldReason : uint8_t {
  kEvictable,   // it could be evicted
  kRead,        // an operation reads it that is to run, or that waits for its other operands
  kPermanent,   // its recipe was given up: a result, or made from what was overwritten
  kNoRecipe,    // a source, or the output of an operation that is never repeated
  kOutput,      // placed for the operation that is to run
  kReservation  // by Reserve
};

// A block of the pool that was held when a request failed.
struct HeldBlock {
  HoldReason reason = HoldReason::kEvictable;
  StorageId storage = kNone;  // kNone for kOutput and kReservation
  int64_t offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const HeldBlock&, const HeldBlock&) = default;
};

// Why the last failed request failed, measured when it did (before the roll-back).
struct Failure {
  FailureReason reason = FailureReason::kNoFailure;
  int64_t requested_bytes = 0;
  int64_t capacity_bytes = 0;
  int64_t in_use_bytes = 0;              // in the pool, reservations included
  int64_t pinned_bytes = 0;              // of those, what could not be evicted then
  int64_t largest_free_block_bytes = 0;  //
  int64_t largest_window_bytes = 0;      // largest run of free and evictable neighbours
  OperationId operation = kNone;         // the one that was to run (perhaps a recomputation)
  std::vector<HeldBlock>
      held;  // in address order; together in_use_bytes, all but kEvictable pinned
};

// Counters since the engine was made. All but search_seconds are deterministic.
struct EngineStats {
  int64_t operations = 0;      // first runs
  int64_t recomputations = 0;  // operations run again
  int64_t evictions = 0;       // to make room (not those of storages nobody references)
  double compute_seconds = 0;  // by the cost model
  double recompute_seconds = 0;
  int64_t searches = 0;       // requests that found no block
  double search_seconds = 0;  // time to choose what to evict and to evict it in the books
  // Free bytes / pool bytes when a request found no block, before evicting.
  double fragmentation_sum = 0;
  double fragmentation_max = 0;
  int64_t fragmentation_count = 0;
  int64_t in_use_bytes = 0;       // blocks of the pool except reservations
  int64_t outside_bytes = 0;      // counted, not in the pool
  int64_t reserved_bytes = 0;     // by Reserve
  int64_t peak_in_use_bytes = 0;  // greatest in_use_bytes + outside_bytes so far
  int64_t peak_outside_bytes = 0;
  int64_t peak_pool_bytes = 0;  // greatest in_use_bytes so far
};

// A range of the pool.
struct Range {
  int64_t offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

}  // namespace coop

#endif  // COOP_CORE_BASE_TYPES_H_
