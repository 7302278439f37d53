#include "cc/core/checkpoints.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "cc/core/check.h"
#include "cc/core/engine.h"
#include "cc/core/keeping.h"

namespace coop {
namespace {

// By storage the operation that makes it; kNone: an input.
std::vector<int32_t> MakersOf(const Program& program) {
  std::vector<int32_t> made_at(program.storage_bytes.size(), kNone);
  for (int32_t i = 0; i < program.operation_count(); ++i) {
    for (const int32_t s : Row(program.op_outputs, program.op_output_begin, i)) {
      made_at[static_cast<size_t>(s)] = i;
    }
  }
  return made_at;
}

// A program in which what is not kept over its fullest moment is made again by operations of its
// own. Its first storages are those of the original.
class Rewriting {
 public:
  Rewriting(const Program& original, const std::vector<uint8_t>& kept)
      : original_(original), made_at_(MakersOf(original)), moment_(FullestMoment(original)) {
    program.storage_bytes = original.storage_bytes;
    program.storage_outside = original.storage_outside;
    program.inputs = original.inputs;
    program.outputs = original.outputs;
    program.op_input_begin = program.op_output_begin = program.release_begin = {0};
    const size_t storages = original.storage_bytes.size();
    for (size_t s = 0; s < storages; ++s) {
      storage_of.push_back(static_cast<int32_t>(s));
      is_gone_.push_back(made_at_[s] != kNone && made_at_[s] < moment_ && kept[s] == 0 &&
                         original.storage_outside[s] == 0 &&
                         original.op_recomputable[static_cast<size_t>(made_at_[s])] != 0);
    }
    for (const int32_t s : original.outputs) is_gone_[static_cast<size_t>(s)] = 0;
    now_ = storage_of;
    wanted_.assign(storages, 0);
    to_run_.assign(static_cast<size_t>(original.operation_count()), 0);
    for (int32_t i = 0; i < original.operation_count(); ++i) {
      if (i > moment_) RunAgainFor(i);
      Append(i);
    }
    Release();
  }

  [[nodiscard]] bool IsMadeAfterTheMoment(int32_t storage) const {
    return made_at_[static_cast<size_t>(storage)] > moment_;
  }

  Program program;
  std::vector<int32_t> storage_of;    // in the original; kNone: an output that nobody asked for
  std::vector<int32_t> operation_of;  // in the original
  std::vector<uint8_t> is_copy;       // by operation
  int64_t copies = 0;
  double copied_seconds = 0;
  bool is_valid = true;  // whether no input is overwritten elsewhere than in the original

 private:
  void RunAgainFor(int32_t reader) {
    std::vector<int32_t> operations;
    const auto want_inputs_of = [&](int32_t operation) {
      for (const int32_t s : Row(original_.op_inputs, original_.op_input_begin, operation)) {
        const auto storage = static_cast<size_t>(s);
        if (is_gone_[storage] == 0) continue;
        wanted_[storage] = 1;
        const int32_t maker = made_at_[storage];
        if (std::exchange(to_run_[static_cast<size_t>(maker)], 1) == 0) operations.push_back(maker);
      }
    };
    want_inputs_of(reader);
    for (size_t k = 0; k < operations.size(); ++k) want_inputs_of(operations[k]);
    std::sort(operations.begin(), operations.end());
    for (const int32_t operation : operations) {
      to_run_[static_cast<size_t>(operation)] = 0;
      const auto outputs = Row(original_.op_outputs, original_.op_output_begin, operation);
      for (const int32_t s : outputs) {
        const auto storage = static_cast<size_t>(s);
        const bool asked_for = std::exchange(wanted_[storage], 0) != 0;
        if (asked_for) is_gone_[storage] = 0;
        made_again_.push_back(static_cast<int32_t>(program.storage_bytes.size()));
        if (asked_for) now_[storage] = made_again_.back();
        program.storage_bytes.push_back(original_.storage_bytes[storage]);
        program.storage_outside.push_back(original_.storage_outside[storage]);
        storage_of.push_back(asked_for ? s : kNone);
      }
      Append(operation);
      ++copies;
      copied_seconds += original_.op_cost_seconds[static_cast<size_t>(operation)];
    }
  }

