// Plans around checkpoints: all that a program has made up to its fullest moment and reads later is
// kept over it or made again, by operations that become part of the program.
//
// Model. Left to itself the engine evicts what is in the way, when it is in the way. Where memory
// is very short what it needs lies scattered by then, and what is made again takes along what is
// worth keeping. So the program is written differently: up to the moment what is not kept goes with
// its last use, which leaves the pool in one piece; after it the operations that make it run once
// more, just before the first operation that reads what they make, and in their order, so that all
// that reads it shares it. That is what a program with `jax.checkpoint` does. What is not kept and
// only read after the moment is not made before it at all: its operation waits until then, and runs
// once. How much is alive at which time is known now, so if it fits addresses are found for all of
// it ahead (offline_placement.h). The program is planned like any other (values may be evicted
// besides), and the plan is told in terms of the program itself: what ran once more is a
// recomputation.
//
// Narrow cuts are moments before the fullest one that few bytes are alive over: with those kept,
// nothing is made again from further back than from the cut before.
//
// Thread rule: functions of their arguments. Complexity: linear in the program, but for the plan.
// Source: ours; checkpoints as in Chen et al., "Training Deep Nets with Sublinear Memory Cost"
// (2016).
#ifndef COOP_CORE_PLANNER_CHECKPOINT_PLAN_H_
#define COOP_CORE_PLANNER_CHECKPOINT_PLAN_H_

#include <cstdint>
#include <vector>

#include "cc/core/planner/plan.h"

namespace coop {

// Of several cuts that are equally narrow.
enum class Cut : uint8_t { kFirst, kLast };

// By storage: whether it is alive over one of the narrow cuts that divide what operations up to
// `moment` make for later ones into about so many parts of equal bytes, or is made after the last
// of them. The program must be well formed, parts at least 1.
[[nodiscard]] std::vector<uint8_t> AliveOverNarrowCuts(const Program& program, int32_t moment,
                                                       int32_t parts, Cut cut = Cut::kLast);

struct Checkpoints {
  std::vector<uint8_t> kept;     // by storage
  int64_t pool_bytes = 0;        // most that are alive in the pool in the program around them
  double recompute_seconds = 0;  // of what runs once more
};

// What is cheapest to keep, so that the program written around it never has more than `pool_bytes`
// alive in the pool; as little as possible if that is too much, too. Then, for each of `shares`,
// the same with so much of its bytes: where little is alive for most of the time addresses are
// found more easily. With `parts` > 0 what is alive over narrow cuts is kept in any case. The
// program must be well formed and not empty.
[[nodiscard]] std::vector<Checkpoints> CheckpointsWithin(const Program& program, int64_t pool_bytes,
                                                         const std::vector<double>& shares,
                                                         int32_t parts, Cut cut = Cut::kLast);

// The same, much faster: what is alive over the narrow cuts is kept, for each number of parts,
// however much that is; then only what of it is needed to make a later part again than its own. (A
// recurrent layer hands on its state, and besides all its results to the next layer. Those are
// alive over all its cuts, but once the next layer's inputs are kept nothing later needs them.)
[[nodiscard]] std::vector<Checkpoints> CheckpointsAtCuts(const Program& program,
                                                         const std::vector<int32_t>& parts,
                                                         Cut cut = Cut::kLast);

// MakePlan where options.checkpoints is not empty. Not feasible (kThrashing) also where the plan
// would have a storage in memory twice, or write over an input that is read once more, or, if only
// packed plans are wanted, where no addresses are found ahead.
[[nodiscard]] Plan PlanAroundCheckpoints(const Program& program, const PlanOptions& options);

}  // namespace coop

#endif  // COOP_CORE_PLANNER_CHECKPOINT_PLAN_H_
