// Program, Plan, make_plan, cheapest_to_keep and search_window in Python (see engine_bindings.h).

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/core/planner/checkpoint_plan.h"
#include "cc/core/planner/min_cut_keep_set.h"
#include "cc/core/planner/plan.h"
#include "cc/core/pool/sliding_window.h"
#include "cc/python/engine/action_types.h"
#include "cc/python/engine/engine_bindings.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

using Ints = std::vector<int32_t>;

// Where the inputs lie is not part of a Python Program: it varies while the program stays.
Program NewProgram(std::vector<int64_t> storage_bytes, const std::vector<bool>& storage_outside,
                   const Ints& input_storages, const std::vector<bool>& input_donated,
                   Ints op_input_begin, Ints op_inputs, Ints op_output_begin, Ints op_outputs,
                   Ints op_in_place, std::vector<double> op_cost_seconds,
                   const std::vector<bool>& op_recomputable, Ints release_begin, Ints releases,
                   Ints outputs) {
  if (input_storages.size() != input_donated.size()) {
    throw std::invalid_argument("input_storages and input_donated differ in length");
  }
  Program program;
  program.storage_bytes = std::move(storage_bytes);
  program.storage_outside.assign(storage_outside.begin(), storage_outside.end());
  for (size_t i = 0; i < input_storages.size(); ++i) {
    program.inputs.push_back({input_storages[i], Program::Where::kOutside, -1, input_donated[i]});
  }
  program.op_input_begin = std::move(op_input_begin);
  program.op_inputs = std::move(op_inputs);
  program.op_output_begin = std::move(op_output_begin);
  program.op_outputs = std::move(op_outputs);
  program.op_in_place = std::move(op_in_place);
  program.op_cost_seconds = std::move(op_cost_seconds);
  program.op_recomputable.assign(op_recomputable.begin(), op_recomputable.end());
  program.release_begin = std::move(release_begin);
  program.releases = std::move(releases);
  program.outputs = std::move(outputs);
  return program;
}

// A copy, so that the interpreter lock can be let go of.
Program Placed(const Program& program, const Ints& input_where,
               const std::vector<int64_t>& input_offsets) {
  Program placed = program;
  if (input_where.size() != placed.inputs.size() || input_offsets.size() != placed.inputs.size()) {
    throw std::invalid_argument("input_where and input_offsets must have one entry an input");
  }
  for (size_t i = 0; i < placed.inputs.size(); ++i) {
    if (input_where[i] < 0 || input_where[i] > static_cast<int32_t>(Program::Where::kAdopt)) {
      throw std::invalid_argument(
          "input_where must be INPUT_OUTSIDE, INPUT_FOREIGN or INPUT_ADOPT");
    }
    placed.inputs[i].where = static_cast<Program::Where>(input_where[i]);
    placed.inputs[i].offset = input_offsets[i];
  }
  return placed;
}

Plan NewPlan(const Program& program, int64_t capacity_bytes, int64_t alignment_bytes,
             const Policy& policy, double expensive_seconds_per_byte,
             const std::vector<std::pair<int64_t, int64_t>>& foreign, int64_t reserve_bytes,
             bool pin_outputs_early, const Ints& input_where,
             const std::vector<int64_t>& input_offsets, bool timed, int64_t max_recomputations,
             int64_t max_tried_recomputations, double max_recompute_seconds, double max_recompute,
             std::vector<double> worth, const Ints& sides, std::vector<int64_t> places,
             Ints held_for, const std::vector<bool>& checkpoints, bool only_packed) {
  const Program placed = Placed(program, input_where, input_offsets);
  PlanOptions options;
  options.engine =
      EngineOptions{capacity_bytes, alignment_bytes, policy, expensive_seconds_per_byte,
                    timed ? &SteadySeconds : std::function<double()>()};
  options.engine.max_recompute = max_recompute;
  for (const auto& [offset, bytes] : foreign) options.foreign.push_back(Range{offset, bytes});
  options.reserve_bytes = reserve_bytes;
  options.pin_outputs_early = pin_outputs_early;
  options.max_recomputations = max_recomputations;
  options.max_tried_recomputations = max_tried_recomputations;
  options.max_recompute_seconds = max_recompute_seconds;
  options.worth = std::move(worth);
  options.sides = SideHints(sides);
  options.places = std::move(places);
  options.held_for = std::move(held_for);
  options.checkpoints.assign(checkpoints.begin(), checkpoints.end());
  options.only_packed = only_packed;
  const nb::gil_scoped_release unlocked;
  return MakePlan(placed, options);
}