  // The operation as it is, or making `made_again_`.
  void Append(int32_t operation) {
    const auto row = static_cast<size_t>(operation);
    for (const int32_t s : Row(original_.op_inputs, original_.op_input_begin, operation)) {
      program.op_inputs.push_back(now_[static_cast<size_t>(s)]);
    }
    const auto in_place = Row(original_.op_in_place, original_.op_output_begin, operation);
    const bool again = !made_again_.empty();
    const std::span<const int32_t> outputs =
        again ? std::span<const int32_t>(made_again_)
              : Row(original_.op_outputs, original_.op_output_begin, operation);
    program.op_outputs.insert(program.op_outputs.end(), outputs.begin(), outputs.end());
    made_again_.clear();
    program.op_in_place.insert(program.op_in_place.end(), in_place.begin(), in_place.end());
    program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
    program.op_output_begin.push_back(static_cast<int32_t>(program.op_outputs.size()));
    program.op_cost_seconds.push_back(original_.op_cost_seconds[row]);
    program.op_recomputable.push_back(original_.op_recomputable[row]);
    operation_of.push_back(operation);
    is_copy.push_back(again ? 1 : 0);
  }

  // What the original releases, and what is made again, with the last operation that has it.
  void Release() {
    const size_t storages = program.storage_bytes.size();
    const auto originals = original_.storage_bytes.size();
    std::vector<int32_t> released_by(storages, kNone);  // in the original
    std::vector<int32_t> last(storages, kNone);
    for (int32_t i = 0; i < original_.operation_count(); ++i) {
      for (const int32_t s : Row(original_.releases, original_.release_begin, i)) {
        released_by[static_cast<size_t>(s)] = i;
      }
    }
    for (int32_t i = 0; i < program.operation_count(); ++i) {
      for (const auto list : {Row(program.op_inputs, program.op_input_begin, i),
                              Row(program.op_outputs, program.op_output_begin, i)}) {
        for (const int32_t s : list) last[static_cast<size_t>(s)] = i;
      }
    }
    for (size_t s = 0; s < originals; ++s) {
      // An input that nobody reads goes when it went.
      if (released_by[s] != kNone && last[s] == kNone) last[s] = PositionOf(released_by[s]);
    }
    for (int32_t i = 0; i < original_.operation_count(); ++i) {
      const auto inputs = Row(original_.op_inputs, original_.op_input_begin, i);
      for (const int32_t position : Row(original_.op_in_place, original_.op_output_begin, i)) {
        if (position == kNone) continue;
        const auto s = static_cast<size_t>(inputs[static_cast<size_t>(position)]);
        if (made_at_[s] != kNone || released_by[s] != i) continue;
        const auto reader = static_cast<size_t>(last[s]);
        is_valid &= operation_of[reader] == i && is_copy[reader] == 0;
      }
    }
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(program.operation_count()));
    for (size_t s = 0; s < storages; ++s) {
      if (s < originals && released_by[s] == kNone) continue;
      rows[static_cast<size_t>(last[s])].push_back(static_cast<int32_t>(s));
    }
    for (const std::vector<int32_t>& row : rows) {
      program.releases.insert(program.releases.end(), row.begin(), row.end());
      program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
    }
  }

  // Where an operation of the original runs for the first time.
  [[nodiscard]] int32_t PositionOf(int32_t operation) const {
    if (operation <= moment_) return operation;
    for (size_t i = operation_of.size(); i-- > 0;) {
      if (operation_of[i] == operation && is_copy[i] == 0) return static_cast<int32_t>(i);
    }
    return kNone;
  }

