#include "cc/core/engine/residency.h"

#include <algorithm>

#include "cc/core/base/check.h"

namespace coop {
Residency::Residency(const EngineOptions& options)
    : options_(options),
      scores_by_size_(!options.policy.sliding_window ||
                      options.policy.heuristic == Heuristic::kDtr ||
                      options.policy.heuristic == Heuristic::kDte),
      looks_ahead_(options.policy.heuristic == Heuristic::kLookahead),
      blocks_(options.capacity_bytes, options.alignment_bytes),
      neighborhood_(graph_, options.policy.neighborhood, options.costs_from_first_search),
      demand_(graph_) {}

int64_t Residency::LargestWindowBytes() const {
  int64_t largest = 0;
  int64_t run = 0;
  for (BlockId b = blocks_.first(); b != kNone; b = blocks_[b].next) {
    const Block& block = blocks_[b];
    const bool usable = block.is_free() || (block.holder >= 0 && IsEvictableNow(block.holder));
    run = usable ? run + block.bytes : 0;
    largest = std::max(largest, run);
  }
  return largest;
}

int64_t Residency::EvictableBytesNow() const {
  int64_t bytes = 0;
  for (BlockId b = blocks_.first(); b != kNone; b = blocks_[b].next) {
    const Block& block = blocks_[b];
    if (block.holder >= 0 && IsEvictableNow(block.holder)) bytes += block.bytes;
  }
  return bytes;
}

double Residency::Fragmentation() const {
  const int64_t pool_bytes = blocks_.capacity_bytes() - stats().reserved_bytes;
  const int64_t free_bytes = blocks_.capacity_bytes() - blocks_.held_bytes();
  return pool_bytes > 0 ? static_cast<double>(free_bytes) / static_cast<double>(pool_bytes) : 0;
}

double Residency::SecondsUntilRead(StorageId id) const {
  const Storage& storage = graph_.storage(id);
  double seconds = Upcoming::kUnknown;
  if (storage.refs > 0) {
    seconds = upcoming_.SecondsUntilRead(id);
  } else {  // kept for what will be made from it
    for (EdgeId e = storage.first_consumer; e != kNone; e = graph_.edge(e).next_in_storage) {
      for (OutputId o = graph_.operation(graph_.edge(e).operation).first_output; o != kNone;
           o = graph_.output(o).next) {
        const StorageId made = graph_.output(o).storage;
        if (made == kNone || graph_.storage(made).state != StorageState::kEvicted ||
            graph_.storage(made).refs == 0) {
          continue;
        }
        const double then = upcoming_.SecondsUntilRead(made);
        if (then >= 0 && (seconds < 0 || then < seconds)) seconds = then;
      }
    }
  }
  // What waits now runs first.
  if (seconds >= 0) return seconds + pending_seconds_;
  return scalars_.clock_seconds - storage.last_access;
}

// --- Memory ---

void Residency::UpdateUse() {
  EngineStats& stats = scalars_.stats;
  stats.in_use_bytes = blocks_.held_bytes() - stats.reserved_bytes;
  stats.peak_in_use_bytes =
      std::max(stats.peak_in_use_bytes, stats.in_use_bytes + stats.outside_bytes);
  stats.peak_outside_bytes = std::max(stats.peak_outside_bytes, stats.outside_bytes);
  stats.peak_pool_bytes = std::max(stats.peak_pool_bytes, stats.in_use_bytes);
}

BlockId Residency::Take(BlockId free_block, int64_t bytes, Side side, int32_t holder) {
  const BlockId block = blocks_.Take(free_block, bytes, side, holder);
  UpdateUse();
  return block;
}

BlockId Residency::TakeAt(int64_t offset, int64_t bytes, int32_t holder) {
  const BlockId block = blocks_.TakeAt(offset, bytes, holder);
  UpdateUse();
  return block;
}

void Residency::FreeScratch(BlockId block) {
  blocks_.Free(block);
  UpdateUse();
}

void Residency::Reserve(BlockId free_block, int64_t bytes) {
  blocks_.Take(free_block, bytes, Side::kRight, kReservedBlock);
  scalars_.stats.reserved_bytes += bytes;
  UpdateUse();
}

void Residency::Unreserve() {
  BlockId block = blocks_.first();
  while (block != kNone) {
    if (blocks_[block].holder == kReservedBlock) block = blocks_.Free(block);
    block = blocks_[block].next;
  }
  scalars_.stats.reserved_bytes = 0;
  UpdateUse();
}

BlockId Residency::MakeEvicted(StorageId id) {
  Storage& storage = graph_.MutableStorage(id);
  const BlockId free_block = blocks_.Free(storage.block);
  storage.block = kNone;
  storage.state = StorageState::kEvicted;
  ++losses_;
  neighborhood_.OnEvicted(id);
  demand_.Update(id);
  UpdateUse();
  return free_block;
}

BlockId Residency::Evict(StorageId id) {
  const BlockId free_block = MakeEvicted(id);
  ++scalars_.stats.evictions;
  Emit({.kind = ActionKind::kEvict, .id = id});
  SyncMarks();
  return free_block;
}

void Residency::Move(StorageId id, int64_t offset) {
  Storage& storage = graph_.MutableStorage(id);
  const BlockId block = TakeAt(offset, blocks_[storage.block].bytes, id);
  Check(block != kNone, "what is moved goes where nothing lies");
  blocks_.Free(storage.block);
  storage.block = block;
  UpdateUse();
  Emit({.kind = ActionKind::kMove,
        .id = id,
        .first_placement = static_cast<int32_t>(placements.size()),
        .placement_count = 1});
  placements.push_back({.storage = id, .offset = offset});
  SyncMarks();
}

void Residency::Discard(StorageId id) {
  MakeEvicted(id);
  freed.push_back(id);
}

void Residency::ReportGone(StorageId id) {
  if (recording_) {
    Emit({.kind = ActionKind::kDrop, .id = id});
  } else {
    freed.push_back(id);
  }
}

void Residency::CountAdopted(int64_t bytes, Side side) {
  (side == Side::kLeft ? scalars_.adopted_left_bytes : scalars_.adopted_right_bytes) += bytes;
}

Side Residency::AdoptionSide() const {
  return scalars_.adopted_left_bytes <= scalars_.adopted_right_bytes ? Side::kLeft : Side::kRight;
}

void Residency::CountSearch(double fragmentation) {
  EngineStats& stats = scalars_.stats;
  ++stats.searches;
  stats.fragmentation_sum += fragmentation;
  stats.fragmentation_max = std::max(stats.fragmentation_max, fragmentation);
  ++stats.fragmentation_count;
}

// --- Storages and operations ---

StorageId Residency::AddStorage(const Storage& storage) {
  const StorageId id = graph_.AddStorage(storage);
  upcoming_.Forget(id);
  holds_.resize(static_cast<size_t>(graph_.storage_capacity()));
  demand_.Grow();
  Storage& added = graph_.MutableStorage(id);
  added.last_access = scalars_.clock_seconds;
  if (added.block != kNone) blocks_.SetHolder(added.block, id);
  if (added.outside) scalars_.stats.outside_bytes += added.bytes;
  UpdateUse();
  return id;
}

OperationId Residency::AddOperation(std::span<const StorageId> inputs,
                                    std::span<const OutputSpec> outputs, double cost_seconds,
                                    bool recomputable) {
  const OperationId id = graph_.AddOperation(inputs, outputs, cost_seconds, recomputable);
  holds_.resize(static_cast<size_t>(graph_.storage_capacity()));
  demand_.Grow();
  neighborhood_.OnEdgesAdded(id);
  for (OutputId o = graph_.operation(id).first_output; o != kNone; o = graph_.output(o).next) {
    upcoming_.Forget(graph_.output(o).storage);
  }
  return id;
}

void Residency::Release(StorageId id) {
  Storage& storage = graph_.MutableStorage(id);
  if (--storage.refs > 0) return;
  demand_.Update(id);
  if (storage.needed_by == 0) {
    unwanted_.push_back(id);
    CollectUnwanted();
  } else if (IsEvictable(storage)) {
    if (IsWorthKeeping(id)) {
      demand_.Keep(id);
      return;
    }
    MakeEvicted(id);
    ReportGone(id);
  }
}

void Residency::MakePermanent(StorageId id) {
  Storage& storage = graph_.MutableStorage(id);
  if (storage.permanent) return;
  storage.permanent = true;
  if (storage.producer != kNone && !storage.outside) LoseLiveOutput(storage.producer);
  CollectUnwanted();
}

void Residency::Forget(OperationId id) {
  for (OutputId o = graph_.operation(id).first_output; o != kNone;) {
    const Output output = graph_.output(o);  // Kill does not recycle it: the operation never ran
    if (output.storage != kNone) {
      graph_.MutableStorage(output.storage).refs = 0;  // unborn: not missing
      unwanted_.push_back(output.storage);
    }
    o = output.next;
  }
  CollectUnwanted();
  const size_t retired_count = retired.size();
  Retire(id);
  retired.resize(retired_count);  // the caller knows
  CollectUnwanted();
}

void Residency::LoseLiveOutput(OperationId id) {
  Operation& operation = graph_.MutableOperation(id);
  if (--operation.live_outputs == 0 && operation.executed) Retire(id);
}

void Residency::Retire(OperationId id) {
  neighborhood_.OnEdgesGoing(id);
  while (graph_.operation(id).first_edge != kNone) {
    const StorageId input = graph_.PopEdge(id);
    if (!graph_.storage(input).is_wanted()) unwanted_.push_back(input);
  }
  graph_.RecycleOperation(id);
  retired.push_back(id);
}

void Residency::Kill(StorageId id) {
  const Storage storage = graph_.storage(id);
  Check(!storage.is_wanted() && storage.state != StorageState::kDead,
        "only storages that are not wanted die, and once");
  if (storage.state == StorageState::kEvicted) {
    neighborhood_.OnNoLongerEvicted(id);
  } else if (storage.state == StorageState::kResident) {
    if (storage.outside) {
      scalars_.stats.outside_bytes -= storage.bytes;
    } else {
      blocks_.Free(storage.block);
    }
    UpdateUse();
    ReportGone(id);
  }
  if (storage.producer != kNone) graph_.MutableOutput(storage.output).storage = kNone;
  graph_.RecycleStorage(id);
  demand_.Forget(id);
  if (storage.has_recipe()) LoseLiveOutput(storage.producer);
}

void Residency::CollectUnwanted() {
  while (!unwanted_.empty()) {
    const StorageId id = unwanted_.back();
    unwanted_.pop_back();
    Kill(id);
  }
}

// --- Running ---

void Residency::TakeInPlace(StorageId input) {
  Storage& storage = graph_.MutableStorage(input);
  storage.block = kNone;
  ++losses_;
  if (storage.has_recipe()) {
    storage.state = StorageState::kEvicted;
    neighborhood_.OnEvicted(input);
    demand_.OnOverwritten(input);
  } else {
    storage.state = StorageState::kConsumed;
  }
}

void Residency::MakeOutputsPermanent(OperationId id, std::span<const PlacedOutput> outputs) {
  for (const PlacedOutput& placed : outputs) {
    if (placed.storage == kNone) continue;
    Storage& storage = graph_.MutableStorage(placed.storage);
    if (storage.has_recipe()) --graph_.MutableOperation(id).live_outputs;
    storage.permanent = true;
  }
}

void Residency::CommitRun(OperationId id, std::span<const PlacedOutput> outputs) {
  const bool recompute = graph_.operation(id).executed;
  const double cost_seconds = graph_.operation(id).cost_seconds;
  EngineStats& stats = scalars_.stats;
  ++(recompute ? stats.recomputations : stats.operations);
  (recompute ? stats.recompute_seconds : stats.compute_seconds) += cost_seconds;
  scalars_.clock_seconds += cost_seconds;
  const double now = scalars_.clock_seconds;

  for (EdgeId e = graph_.operation(id).first_edge; e != kNone;
       e = graph_.edge(e).next_in_operation) {
    graph_.MutableStorage(graph_.edge(e).storage).last_access = now;
  }
  Emit({.kind = ActionKind::kRun,
        .id = id,
        .recompute = recompute,
        .first_placement = static_cast<int32_t>(placements.size()),
        .placement_count = static_cast<int32_t>(outputs.size())});
  bool overwrote_source = false;
  for (const PlacedOutput& placed : outputs) {
    BlockId block = placed.block;
    if (placed.in_place != kNone) {
      block = graph_.storage(placed.in_place).block;
      overwrote_source |= !graph_.storage(placed.in_place).has_recipe();
      TakeInPlace(placed.in_place);
    }
    placements.push_back({.storage = placed.storage,
                          .offset = block == kNone ? -1 : blocks_[block].offset,
                          .in_place_input = placed.in_place_input});
    if (placed.storage == kNone) continue;
    if (recompute) neighborhood_.OnNoLongerEvicted(placed.storage);
    Storage& storage = graph_.MutableStorage(placed.storage);
    storage.state = StorageState::kResident;
    storage.block = block;
    storage.last_access = now;
    if (recompute) demand_.Update(placed.storage);
    if (block != kNone) blocks_.SetHolder(block, placed.storage);
    if (storage.outside) stats.outside_bytes += storage.bytes;
  }
  UpdateUse();
  for (const PlacedOutput& placed : outputs) {
    if (placed.storage == kNone && placed.block != kNone) FreeScratch(placed.block);
  }
  if (recompute) {
    SyncMarks();
    return;
  }

  graph_.MutableOperation(id).executed = true;
  graph_.MutableOperation(id).sequence = scalars_.stats.operations;
  if (overwrote_source) MakeOutputsPermanent(id, outputs);
  const Operation& operation = graph_.operation(id);
  if (!operation.recomputable || operation.live_outputs == 0) Retire(id);
  CollectUnwanted();
  SyncMarks();
}

}  // namespace coop
