#include "cc/core/planner/offline_placement.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "cc/core/pool/offset_packing.h"

namespace coop {
namespace {

constexpr int64_t kNoEnd = int64_t{1} << 50;
constexpr int32_t kPasses = 9;

// The options that matter to a plan in which nothing is ever in the way.
PlanOptions Plain(const PlanOptions& options) {
  PlanOptions plain;
  plain.engine.capacity_bytes = options.engine.capacity_bytes;
  plain.engine.alignment_bytes = options.engine.alignment_bytes;
  plain.engine.policy = options.engine.policy;
  plain.engine.expensive_seconds_per_byte = options.engine.expensive_seconds_per_byte;
  plain.foreign = options.foreign;
  plain.reserve_bytes = options.reserve_bytes;
  plain.pin_outputs_early = options.pin_outputs_early;
  return plain;
}

// Where the inputs and the reservations come to lie.
Plan PlanOfInputs(const Program& program, const PlanOptions& plain) {
  Program none;
  none.storage_bytes = program.storage_bytes;
  none.storage_outside = program.storage_outside;
  none.inputs = program.inputs;
  none.op_input_begin = none.op_output_begin = none.release_begin = {0};
  return MakePlan(none, plain);
}

// All that is in the pool at some time, and which item each storage is (part of).
class Stays {
 public:
  Stays(const Program& program, int64_t alignment_bytes)
      : program_(program),
        alignment_bytes_(alignment_bytes),
        item_of_(program.storage_bytes.size(), kNone) {}

  void AddInputs(const Plan& inputs) {
    for (size_t k = 0; k < program_.inputs.size(); ++k) {
      if (inputs.input_offsets[k] < 0) continue;
      const int32_t storage = program_.inputs[k].storage;
      Add(storage, RoundUp(program_.storage_bytes[Index(storage)]), inputs.input_offsets[k]);
    }
  }

  void AddBlocks(std::span<const Range> blocks) {
    for (const Range& block : blocks) Add(kNone, RoundUp(block.bytes), block.offset);
  }

  void Follow(const Plan& plan) {
    for (const Action& action : plan.actions) {
      ++now_;
      if (action.kind == ActionKind::kRun) {
        Run(action, std::span(plan.placements)
                        .subspan(static_cast<size_t>(action.first_placement),
                                 static_cast<size_t>(action.placement_count)));
      } else {
        const int32_t item = item_of_[Index(action.id)];
        if (item != kNone && holder_[Index(item)] == action.id) items[Index(item)].end = now_;
      }
    }
    ++now_;
    for (PackedItem& item : items) {
      if (item.end == kNone) item.end = now_;
    }
  }

  // As few items as possible for what is there all the time, where it is: everything meets it.
  [[nodiscard]] std::vector<PackedItem> WithoutNeighborsThatStay(std::vector<int32_t>* kept) const {
    std::vector<PackedItem> fewer;
    std::vector<std::pair<int64_t, int64_t>> walls;
    for (size_t i = 0; i < items.size(); ++i) {
      const PackedItem& item = items[i];
      if (item.offset != kNone && item.begin == 0 && item.end == now_) {
        walls.emplace_back(item.offset, item.offset + item.bytes);
      } else {
        fewer.push_back(item);
        kept->push_back(static_cast<int32_t>(i));
      }
    }
    std::sort(walls.begin(), walls.end());
    for (size_t w = 0; w < walls.size();) {
      auto [begin, end] = walls[w++];
      while (w < walls.size() && walls[w].first <= end) end = std::max(end, walls[w++].second);
      fewer.push_back({.begin = 0, .end = now_, .bytes = end - begin, .offset = begin});
    }
    return fewer;
  }

  // The storage that an item begins with; kNone: an input or a block of others.
  [[nodiscard]] int32_t MadeAs(int32_t item) const { return made_as_[Index(item)]; }

  std::vector<PackedItem> items;

 private:
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }

  [[nodiscard]] int64_t RoundUp(int64_t bytes) const {
    return (bytes + alignment_bytes_ - 1) / alignment_bytes_ * alignment_bytes_;
  }

  void Add(int32_t storage, int64_t bytes, int64_t offset) {
    if (storage != kNone) item_of_[Index(storage)] = static_cast<int32_t>(items.size());
    items.push_back({.begin = now_, .end = kNone, .bytes = bytes, .offset = offset});
    holder_.push_back(storage);
    made_as_.push_back(offset == kNone ? storage : kNone);
  }

  void Run(const Action& action, std::span<const Placement> placements) {
    const auto inputs = Row(program_.op_inputs, program_.op_input_begin, action.id);
    for (const Placement& placement : placements) {
      const int32_t storage = placement.storage;
      if (placement.offset < 0 || storage == kNone) continue;
      if (placement.in_place_input == kNone) {
        Add(storage, RoundUp(program_.storage_bytes[Index(storage)]), kNone);
        continue;
      }
      const int32_t over = inputs[Index(placement.in_place_input)];
      const int32_t item = item_of_[Index(storage)] = item_of_[Index(over)];
      holder_[Index(item)] = storage;
    }
  }

  const Program& program_;
  int64_t alignment_bytes_;
  int32_t now_ = 0;
  std::vector<int32_t> item_of_;  // by storage
  std::vector<int32_t> holder_;   // by item: the storage that has it now
  std::vector<int32_t> made_as_;  // by item
};

}  // namespace

std::vector<int64_t> PackedPlaces(const Program& program, const PlanOptions& options) {
  if (options.engine.policy.evict_always) return {};
  PlanOptions plain = Plain(options);
  const Plan inputs = PlanOfInputs(program, plain);
  plain.engine.capacity_bytes = kNoEnd;
  plain.reserve_bytes = 0;
  const Plan plan = MakePlan(program, plain);
  if (!inputs.feasible || !plan.feasible || plan.stats.recomputations != 0) return {};
  Stays stays(program, options.engine.alignment_bytes);
  stays.AddInputs(inputs);
  stays.AddBlocks(inputs.reserved);
  stays.AddBlocks(options.foreign);
  stays.Follow(plan);
  std::vector<int32_t> kept;
  const std::optional<std::vector<int64_t>> offsets =
      Pack(stays.WithoutNeighborsThatStay(&kept), options.engine.capacity_bytes, kPasses);
  if (!offsets) return {};
  std::vector<int64_t> places(program.storage_bytes.size(), kNone);
  for (size_t k = 0; k < kept.size(); ++k) {
    const int32_t storage = stays.MadeAs(kept[k]);
    if (storage != kNone) places[static_cast<size_t>(storage)] = (*offsets)[k];
  }
  return places;
}

}  // namespace coop