  const Program& original_;
  std::vector<int32_t> made_at_;
  int32_t moment_;
  std::vector<uint8_t> is_gone_;  // by storage of the original: not there unless made again
  std::vector<int32_t> now_;      // by storage of the original: the one that holds its contents
  std::vector<uint8_t> wanted_;   // by storage of the original, while something is made again
  std::vector<uint8_t> to_run_;   // by operation of the original, likewise
  std::vector<int32_t> made_again_;
};

// By storage of the rewritten program, of what is by storage of the original.
template <typename T>
std::vector<T> ByNewStorage(const std::vector<T>& values, const Rewriting& rewriting, T otherwise) {
  std::vector<T> found;
  if (values.empty()) return found;
  for (const int32_t s : rewriting.storage_of) {
    found.push_back(s == kNone ? otherwise : values[static_cast<size_t>(s)]);
  }
  return found;
}

// Factors of scores by storage of the rewritten program. What is made after the moment is worth
// more than it looks: to make it again takes what is gone by then (a gradient that an update waits
// for would take the whole way forth and back).
std::vector<double> Worth(const std::vector<double>& worth, const Rewriting& rewriting) {
  constexpr double kAfterTheMoment = 10;
  std::vector<double> found;
  for (const int32_t s : rewriting.storage_of) {
    const double own = s == kNone || worth.empty() ? 1.0 : worth[static_cast<size_t>(s)];
    const bool later = s != kNone && rewriting.IsMadeAfterTheMoment(s);
    found.push_back(later ? std::min(Engine::kMostWorth, own * kAfterTheMoment) : own);
  }
  return found;
}

// The plan in terms of the original. False if a storage would be in memory twice.
bool Translate(const Rewriting& rewriting, size_t storages, Plan* plan) {
  std::vector<int32_t> held_as(storages, kNone);  // by storage of the original
  std::vector<Action> actions;
  for (Action action : plan->actions) {
    if (action.kind == ActionKind::kRun) {
      const auto operation = static_cast<size_t>(action.id);
      action.id = rewriting.operation_of[operation];
      action.recompute |= rewriting.is_copy[operation] != 0;
      const auto inputs = Row(rewriting.program.op_inputs, rewriting.program.op_input_begin,
                              static_cast<int32_t>(operation));
      const auto first = static_cast<size_t>(action.first_placement);
      for (size_t p = first; p < first + static_cast<size_t>(action.placement_count); ++p) {
        Placement& placement = plan->placements[p];
        if (placement.in_place_input != kNone) {
          const int32_t over = rewriting.storage_of[static_cast<size_t>(
              inputs[static_cast<size_t>(placement.in_place_input)])];
          if (over != kNone) held_as[static_cast<size_t>(over)] = kNone;
        }
        if (placement.storage == kNone) continue;
        const int32_t storage = rewriting.storage_of[static_cast<size_t>(placement.storage)];
        if (storage != kNone) {
          int32_t& held = held_as[static_cast<size_t>(storage)];
          if (held != kNone && held != placement.storage) return false;
          held = placement.storage;
        }
        placement.storage = storage;
      }
    } else {
      const int32_t storage = rewriting.storage_of[static_cast<size_t>(action.id)];
      if (storage == kNone) continue;
      int32_t& held = held_as[static_cast<size_t>(storage)];
      if (held != kNone && held != action.id) return false;
      held = kNone;
      action.id = storage;
    }
    actions.push_back(action);
  }
  // What is dead in one form may come back in another.
  std::vector<uint8_t> comes_back(storages, 0);
  for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
    if (action->kind == ActionKind::kDrop && comes_back[static_cast<size_t>(action->id)] != 0) {
      action->kind = ActionKind::kEvict;
      ++plan->stats.evictions;
    }
    if (action->kind != ActionKind::kRun) continue;
    const auto first = static_cast<size_t>(action->first_placement);
    for (const Placement& placement :
         std::span(plan->placements).subspan(first, static_cast<size_t>(action->placement_count))) {
      if (placement.storage != kNone) comes_back[static_cast<size_t>(placement.storage)] = 1;
    }
  }
  plan->actions = std::move(actions);
  return true;
}

Plan Refused(const PlanOptions& options) {
  Plan plan;
  plan.failure.reason = FailureReason::kThrashing;
  plan.failure.capacity_bytes = options.engine.capacity_bytes;
  plan.failed_operation = 0;
  return plan;
}

}  // namespace

