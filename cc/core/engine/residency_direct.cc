// The short way of an operation that needs nothing brought back and nothing evicted.
//
// Purpose: nearly every operation of a program that fits goes this way, between launches that take
//   the caches: what counts is how few instructions, and how little of the books, it touches. So it
//   records nothing, and says in one piece what the general way takes many steps to.
// Invariant: what it leaves is what AddOperation and Run leave (tests/core/direct_test.cc).
// Thread rule and complexity: as engine.h. Source: ours.
#include "cc/core/engine/residency.h"

namespace coop {

bool Residency::RunDirectly(std::span<const StorageId> inputs, const OutputSpec& output,
                            double cost_seconds, bool recomputable, Engine::DirectRun* run) {
  for (const StorageId input : inputs) {
    if (!graph_.IsStorage(input)) return false;
    const Storage& storage = graph_.storage(input);
    if (storage.state != StorageState::kResident || storage.refs <= 0) return false;
  }
  BlockId block = kNone;
  int64_t offset = -1;
  EngineStats& stats = scalars_.stats;
  if (!output.outside) {
    const int64_t bytes = blocks_.RoundUp(output.bytes);
    const Side side = SideOf(cost_seconds, output.bytes);
    const BlockId room = blocks_.FindFree(bytes, side);
    if (room == kNone) return false;
    const Block& found = blocks_[room];
    offset = side == Side::kLeft ? found.offset : found.offset + found.bytes - bytes;
    if (output.place != kNone && output.place != offset) {
      block = blocks_.TakeAt(output.place, bytes, kScratchBlock);
    }
    if (block == kNone) {
      block = blocks_.Take(room, bytes, side, kScratchBlock);
    } else {
      offset = output.place;
    }
  } else {
    stats.outside_bytes += output.bytes;
  }
  ++stats.operations;
  stats.compute_seconds += cost_seconds;
  const double now = scalars_.clock_seconds += cost_seconds;
  for (const StorageId input : inputs) graph_.StorageNow(input).last_access = now;
  const Storage made{.bytes = output.bytes,
                     .cost_seconds = cost_seconds,
                     .last_access = now,
                     .refs = 1,
                     .block = block,
                     .state = StorageState::kResident,
                     .outside = output.outside};
  Graph::Added added;
  if (recomputable && !output.outside) {
    added = graph_.AddExecuted(inputs, output,
                               {.cost_seconds = cost_seconds,
                                .sequence = stats.operations,
                                .live_outputs = 1,
                                .recomputable = true,
                                .executed = true,
                                .alive = true},
                               made);
  } else {
    added.storage = graph_.AddStorageNow(made);  // it would retire at once
  }
  if (block != kNone) blocks_.SetHolder(block, added.storage);
  upcoming_.Forget(added.storage);
  holds_.resize(static_cast<size_t>(graph_.storage_capacity()));
  demand_.Grow();
  UpdateUse();
  *run = {added.operation, added.storage, offset};
  return true;
}

void Residency::TakeBack(StorageId output) {
  --scalars_.stats.operations;
  scalars_.stats.compute_seconds -= graph_.storage(output).cost_seconds;
  graph_.MutableStorage(output).refs = 1;
  Release(output);
}

}  // namespace coop
