#include "cc/core/planner/plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/core/engine/engine.h"
#include "cc/core/planner/checkpoint_plan.h"
#include "cc/core/planner/next_uses.h"

namespace coop {
namespace {

// Of a list that is empty, as its rows are, in a program that has none of it.
std::span<const int32_t> RowIfAny(const std::vector<int32_t>& values,
                                  const std::vector<int32_t>& begin, int32_t i) {
  return values.empty() ? std::span<const int32_t>() : Row(values, begin, i);
}

void RequireRows(const std::vector<int32_t>& begin, int32_t count, size_t values) {
  Require(begin.size() == static_cast<size_t>(count) + 1 && begin.front() == 0 &&
              static_cast<size_t>(begin.back()) == values &&
              std::is_sorted(begin.begin(), begin.end()),
          "rows of a program must begin at ascending positions of their list");
}

// Everything an Engine would not notice by itself.
void RequireWellFormed(const Program& program) {
  const int32_t storages = program.storage_count();
  const int32_t operations = program.operation_count();
  Require(program.storage_outside.size() == static_cast<size_t>(storages),
          "storage_outside must be parallel to storage_bytes");
  Require(program.op_recomputable.size() == static_cast<size_t>(operations),
          "op_recomputable must be parallel to op_cost_seconds");
  Require(program.op_in_place.size() == program.op_outputs.size(),
          "op_in_place must be parallel to op_outputs");
  RequireRows(program.op_input_begin, operations, program.op_inputs.size());
  RequireRows(program.op_output_begin, operations, program.op_outputs.size());
  RequireRows(program.release_begin, operations, program.releases.size());
  for (const auto& [begin, values] : {std::tie(program.discard_begin, program.discards),
                                      std::tie(program.kept_begin, program.kept)}) {
    if (!begin.empty() || !values.empty()) RequireRows(begin, operations, values.size());
  }
  Require(
      program.op_is_read.empty() || program.op_is_read.size() == static_cast<size_t>(operations),
      "op_is_read must be empty or parallel to op_cost_seconds");
  enum : uint8_t { kAbsent, kPresent, kReleased };
  std::vector<uint8_t> state(static_cast<size_t>(storages), kAbsent);
  const auto change = [&](int32_t storage, uint8_t from, uint8_t to, const char* requirement) {
    Require(storage >= 0 && storage < storages, "storages must be indices into storage_bytes");
    uint8_t& now = state[static_cast<size_t>(storage)];
    Require(now == from, requirement);
    now = to;
  };
  for (const Program::Input& input : program.inputs) {
    change(input.storage, kAbsent, kPresent, "an input must be named once");
  }
  for (int32_t i = 0; i < operations; ++i) {
    const auto inputs = Row(program.op_inputs, program.op_input_begin, i);
    for (const int32_t storage : inputs) {
      change(storage, kPresent, kPresent, "operations must read what exists and is not released");
    }
    for (const int32_t storage : Row(program.op_outputs, program.op_output_begin, i)) {
      change(storage, kAbsent, kPresent, "a storage must be made once");
    }
    for (const int32_t position : Row(program.op_in_place, program.op_output_begin, i)) {
      Require(position >= kNone && position < static_cast<int64_t>(inputs.size()),
              "op_in_place must be the position of an input");
    }
    Require(!program.IsRead(i) ||
                (inputs.size() == 1 && Row(program.op_outputs, program.op_output_begin, i).empty()),
            "a read has one input and no outputs");
    for (const int32_t storage : RowIfAny(program.kept, program.kept_begin, i)) {
      change(storage, kPresent, kPresent, "what is kept must exist and not be released");
    }
    for (const int32_t storage : RowIfAny(program.discards, program.discard_begin, i)) {
      change(storage, kPresent, kPresent, "what is discarded must exist and not be released");
    }
    for (const int32_t storage : Row(program.releases, program.release_begin, i)) {
      change(storage, kPresent, kReleased, "what is released must exist and be released once");
    }
  }
  for (const int32_t storage : program.outputs) {
    Require(storage >= 0 && storage < storages && state[static_cast<size_t>(storage)] != kAbsent,
            "outputs must be storages that exist");
  }
}

class Planner {
 public:
  Planner(const Program& program, const PlanOptions& options)
      : program_(program), options_(options), engine_(Timed(options.engine)) {}