std::vector<uint8_t> AliveOverNarrowCuts(const Program& program, int32_t moment, int32_t parts) {
  Require(moment >= 0 && moment < program.operation_count(), "a moment must be an operation");
  Require(parts >= 1, "a program has at least one part");
  const size_t storages = program.storage_bytes.size();
  const std::vector<int32_t> made_at = MakersOf(program);
  std::vector<int32_t> read_until(storages, kNone);  // up to the moment
  std::vector<uint8_t> read_later(storages, 0);
  for (int32_t i = 0; i < program.operation_count(); ++i) {
    for (const int32_t s : Row(program.op_inputs, program.op_input_begin, i)) {
      if (i <= moment) read_until[static_cast<size_t>(s)] = i;
      if (i > moment) read_later[static_cast<size_t>(s)] = 1;
    }
  }
  // Bytes alive over the gap after each operation, and bytes that it makes for later.
  const auto operations = static_cast<size_t>(moment) + 1;
  std::vector<int64_t> over(operations + 1, 0);
  std::vector<int64_t> made(operations, 0);
  const auto counts = [&](size_t s) {
    return made_at[s] != kNone && made_at[s] <= moment && program.storage_outside[s] == 0;
  };
  int64_t all = 0;
  for (size_t s = 0; s < storages; ++s) {
    if (!counts(s)) continue;
    if (read_until[s] > made_at[s]) {
      over[static_cast<size_t>(made_at[s])] += program.storage_bytes[s];
      over[static_cast<size_t>(read_until[s])] -= program.storage_bytes[s];
    }
    if (read_later[s] == 0) continue;
    made[static_cast<size_t>(made_at[s])] += program.storage_bytes[s];
    all += program.storage_bytes[s];
  }
  for (size_t i = 1; i <= operations; ++i) over[i] += over[i - 1];
  // Each part ends at the narrowest place of its second half, the last of several.
  const int64_t part_bytes = std::max<int64_t>(1, all / parts);
  std::vector<int32_t> cuts;
  int64_t bytes = 0;
  int32_t narrowest = kNone;
  for (int32_t i = 0; i < moment; ++i) {
    bytes += made[static_cast<size_t>(i)];
    if (2 * bytes >= part_bytes &&
        (narrowest == kNone ||
         over[static_cast<size_t>(i)] <= over[static_cast<size_t>(narrowest)])) {
      narrowest = i;
    }
    if (bytes < part_bytes) continue;
    cuts.push_back(narrowest);
    i = narrowest;
    narrowest = kNone;
    bytes = 0;
  }
  std::vector<uint8_t> alive(storages, 0);
  for (size_t s = 0; s < storages; ++s) {
    if (!counts(s)) continue;
    const auto cut = std::lower_bound(cuts.begin(), cuts.end(), made_at[s]);
    alive[s] = cut == cuts.end() || *cut < read_until[s] ? 1 : 0;
  }
  return alive;
}

Plan PlanAroundCheckpoints(const Program& program, const PlanOptions& options) {
  Require(options.checkpoints.size() == program.storage_bytes.size(),
          "checkpoints must be empty or parallel to storage_bytes");
  Require(program.discards.empty(), "a program with checkpoints discards nothing");
  if (program.operation_count() == 0) {
    PlanOptions plain = options;
    plain.checkpoints.clear();
    return MakePlan(program, plain);
  }
  const Rewriting rewriting(program, options.checkpoints);
  PlanOptions rest = options;
  rest.checkpoints.clear();
  rest.held_for.clear();  // what is made again is made by operations of the program
  rest.worth = Worth(options.worth, rewriting);
  rest.places = ByNewStorage<int64_t>(options.places, rewriting, kNone);
  rest.sides = ByNewStorage(options.sides, rewriting, SideHint::kByPolicy);
  rest.max_recomputations -= rewriting.copies;
  rest.max_tried_recomputations -= rewriting.copies;
  rest.max_recompute_seconds -= rewriting.copied_seconds;
  if (!rewriting.is_valid || (options.max_recomputations > 0 && rest.max_recomputations <= 0) ||
      (options.max_tried_recomputations > 0 && rest.max_tried_recomputations <= 0) ||
      (options.max_recompute_seconds > 0 && rest.max_recompute_seconds <= 0)) {
    return Refused(options);
  }
  if (options.max_recomputations <= 0) rest.max_recomputations = 0;
  if (options.max_tried_recomputations <= 0) rest.max_tried_recomputations = 0;
  if (options.max_recompute_seconds <= 0) rest.max_recompute_seconds = 0;
  Plan plan = MakePlan(rewriting.program, rest);
  if (!Translate(rewriting, program.storage_bytes.size(), &plan)) return Refused(options);
  const auto in_original = [&](int32_t operation) {
    if (operation == kNone) return kNone;
    return operation == rewriting.program.operation_count()
               ? program.operation_count()
               : rewriting.operation_of[static_cast<size_t>(operation)];
  };
  plan.failed_operation = in_original(plan.failed_operation);
  plan.failure.operation = in_original(plan.failure.operation);
  plan.stats.operations -= rewriting.copies;
  plan.stats.recomputations += rewriting.copies;
  plan.stats.compute_seconds -= rewriting.copied_seconds;
  plan.stats.recompute_seconds += rewriting.copied_seconds;
  plan.tried_recomputations += rewriting.copies;
  return plan;
}

}  // namespace coop
