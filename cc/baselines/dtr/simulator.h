// The simulator without addresses: evicts one storage at a time from memory that is only counted.
//
// Purpose. A check of our baselines against the simulator that the authors of DTR published: the
// same operations must give the same overhead, to the last digit. It is not a way to run programs.
//
// Why it stands apart from Engine. It has no blocks, so no placement, no fragmentation, no windows
// and no in-place updates. Its rules differ from the engine's where the engine is right to differ:
// a storage costs the sum of all operations that made aliases of it; an operation with several
// outputs counts in the cost of each; an alias dies with its storage and is recomputed by itself; a
// rematerialised dead storage stays; a mutation is a new storage; evicting stops at a score of 0;
// time is whole nanoseconds. The neighbourhoods differ too (neighborhood.h).
//
// Model. A program is a list of operations over tensors and a schedule: run the next operation,
// take a reference to a tensor, release one, bring a tensor back and pin it. Tensor ids number the
// results of the operations in order. Result k of an operation is a new storage of result_bytes[k],
// or, where result_alias[k] >= 0, an alias of that argument's storage, of no size of its own.
//
// The rules. The clock starts at 1 and advances by the cost of every operation run, again or not.
// An operation accesses its arguments when it is asked for, before what is missing is recomputed,
// and its results when it has run the first time; staleness is the clock minus the last access.
// Missing arguments come back in order, those that are there are locked before. Room for all
// results is made before the operation: the pool of unlocked storages is scanned in the order in
// which they were unlocked, the least score (on a tie the last) is evicted, one at a time; a score
// of 0 ends a scan. A storage that loses its last reference is evicted at once, unless it is
// pinned.
//
// Invariants: bytes in use <= budget, except that nothing is checked without a budget; a locked
// storage is resident; the pool holds the resident storages that nobody locks.
// Thread rule: a function of its arguments. Complexity: O(pool * neighbours) for every eviction.
// Source: the DTR paper, appendix C (its simulator); ours, section 4.1 (baselines).
#ifndef COOP_BASELINES_DTR_SIMULATOR_H_
#define COOP_BASELINES_DTR_SIMULATOR_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/types.h"

namespace coop {

// What a storage scores; the least is evicted. c: its own cost, b: bytes, s: staleness.
enum class FungibleHeuristic : uint8_t {
  kDtr,        // (c + evicted descendants + evicted ancestors) / (b * s)
  kUnionFind,  // (c + components of evicted neighbours) / (b * s)
  kLocal,      // c / (b * s)
  kLru,        // the last access
  kSize,       // 1 / b
  kMsps,       // (c + evicted ancestors) / b
};

enum class FungibleStep : uint8_t {
  kRun = 0,      // the next operation; the id is its number
  kRetain = 1,   // tensor id
  kRelease = 2,  // tensor id
  kPin = 3,      // tensor id; brought back first if it is missing
};

struct FungibleProgram {
  std::vector<int64_t> op_cost_ns;
  std::vector<int32_t> op_arg_begin;  // one more than operations, as in Program
  std::vector<int32_t> op_args;       // tensor ids
  std::vector<int32_t> op_result_begin;
  std::vector<int64_t> result_bytes;  // by tensor id; 0 for aliases
  std::vector<int32_t> result_alias;  // by tensor id: position of the argument, or kNone
  std::vector<uint8_t> step_kinds;    // FungibleStep
  std::vector<int32_t> step_ids;

  [[nodiscard]] int32_t operation_count() const { return static_cast<int32_t>(op_cost_ns.size()); }
  [[nodiscard]] int32_t tensor_count() const { return static_cast<int32_t>(result_bytes.size()); }
};

struct FungibleOptions {
  FungibleHeuristic heuristic = FungibleHeuristic::kDtr;
  int64_t budget_bytes = -1;        // -1: no budget
  int64_t recompute_limit_ns = -1;  // recomputing more than that fails; -1: no limit
  // Pinned storages go with their last reference too, as in the authors' run without a budget,
  // whose peak their budgets are fractions of.
  bool release_pinned = false;
};

enum class FungibleStatus : uint8_t { kOk, kOutOfMemory, kThrashing };

struct FungibleResult {
  FungibleStatus status = FungibleStatus::kOk;
  int64_t clock_ns = 1;  // when it ended or failed
  int64_t compute_ns = 0;
  int64_t recompute_ns = 0;
  int64_t peak_bytes = 0;
  int64_t operations = 0;
  int64_t recomputations = 0;
  int64_t evictions = 0;  // to make room
  int64_t scores = 0;     // evaluations of the heuristic
};

// Throws std::invalid_argument for a program that is malformed: indices out of range, negative
// costs or sizes, sums past 2^62, an argument that is no earlier result, a step on a tensor that
// does not exist yet, a release or reference of a storage that has no references left.
[[nodiscard]] FungibleResult SimulateFungible(const FungibleProgram& program,
                                              const FungibleOptions& options);

}  // namespace coop

#endif  // COOP_BASELINES_DTR_SIMULATOR_H_
