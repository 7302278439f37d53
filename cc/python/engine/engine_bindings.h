// Python bindings of the engine and of plans: Policy, OperationSpec, Engine, Program, make_plan.
//
// Purpose: the executor's view of the planner. Calls made once per operation (submit, release,
//   retain) take positional arguments and build nothing but what they return.
// Model: actions become objects of one class a kind (see action_types.h).
// Invariants: a call that raises has changed nothing.
// Thread rule: under the interpreter lock, except that make_plan runs without it on its own copy.
// Source: paper section 3 (see cc/core/engine/engine.h).

#ifndef COOP_PYTHON_ENGINE_ENGINE_BINDINGS_H_
#define COOP_PYTHON_ENGINE_ENGINE_BINDINGS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "cc/core/base/types.h"

namespace coop::python {

void BindEngine(nanobind::module_& module);
// Parts of BindEngine: Policy; EngineStats, Failure; Program, Plan, make_plan, search_window; the
// fungible simulator; History.
void BindPolicy(nanobind::module_& module);
void BindStats(nanobind::module_& module);
void BindProgram(nanobind::module_& module);
void BindFungible(nanobind::module_& module);
void BindHistory(nanobind::module_& module);

[[nodiscard]] nanobind::list RangeList(const std::vector<Range>& ranges);
// -1, 0, 1 for left, as the policy has it, right. Throws std::invalid_argument for others.
[[nodiscard]] std::vector<SideHint> SideHints(const std::vector<int32_t>& sides);
// A timer for EngineOptions: seconds of a clock that never goes back.
[[nodiscard]] double SteadySeconds();

}  // namespace coop::python

#endif  // COOP_PYTHON_ENGINE_ENGINE_BINDINGS_H_
