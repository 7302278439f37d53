#include "cc/core/planner/checkpoint_plan.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/core/engine/engine.h"
#include "cc/core/planner/checkpoint_rewrite.h"
#include "cc/core/planner/min_cut_keep_set.h"
#include "cc/core/planner/offline_placement.h"

namespace coop {
namespace {

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
  // What is dead in one form may come back in another: that is an eviction, too.
  std::vector<uint8_t> comes_back(storages, 0);
  int64_t evictions = 0;
  for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
    if (action->kind != ActionKind::kRun && comes_back[static_cast<size_t>(action->id)] != 0) {
      action->kind = ActionKind::kEvict;
      ++evictions;
    }
    if (action->kind != ActionKind::kRun) continue;
    const auto first = static_cast<size_t>(action->first_placement);
    for (const Placement& placement :
         std::span(plan->placements).subspan(first, static_cast<size_t>(action->placement_count))) {
      if (placement.storage != kNone) comes_back[static_cast<size_t>(placement.storage)] = 1;
    }
  }
  plan->actions = std::move(actions);
  plan->stats.evictions = std::max(plan->stats.evictions, evictions);
  return true;
}

struct NarrowCuts {
  std::vector<int32_t> after;  // operations that a cut comes after, in order
  std::vector<uint8_t> alive;  // by storage: over a cut, or made after the last of them
};

Checkpoints Around(const Program& program, std::vector<uint8_t> kept) {
  const Rewriting around(program, kept);
  return {.kept = std::move(kept),
          .pool_bytes = FullestBytes(around.program),
          .recompute_seconds = around.copied_seconds};
}

Plan Refused(const PlanOptions& options) {
  Plan plan;
  plan.failure.reason = FailureReason::kThrashing;
  plan.failure.capacity_bytes = options.engine.capacity_bytes;
  plan.failed_operation = 0;
  return plan;
}

NarrowCuts FindNarrowCuts(const Program& program, int32_t moment, int32_t parts, Cut cut) {
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
  // Each part ends at the narrowest place of its second half.
  const auto is_narrower = [&](int32_t place, int32_t than) {
    const int64_t difference = over[static_cast<size_t>(place)] - over[static_cast<size_t>(than)];
    return difference < 0 || (difference == 0 && cut == Cut::kLast);
  };
  const int64_t part_bytes = std::max<int64_t>(1, all / parts);
  std::vector<int32_t> cuts;
  int64_t bytes = 0;
  int32_t narrowest = kNone;
  for (int32_t i = 0; i < moment; ++i) {
    bytes += made[static_cast<size_t>(i)];
    if (2 * bytes >= part_bytes && (narrowest == kNone || is_narrower(i, narrowest))) {
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
    const auto next = std::lower_bound(cuts.begin(), cuts.end(), made_at[s]);
    alive[s] = next == cuts.end() || *next < read_until[s] ? 1 : 0;
  }
  return {.after = std::move(cuts), .alive = std::move(alive)};
}

// Of what is alive over the cuts what is needed to make a later part again than its own.
std::vector<uint8_t> NeededByLaterParts(const Program& program, int32_t moment,
                                        const NarrowCuts& cuts) {
  std::vector<uint8_t> kept = cuts.alive;
  const size_t storages = kept.size();
  std::vector<uint8_t> is_read(storages, 0);      // after the moment, or by what runs again
  std::vector<int32_t> read_by(storages, kNone);  // the last part that reads it when made again
  for (int32_t i = moment + 1; i < program.operation_count(); ++i) {
    for (const int32_t s : Row(program.op_inputs, program.op_input_begin, i)) {
      is_read[static_cast<size_t>(s)] = 1;
    }
  }
  for (int32_t i = moment; i >= 0; --i) {
    const auto next = std::lower_bound(cuts.after.begin(), cuts.after.end(), i);
    const auto part = static_cast<int32_t>(next - cuts.after.begin());
    bool again = false;
    for (const int32_t storage : Row(program.op_outputs, program.op_output_begin, i)) {
      const auto s = static_cast<size_t>(storage);
      if (read_by[s] <= part && program.op_recomputable[static_cast<size_t>(i)] != 0) kept[s] = 0;
      again |= is_read[s] != 0 && kept[s] == 0;
    }
    if (!again) continue;
    for (const int32_t storage : Row(program.op_inputs, program.op_input_begin, i)) {
      const auto s = static_cast<size_t>(storage);
      is_read[s] = 1;
      read_by[s] = std::max(read_by[s], part);
    }
  }
  return kept;
}

}  // namespace

std::vector<uint8_t> AliveOverNarrowCuts(const Program& program, int32_t moment, int32_t parts,
                                         Cut cut) {
  return FindNarrowCuts(program, moment, parts, cut).alive;
}

std::vector<Checkpoints> CheckpointsWithin(const Program& program, int64_t pool_bytes,
                                           const std::vector<double>& shares, int32_t parts,
                                           Cut cut) {
  const int32_t moment = FullestMoment(program);
  std::vector<uint8_t> anyway;
  if (parts > 0) anyway = AliveOverNarrowCuts(program, moment, parts, cut);
  std::vector<Checkpoints> all;
  for (std::vector<uint8_t>& kept : CheapestWithin(
           program, moment, pool_bytes, shares, anyway, [&](const std::vector<uint8_t>& now) {
             return FullestBytes(Rewriting(program, now).program);
           })) {
    all.push_back(Around(program, std::move(kept)));
  }
  return all;
}

std::vector<Checkpoints> CheckpointsAtCuts(const Program& program,
                                           const std::vector<int32_t>& parts, Cut cut) {
  const int32_t moment = FullestMoment(program);
  std::vector<Checkpoints> all;
  for (const int32_t count : parts) {
    const NarrowCuts cuts = FindNarrowCuts(program, moment, count, cut);
    all.push_back(Around(program, cuts.alive));
    all.push_back(Around(program, NeededByLaterParts(program, moment, cuts)));
  }
  return all;
}

Plan PlanAroundCheckpoints(const Program& program, const PlanOptions& options) {
  Require(options.checkpoints.size() == program.storage_bytes.size(),
          "checkpoints must be empty or parallel to storage_bytes");
  Require(program.discards.empty() && program.kept.empty() && program.op_is_read.empty(),
          "a program with checkpoints discards nothing, and hands nothing out before its end");
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
  if (rest.places.empty()) rest.places = PackedPlaces(rewriting.program, rest);
  if (rest.places.empty() && options.only_packed) return Refused(options);
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
  for (HeldBlock& block : plan.failure.held) {
    if (block.storage != kNone) {
      block.storage = rewriting.storage_of[static_cast<size_t>(block.storage)];
    }
  }
  plan.stats.operations -= rewriting.copies;
  plan.stats.recomputations += rewriting.copies;
  plan.stats.compute_seconds -= rewriting.copied_seconds;
  plan.stats.recompute_seconds += rewriting.copied_seconds;
  plan.tried_recomputations += rewriting.copies;
  return plan;
}

}  // namespace coop
