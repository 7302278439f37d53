// When the operations of a program read each storage, so that the engine can be told.
//
// Model: time is the program's: the cost of the operations before. What the program returns is read
// at the end. What it neither reads again nor returns, but somebody may still hold, is read never.
// Thread rule: functions of their arguments. Complexity: linear in the program.
// Source: ours (see next_use.h).
#ifndef COOP_CORE_PLANNER_NEXT_USES_H_
#define COOP_CORE_PLANNER_NEXT_USES_H_

#include <vector>

#include "cc/core/planner/plan.h"

namespace coop {

struct Reads {
  std::vector<double> begins_at;     // by operation, and the end: seconds of those before it
  std::vector<double> input_again;   // parallel to op_inputs: when the storage is read after that
  std::vector<double> output_first;  // parallel to op_outputs
};

// The program must be well formed. `held_for` names further reads (see PlanOptions), or is empty.
[[nodiscard]] Reads FindReads(const Program& program, const std::vector<int32_t>& held_for = {});

}  // namespace coop

#endif  // COOP_CORE_PLANNER_NEXT_USES_H_