  Plan Make() {
    RequireWellFormed(program_);
    Prepare();
    plan_.feasible = AddInputs() && RunOperations() && BringOutputs();
    plan_.stats = engine_.stats();
    plan_.tried_recomputations = engine_.tried_recomputations();
    plan_.peak_bytes = plan_.stats.peak_in_use_bytes + plan_.stats.reserved_bytes;
    // The engine reads the clock when a search begins and when it ends.
    for (size_t i = 1; i < clock_reads_.size(); i += 2) {
      plan_.search_seconds.push_back(clock_reads_[i] - clock_reads_[i - 1]);
    }
    return std::move(plan_);
  }

 private:
  // Bits of role_.
  static constexpr uint8_t kOutput = 1;
  static constexpr uint8_t kReleasedNow = 2;

  EngineOptions Timed(EngineOptions options) {
    // Else a single operation could recompute more than the plan may before it is noticed.
    options.max_recomputations = options_.max_recomputations;
    options.max_tried_recomputations = options_.max_tried_recomputations;
    if (!options.timer) return options;
    options.timer = [this, timer = options.timer] { return clock_reads_.emplace_back(timer()); };
    return options;
  }

  int32_t& EngineId(int32_t storage) { return engine_ids_[static_cast<size_t>(storage)]; }
  uint8_t& Role(int32_t storage) { return role_[static_cast<size_t>(storage)]; }

  void Prepare() {
    Require(options_.worth.empty() || options_.worth.size() == program_.storage_bytes.size(),
            "worth must be empty or parallel to storage_bytes");
    Require(options_.places.empty() || options_.places.size() == program_.storage_bytes.size(),
            "places must be empty or parallel to storage_bytes");
    Require(options_.sides.empty() || options_.sides.size() == program_.storage_bytes.size(),
            "sides must be empty or parallel to storage_bytes");
    engine_ids_.assign(program_.storage_bytes.size(), kNone);
    role_.assign(program_.storage_bytes.size(), 0);
    for (const int32_t storage : program_.outputs) Role(storage) |= kOutput;
    if (!options_.held_for.empty()) HoldLonger();
    // Where a place is asked for, what is never read again is in nobody's way.
    if (options_.engine.policy.heuristic == Heuristic::kLookahead || !options_.places.empty()) {
      reads_ = FindReads(program_, options_.held_for);
    }
  }

