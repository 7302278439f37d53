// What is cheapest to keep in memory at one moment of a program, and to make again otherwise.
//
// Model: while an operation runs, what it reads and makes is in memory, and so is what came from
// outside and is read later. Of what operations before it have made and others read later, each
// storage is kept, or its operation runs again later; and what runs again finds its inputs kept, or
// made again, too. Which of all ways within a number of bytes costs least seconds of operations is
// hard to say (a knapsack); with a price of memory in seconds per byte instead of a limit it is a
// minimum cut: source to what is read later, each storage to its operation for the price of its
// bytes, each operation to what it reads, and to the sink for its seconds. The price is found by
// bisection: the lowest at which what is kept fits. Where operations are equal but for their place
// (layers), the later ones are made a trifle dearer, or all of them would change sides at one
// price.
//
// Such a set is a guide for a plan, not a plan: where things lie, and what else has to be in memory
// while something is made again, is left to the engine. Where the program is written around what is
// kept (checkpoint_plan.h), its bytes are known for every moment, so there the price is found by
// those.
//
// Thread rule: functions of their arguments. Complexity: some forty maximum flows (Dinic) in a
// graph of the operations before the moment and their storages. Source: one stage of the
// mixed-integer program of Jain et al., "Checkmate" (MLSys 2020), relaxed by Lagrange; a closure
// problem in the sense of Picard (1976), so that cuts solve it.
#ifndef COOP_CORE_PLANNER_MIN_CUT_KEEP_SET_H_
#define COOP_CORE_PLANNER_MIN_CUT_KEEP_SET_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/planner/plan.h"

namespace coop {

struct Keeping {
  // By storage: whether it was made before the moment and is to be kept over it.
  std::vector<uint8_t> kept;
  // By storage that is kept: the operation by which all that is made from it again was read once;
  // kNone for the others (see PlanOptions::held_for).
  std::vector<int32_t> held_for;
  int64_t kept_bytes = 0;
  double recompute_seconds = 0;  // of what runs again, once each
};

// The operation while which most bytes are alive in the pool if nothing is recomputed. The first of
// several; 0 in a program without any.
[[nodiscard]] int32_t FullestMoment(const Program& program);
// Those bytes.
[[nodiscard]] int64_t FullestBytes(const Program& program);

// For each of `pool_bytes`, in any order: what to keep while operation `moment` runs. Everything if
// it fits, as little as possible if not even that fits. What `anyway` names (by storage; empty:
// none) is kept in any case where it is made before the moment. The program must be well formed.
[[nodiscard]] std::vector<Keeping> CheapestToKeep(const Program& program, int32_t moment,
                                                  const std::vector<int64_t>& pool_bytes);

// The same where what is kept tells the bytes in the pool otherwise: what is kept (by storage) at
// the lowest price of memory at which `bytes_with` it are at most `pool_bytes`, at the highest if
// they never are; then, for each of `shares`, what is kept if so much of its bytes may be. What
// `anyway` names (by storage; empty: none) is kept in any case where it is made before the moment.
// An operation that nothing before the moment depends on costs nothing to run after it. The program
// must be well formed.
[[nodiscard]] std::vector<std::vector<uint8_t>> CheapestWithin(
    const Program& program, int32_t moment, int64_t pool_bytes, const std::vector<double>& shares,
    const std::vector<uint8_t>& anyway,
    const std::function<int64_t(const std::vector<uint8_t>& kept)>& bytes_with);

}  // namespace coop

#endif  // COOP_CORE_PLANNER_MIN_CUT_KEEP_SET_H_