std::vector<int32_t> Marked(const std::vector<uint8_t>& marks) {
  std::vector<int32_t> marked;
  for (size_t s = 0; s < marks.size(); ++s) {
    if (marks[s] != 0) marked.push_back(static_cast<int32_t>(s));
  }
  return marked;
}

nb::list KeepCheapest(const Program& program, const Ints& input_where,
                      const std::vector<int64_t>& pool_bytes) {
  const Program placed = Placed(program, input_where, std::vector<int64_t>(input_where.size(), -1));
  std::vector<Keeping> keepings;
  if (placed.operation_count() > 0) {
    const nb::gil_scoped_release unlocked;
    keepings = CheapestToKeep(placed, FullestMoment(placed), pool_bytes);
  }
  nb::list list;
  for (const Keeping& keeping : keepings) {
    list.append(nb::make_tuple(Marked(keeping.kept), keeping.held_for, keeping.recompute_seconds));
  }
  return list;
}

nb::list CheckpointTuples(const std::vector<Checkpoints>& all) {
  nb::list list;
  for (const Checkpoints& found : all) {
    list.append(nb::make_tuple(Marked(found.kept), found.pool_bytes, found.recompute_seconds));
  }
  return list;
}

nb::list FindCheckpoints(const Program& program, const Ints& input_where, int64_t pool_bytes,
                         const std::vector<double>& shares, int32_t parts, bool first) {
  const Program placed = Placed(program, input_where, std::vector<int64_t>(input_where.size(), -1));
  std::vector<Checkpoints> all;
  if (placed.operation_count() > 0) {
    const nb::gil_scoped_release unlocked;
    all = CheckpointsWithin(placed, pool_bytes, shares, parts, first ? Cut::kFirst : Cut::kLast);
  }
  return CheckpointTuples(all);
}

nb::list FindCheckpointsAtCuts(const Program& program, const Ints& input_where,
                               const std::vector<int32_t>& parts, bool first) {
  const Program placed = Placed(program, input_where, std::vector<int64_t>(input_where.size(), -1));
  std::vector<Checkpoints> all;
  if (placed.operation_count() > 0) {
    const nb::gil_scoped_release unlocked;
    all = CheckpointsAtCuts(placed, parts, first ? Cut::kFirst : Cut::kLast);
  }
  return CheckpointTuples(all);
}

Ints ExecutionOrder(const Plan& plan) {
  Ints operations;
  for (const Action& action : plan.actions) {
    if (action.kind == ActionKind::kRun) operations.push_back(action.id);
  }
  return operations;
}

nb::object Search(const std::vector<int64_t>& bytes, const std::vector<double>& scores,
                  const std::vector<bool>& evictable, int64_t request_bytes, bool prefer_right,
                  const std::vector<bool>& is_free) {
  if (scores.size() != bytes.size() || evictable.size() != bytes.size() ||
      (!is_free.empty() && is_free.size() != bytes.size())) {
    throw std::invalid_argument("bytes, scores, evictable and free must have one entry a block");
  }
  std::vector<WindowBlock> blocks;
  for (size_t i = 0; i < bytes.size(); ++i) {
    blocks.push_back({bytes[i], scores[i], evictable[i], !is_free.empty() && is_free[i]});
  }
  const auto window =
      SearchWindow(blocks, request_bytes, prefer_right ? Side::kRight : Side::kLeft);
  if (!window) return nb::none();
  return nb::make_tuple(window->first, window->last);
}

}  // namespace

std::vector<SideHint> SideHints(const std::vector<int32_t>& sides) {
  std::vector<SideHint> hints;
  hints.reserve(sides.size());
  for (const int32_t side : sides) {
    if (side < -1 || side > 1) throw std::invalid_argument("sides must be -1, 0 or 1");
    hints.push_back(side < 0    ? SideHint::kLeft
                    : side == 0 ? SideHint::kByPolicy
                                : SideHint::kRight);
  }
  return hints;
}

