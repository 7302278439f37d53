// Plans for straight-line programs.
//
// Model. A Program is metadata only: storages, inputs, operations in order, last uses, outputs; all
// ids are indices into it. MakePlan runs it through an Engine and returns the whole action list as
// data, apart from any executor: it can be carried out every step, simulated, or shown.
//
// Invariants: actions are in execution order; every kRun finds its inputs resident; kDrop names
// memory that nothing needs any more, kEvict memory that may come back. Two calls with equal
// arguments give equal plans, but for search_seconds.
//
// Thread rule: functions of their arguments. Complexity: linear in the program apart from searches.
// Source: paper section 3.2, made once ahead of time.
#ifndef COOP_CORE_PLANNER_PLAN_H_
#define COOP_CORE_PLANNER_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cc/core/base/types.h"

namespace coop {

struct Program {
  enum class Where : uint8_t {
    kOutside,  // not in the pool, only counted
    kForeign,  // already lies in the pool, at `offset`
    kAdopt,    // the executor copies it into the pool, to the place the plan names
  };
  struct Input {
    int32_t storage = 0;
    Where where = Where::kOutside;
    int64_t offset = -1;  // kForeign
    // May be overwritten and freed after its last use. Otherwise it is kept to the end.
    bool donated = false;
  };

  std::vector<int64_t> storage_bytes;
  std::vector<uint8_t> storage_outside;  // of computed storages; inputs say it in `where`
  std::vector<Input> inputs;

  // Operation i reads op_inputs[op_input_begin[i] .. op_input_begin[i + 1]) and makes the storages
  // op_outputs[op_output_begin[i] .. ); op_in_place, parallel to op_outputs, is the position of the
  // input whose block the output may take, or kNone. It is used only where that input is released
  // after operation i.
  std::vector<int32_t> op_input_begin;
  std::vector<int32_t> op_inputs;
  std::vector<int32_t> op_output_begin;
  std::vector<int32_t> op_outputs;
  std::vector<int32_t> op_in_place;
  std::vector<double> op_cost_seconds;
  std::vector<uint8_t> op_recomputable;
  // 1 where operation i is a read by the front end itself: its one input is brought back, and
  // nothing runs. Empty: there are none.
  std::vector<uint8_t> op_is_read;

  // releases[release_begin[i] .. release_begin[i + 1]): the storages whose last use is operation i,
  // each at most once in all, outputs of the program too. A storage that no list names (an input
  // nothing reads) stays to the end.
  std::vector<int32_t> release_begin;
  std::vector<int32_t> releases;

  // discards[discard_begin[i] .. ): storages whose memory goes after operation i, before what is
  // released then (see Engine::Discard). Both are empty where there are none.
  std::vector<int32_t> discard_begin;
  std::vector<int32_t> discards;

  // kept[kept_begin[i] .. ): storages that are permanent from operation i on, because the front end
  // hands them out then. Both are empty where there are none.
  std::vector<int32_t> kept_begin;
  std::vector<int32_t> kept;

  // Storages that are resident and permanent at the end; duplicates allowed.
  std::vector<int32_t> outputs;

  [[nodiscard]] int32_t storage_count() const { return static_cast<int32_t>(storage_bytes.size()); }
  [[nodiscard]] int32_t operation_count() const {
    return static_cast<int32_t>(op_cost_seconds.size());
  }
  [[nodiscard]] bool IsRead(int32_t operation) const {
    return !op_is_read.empty() && op_is_read[static_cast<size_t>(operation)] != 0;
  }
};

// The values of operation i, of a list of which row i is [begin[i], begin[i + 1]).
template <typename T>
[[nodiscard]] std::span<const T> Row(const std::vector<T>& values,
                                     const std::vector<int32_t>& begin, int32_t i) {
  const auto row = static_cast<size_t>(i);
  return std::span<const T>(values).subspan(static_cast<size_t>(begin[row]),
                                            static_cast<size_t>(begin[row + 1] - begin[row]));
}

struct PlanOptions {
  EngineOptions engine;
  std::vector<Range> foreign;      // blocks held by others for the whole plan, not inputs
  int64_t reserve_bytes = 0;       // workspace
  bool pin_outputs_early = false;  // outputs are never evicted once computed
  // More recomputed operations than this are as good as no plan; 0: any number.
  int64_t max_recomputations = 0;
  int64_t max_tried_recomputations = 0;  // those that were undone, too; 0: any number
  double max_recompute_seconds = 0;      // more of them are as good as no plan; 0: any number
  // By program storage: factors of the scores (see Engine::SetWorth); empty: 1 each.
  std::vector<double> worth;
  std::vector<int64_t> places;  // likewise: offsets to take where they are free; kNone: anywhere
  std::vector<SideHint> sides;  // by program storage, of those that operations make; empty: none
  // By program storage: an operation that counts as reading it too, so that it is held for what is
  // to be made from it again; kNone: none. No operation waits for such a read.
  std::vector<int32_t> held_for;
  // By program storage: whether it is kept over the fullest moment of the program; what is made
  // before that and not kept goes with its last use before it and is made again
  // (checkpoint_plan.h). Empty: the engine decides.
  std::vector<uint8_t> checkpoints;
  // With checkpoints: no plan where addresses for all of it cannot be found ahead.
  bool only_packed = false;
};

struct Plan {
  bool feasible = false;
  Failure failure;                   // where not feasible; its operation is a program index
  int32_t failed_operation = kNone;  // kNone: inputs or reservation; operation_count(): the outputs
  // Ids are program indices. Placements name program storages; kNone is scratch.
  std::vector<Action> actions;
  std::vector<Placement> placements;
  std::vector<int64_t> input_offsets;   // parallel to Program::inputs; -1: outside
  std::vector<int64_t> output_offsets;  // parallel to Program::outputs; -1: outside
  std::vector<Range> reserved;
  EngineStats stats;
  std::vector<double> search_seconds;  // of each search, in order; none where they are not timed
  int64_t tried_recomputations = 0;    // those that were undone, too
  int64_t peak_bytes = 0;              // everything: blocks, foreign ones, reservations, outside
};

// Throws std::invalid_argument for a program that is malformed (indices out of range, a storage
// used before it exists or after its release) or foreign blocks that overlap.
[[nodiscard]] Plan MakePlan(const Program& program, const PlanOptions& options);

}  // namespace coop

#endif  // COOP_CORE_PLANNER_PLAN_H_