  // Releases as `held_for` moves them.
  void HoldLonger() {
    const int32_t operations = program_.operation_count();
    Require(options_.held_for.size() == program_.storage_bytes.size(),
            "held_for must be empty or parallel to storage_bytes");
    for (const int32_t operation : options_.held_for) {
      Require(operation >= kNone && operation < operations, "held_for must name operations");
    }
    std::vector<std::pair<int32_t, int32_t>> moved;  // operation, storage
    for (int32_t i = 0; i < operations; ++i) {
      for (const int32_t storage : Row(program_.releases, program_.release_begin, i)) {
        moved.emplace_back(std::max(i, options_.held_for[static_cast<size_t>(storage)]), storage);
      }
    }
    // Stable: what is released together stays in the order of the program.
    std::stable_sort(moved.begin(), moved.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    release_begin_.assign(static_cast<size_t>(operations) + 1, 0);
    for (const auto& [operation, storage] : moved) {
      ++release_begin_[static_cast<size_t>(operation) + 1];
      releases_.push_back(storage);
    }
    std::partial_sum(release_begin_.begin(), release_begin_.end(), release_begin_.begin());
  }

  [[nodiscard]] std::span<const int32_t> ReleasedAfter(int32_t operation) const {
    if (release_begin_.empty()) return Row(program_.releases, program_.release_begin, operation);
    return Row(releases_, release_begin_, operation);
  }

  void TellReads(int32_t i) {
    if (reads_.begins_at.empty()) return;
    const auto row = static_cast<size_t>(i);
    engine_.SetNow(reads_.begins_at[row]);
    const auto tell = [&](const std::vector<int32_t>& storages, const std::vector<int32_t>& begin,
                          const std::vector<double>& at) {
      for (auto k = static_cast<size_t>(begin[row]); k < static_cast<size_t>(begin[row + 1]); ++k) {
        engine_.SetNextRead(EngineId(storages[k]), at[k]);
      }
    };
    tell(program_.op_inputs, program_.op_input_begin, reads_.input_again);
    tell(program_.op_outputs, program_.op_output_begin, reads_.output_first);
  }

  bool Fail(int32_t operation) {
    plan_.failure = engine_.failure();
    plan_.failed_operation = operation;
    int32_t& running = plan_.failure.operation;
    if (running != kNone) running = program_operations_[static_cast<size_t>(running)];
    NameHeld();
    return false;
  }

  // The failure's blocks by the program's ids.
  void NameHeld() {
    for (HeldBlock& block : plan_.failure.held) {  // kNone is no index of the list, either
      const auto id = static_cast<size_t>(block.storage);
      block.storage = id < program_storages_.size() ? program_storages_[id] : kNone;
    }
  }

  [[nodiscard]] bool Thrashes() const {
    const EngineStats& stats = engine_.stats();
    return (options_.max_recomputations > 0 &&
            stats.recomputations > options_.max_recomputations) ||
           (options_.max_recompute_seconds > 0 &&
            stats.recompute_seconds > options_.max_recompute_seconds);
  }

  bool FailThrashing(int32_t operation) {
    plan_.failure = engine_.Describe();
    plan_.failure.reason = FailureReason::kThrashing;
    plan_.failure.operation = plan_.failed_operation = operation;
    NameHeld();
    return false;
  }

  void Bind(int32_t storage, StorageId id) {
    EngineId(storage) = id;
    const auto index = static_cast<size_t>(id);
    if (program_storages_.size() <= index) program_storages_.resize(index + 1, kNone);
    program_storages_[index] = storage;
    if (!options_.worth.empty()) {
      engine_.SetWorth(id, options_.worth[static_cast<size_t>(storage)]);
    }
  }

  bool AddInputs() {
    for (const Range& block : options_.foreign) {
      engine_.AddForeign(block.offset, block.bytes, false);
    }
    // Blocks that lie somewhere already, before anything is placed around them.
    for (const Program::Input& input : program_.inputs) {
      const int64_t bytes = program_.storage_bytes[static_cast<size_t>(input.storage)];
      if (input.where == Program::Where::kForeign) {
        Bind(input.storage, engine_.AddForeign(input.offset, bytes, input.donated));
      } else if (input.where == Program::Where::kOutside) {
        Bind(input.storage, engine_.AddOutside(bytes));
      }
    }
    if (!engine_.Reserve(options_.reserve_bytes)) return Fail(kNone);
    plan_.reserved = engine_.ReservedBlocks();
    for (const Program::Input& input : program_.inputs) {
      if (input.where == Program::Where::kAdopt) {
        const int64_t bytes = program_.storage_bytes[static_cast<size_t>(input.storage)];
        const StorageId id = engine_.AddAdopted(bytes);
        if (id == kNone) return Fail(kNone);
        Bind(input.storage, id);
      }
      const StorageId id = EngineId(input.storage);
      if (!input.donated) engine_.Retain(id);
      if (Role(input.storage) & kOutput) engine_.Retain(id);
      plan_.input_offsets.push_back(engine_.OffsetOf(id));
    }
    return true;
  }

  bool RunOperations() {
    for (int32_t i = 0; i < program_.operation_count(); ++i) {
      const bool is_read = program_.IsRead(i);
      const OperationId id = is_read ? kNone : AddOperation(i);
      TellReads(i);
      const auto inputs = Row(program_.op_inputs, program_.op_input_begin, i);
      if (!(is_read ? engine_.Materialize(EngineId(inputs[0])) : engine_.Run(id))) return Fail(i);
      if (Thrashes()) return FailThrashing(i);
      AppendActions();
      for (const int32_t storage : Row(program_.op_outputs, program_.op_output_begin, i)) {
        if (!(Role(storage) & kOutput)) continue;
        engine_.Retain(EngineId(storage));
        if (options_.pin_outputs_early) engine_.MakePermanent(EngineId(storage));
      }
      for (const int32_t storage : RowIfAny(program_.kept, program_.kept_begin, i)) {
        engine_.MakePermanent(EngineId(storage));
      }
      for (const int32_t storage : RowIfAny(program_.discards, program_.discard_begin, i)) {
        engine_.Discard(EngineId(storage));
      }
      for (const int32_t storage : ReleasedAfter(i)) {
        engine_.Release(EngineId(storage));
      }
      AppendFreed();
    }
    return true;
  }

  OperationId AddOperation(int32_t i) {
    inputs_.clear();
    outputs_.clear();
    for (const int32_t storage : Row(program_.op_inputs, program_.op_input_begin, i)) {
      inputs_.push_back(EngineId(storage));
    }
    const auto releases = ReleasedAfter(i);
    for (const int32_t storage : releases) Role(storage) |= kReleasedNow;
    const auto outputs = Row(program_.op_outputs, program_.op_output_begin, i);
    const auto in_place = Row(program_.op_in_place, program_.op_output_begin, i);
    const auto op_inputs = Row(program_.op_inputs, program_.op_input_begin, i);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const auto storage = static_cast<size_t>(outputs[k]);
      OutputSpec spec{program_.storage_bytes[storage], program_.storage_outside[storage] != 0};
      // Only a last use is a promise that nothing else will read the input.
      if (in_place[k] != kNone &&
          (Role(op_inputs[static_cast<size_t>(in_place[k])]) & kReleasedNow)) {
        spec.in_place_input = in_place[k];
      }
      if (!options_.places.empty()) spec.place = options_.places[storage];
      if (!options_.sides.empty()) spec.side = options_.sides[storage];
      outputs_.push_back(spec);
    }
    for (const int32_t storage : releases) Role(storage) &= static_cast<uint8_t>(~kReleasedNow);

    const auto row = static_cast<size_t>(i);
    const OperationId id = engine_.AddOperation(inputs_, outputs_, program_.op_cost_seconds[row],
                                                program_.op_recomputable[row] != 0);
    const auto index = static_cast<size_t>(id);
    if (program_operations_.size() <= index) program_operations_.resize(index + 1, kNone);
    program_operations_[index] = i;
    engine_.OutputsOf(id, &made_);
    for (size_t k = 0; k < outputs.size(); ++k) Bind(outputs[k], made_[k]);
    return id;
  }