void BindProgram(nb::module_& module) {
  module.attr("INPUT_OUTSIDE") = static_cast<int>(Program::Where::kOutside);
  module.attr("INPUT_FOREIGN") = static_cast<int>(Program::Where::kForeign);
  module.attr("INPUT_ADOPT") = static_cast<int>(Program::Where::kAdopt);

  nb::class_<Program>(module, "Program", "Metadata of a straight-line program; ids are indices.")
      .def(
          "__init__",
          [](Program* self, std::vector<int64_t> storage_bytes,
             const std::vector<bool>& storage_outside, const Ints& input_storages,
             const std::vector<bool>& input_donated, Ints op_input_begin, Ints op_inputs,
             Ints op_output_begin, Ints op_outputs, Ints op_in_place,
             std::vector<double> op_cost_seconds, const std::vector<bool>& op_recomputable,
             Ints release_begin, Ints releases, Ints outputs) {
            new (self) Program(
                NewProgram(std::move(storage_bytes), storage_outside, input_storages, input_donated,
                           std::move(op_input_begin), std::move(op_inputs),
                           std::move(op_output_begin), std::move(op_outputs),
                           std::move(op_in_place), std::move(op_cost_seconds), op_recomputable,
                           std::move(release_begin), std::move(releases), std::move(outputs)));
          },
          nb::kw_only(), nb::arg("storage_bytes"), nb::arg("storage_outside"),
          nb::arg("input_storages"), nb::arg("input_donated"), nb::arg("op_input_begin"),
          nb::arg("op_inputs"), nb::arg("op_output_begin"), nb::arg("op_outputs"),
          nb::arg("op_in_place"), nb::arg("op_cost_seconds"), nb::arg("op_recomputable"),
          nb::arg("release_begin"), nb::arg("releases"), nb::arg("outputs"))
      .def_prop_ro("storage_count", &Program::storage_count)
      .def_prop_ro("operation_count", &Program::operation_count);

  nb::class_<Plan>(module, "Plan", "The actions that carry out a program, as data.")
      .def_ro("feasible", &Plan::feasible)
      .def_ro("failed_operation", &Plan::failed_operation)
      .def_ro("peak_bytes", &Plan::peak_bytes)
      .def_ro("search_seconds", &Plan::search_seconds)
      .def_ro("input_offsets", &Plan::input_offsets)
      .def_ro("output_offsets", &Plan::output_offsets)
      .def_prop_ro("failure",
                   [](const Plan& plan) -> nb::object {
                     if (plan.feasible) return nb::none();
                     return nb::cast(plan.failure);
                   })
      .def_ro("tried_recomputations", &Plan::tried_recomputations)
      .def_prop_ro("actions",
                   [](const Plan& plan) { return ActionList(plan.actions, plan.placements); })
      .def_prop_ro("execution_order", &ExecutionOrder)
      .def_prop_ro("action_count", [](const Plan& plan) { return plan.actions.size(); })
      .def_prop_ro("reserved", [](const Plan& plan) { return RangeList(plan.reserved); })
      .def_prop_ro("stats", [](const Plan& plan) { return plan.stats; });

  module.def("make_plan", &NewPlan, nb::arg("program"), nb::kw_only(), nb::arg("capacity_bytes"),
             nb::arg("alignment_bytes"), nb::arg("policy"), nb::arg("expensive_seconds_per_byte"),
             nb::arg("foreign") = nb::list(), nb::arg("reserve_bytes") = 0,
             nb::arg("pin_outputs_early") = false, nb::arg("input_where"), nb::arg("input_offsets"),
             nb::arg("timed") = false, nb::arg("max_recomputations") = 0,
             nb::arg("max_tried_recomputations") = 0, nb::arg("max_recompute_seconds") = 0.0,
             nb::arg("max_recompute") = 0.0, nb::arg("worth") = nb::list(),
             nb::arg("sides") = nb::list(), nb::arg("places") = nb::list(),
             nb::arg("held_for") = nb::list(), nb::arg("checkpoints") = nb::list(),
             nb::arg("only_packed") = false);

  module.def("cheapest_to_keep", &KeepCheapest, nb::arg("program"), nb::kw_only(),
             nb::arg("input_where"), nb::arg("pool_bytes"));

  module.def("checkpoints_within", &FindCheckpoints, nb::arg("program"), nb::kw_only(),
             nb::arg("input_where"), nb::arg("pool_bytes"), nb::arg("shares"), nb::arg("parts"),
             nb::arg("first") = false);
  module.def("checkpoints_at_cuts", &FindCheckpointsAtCuts, nb::arg("program"), nb::kw_only(),
             nb::arg("input_where"), nb::arg("parts"), nb::arg("first") = false);

  module.def("search_window", &Search, nb::arg("bytes"), nb::arg("scores"), nb::arg("evictable"),
             nb::arg("request_bytes"), nb::arg("prefer_right"), nb::arg("free") = nb::list(),
             "(first, last) of the cheapest run of neighbours that holds the request, or None.");

  BindFungible(module);
}

}  // namespace coop::python
