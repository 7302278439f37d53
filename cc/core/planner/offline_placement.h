// Where all that a program makes may lie, if it fits without evicting anything.
//
// Model. The program is planned once in a pool without end, which tells how long everything is
// there and what takes over whose place; that is packed (offset_packing.h) around what lies
// somewhere already: inputs, blocks of others, reservations. A planner that is told these places
// (PlanOptions::places) finds each of them free when it asks for it.
//
// Thread rule: functions of their arguments. Complexity: a plan without searches, and the packing.
// Source: ours.
#ifndef COOP_CORE_PLANNER_OFFLINE_PLACEMENT_H_
#define COOP_CORE_PLANNER_OFFLINE_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "cc/core/planner/plan.h"

namespace coop {

// By storage: its offset; kNone for what lies outside, is an input, or takes over the place of
// another storage. Empty if no way was found. The program must be well formed.
[[nodiscard]] std::vector<int64_t> PackedPlaces(const Program& program, const PlanOptions& options);

}  // namespace coop

#endif  // COOP_CORE_PLANNER_OFFLINE_PLACEMENT_H_