  bool BringOutputs() {
    for (const int32_t storage : program_.outputs) {
      if (!engine_.Materialize(EngineId(storage))) return Fail(program_.operation_count());
      if (Thrashes()) return FailThrashing(program_.operation_count());
      AppendActions();
      engine_.MakePermanent(EngineId(storage));
      AppendFreed();
    }
    for (const int32_t storage : program_.outputs) {
      plan_.output_offsets.push_back(engine_.OffsetOf(EngineId(storage)));
    }
    return true;
  }

  // Those of the last transaction, in the program's ids.
  void AppendActions() {
    const std::vector<Placement>& placements = engine_.placements();
    for (Action action : engine_.actions()) {
      const auto id = static_cast<size_t>(action.id);
      if (action.kind == ActionKind::kRun) {
        action.id = program_operations_[id];
        const auto first = static_cast<size_t>(action.first_placement);
        action.first_placement = static_cast<int32_t>(plan_.placements.size());
        for (size_t p = first; p < first + static_cast<size_t>(action.placement_count); ++p) {
          Placement placement = placements[p];
          if (placement.storage != kNone) {
            placement.storage = program_storages_[static_cast<size_t>(placement.storage)];
          }
          plan_.placements.push_back(placement);
        }
      } else {
        action.id = program_storages_[id];
      }
      plan_.actions.push_back(action);
    }
  }

  // Memory that went because of releases.
  void AppendFreed() {
    for (const StorageId id : engine_.freed()) {
      const bool may_return = engine_.StateOf(id) == StorageState::kEvicted;
      plan_.actions.push_back({.kind = may_return ? ActionKind::kEvict : ActionKind::kDrop,
                               .id = program_storages_[static_cast<size_t>(id)]});
    }
    engine_.ClearFreed();
  }

  const Program& program_;
  const PlanOptions& options_;
  std::vector<double> clock_reads_;
  Engine engine_;
  Plan plan_;
  Reads reads_;                         // empty where the policy does not look ahead
  std::vector<int32_t> release_begin_;  // with releases_, as held_for moves them; or empty
  std::vector<int32_t> releases_;
  std::vector<StorageId> engine_ids_;        // by program storage
  std::vector<uint8_t> role_;                // by program storage
  std::vector<int32_t> program_storages_;    // by engine id
  std::vector<int32_t> program_operations_;  // by engine id
  std::vector<StorageId> inputs_;
  std::vector<OutputSpec> outputs_;
  std::vector<StorageId> made_;
};

}  // namespace

Plan MakePlan(const Program& program, const PlanOptions& options) {
  if (!options.checkpoints.empty()) {
    RequireWellFormed(program);
    return PlanAroundCheckpoints(program, options);
  }
  return Planner(program, options).Make();
}

}  // namespace coop
