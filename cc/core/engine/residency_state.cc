// The state of a Residency as a whole: going back, checking, hashing.
#include <algorithm>

#include "cc/core/base/check.h"
#include "cc/core/engine/residency.h"

namespace coop {

// --- Transactions ---

void Residency::Begin() {
  blocks_.Record(true);
  graph_.Record(true);
  neighborhood_.Record(true);
  demand_.Record(true);
  actions.clear();
  placements.clear();
  marks_.clear();
  recording_ = true;
  SyncMarks();
}

void Residency::Commit() {
  if (!recording_) return;
  blocks_.Record(false);
  graph_.Record(false);
  neighborhood_.Record(false);
  demand_.Record(false);
  marks_.clear();
  recording_ = false;
}

void Residency::SyncMarks() {
  // Actions that are only consistent together (a run and the deaths it causes) share a mark.
  while (marks_.size() <= actions.size()) marks_.push_back(Mark());
}

Residency::MarkPoint Residency::Mark() const {
  return {blocks_.Mark(), graph_.Mark(),  neighborhood_.Mark(), demand_.Mark(),
          scalars_,       actions.size(), placements.size(),    retired.size()};
}

void Residency::RollbackTo(const MarkPoint& mark) {
  const MarkPoint target = mark;  // it may lie in marks_
  blocks_.Rollback(target.blocks);
  graph_.Rollback(target.graph);
  neighborhood_.Rollback(target.neighborhood);
  demand_.Rollback(target.demand);
  scalars_ = target.scalars;
  actions.resize(target.actions);
  placements.resize(target.placements);
  retired.resize(std::min(retired.size(), target.retired));
  marks_.resize(target.actions + 1);
  ++losses_;
}

size_t Residency::Abort(size_t actions_done) {
  Require(recording_ && actions_done <= actions.size(),
          "Abort follows a transaction and names some of its actions");
  RollbackTo(marks_[actions_done]);
  // Outputs that were placed for a run that never came.
  for (BlockId b = blocks_.first(); b != kNone;) {
    b = blocks_[b].holder == kScratchBlock ? blocks_.Free(b) : blocks_[b].next;
  }
  UpdateUse();
  ClearPins();
  Commit();
  return actions.size();
}

void Residency::Describe(Failure* failure) const {
  failure->capacity_bytes = blocks_.capacity_bytes();
  failure->in_use_bytes = blocks_.held_bytes();
  failure->pinned_bytes = blocks_.held_bytes() - EvictableBytesNow();
  failure->largest_free_block_bytes = blocks_.LargestFreeBytes();
  failure->largest_window_bytes = LargestWindowBytes();
  failure->held.clear();
  for (BlockId b = blocks_.first(); b != kNone; b = blocks_[b].next) {
    const Block& block = blocks_[b];
    if (block.is_free()) continue;
    HeldBlock found{.storage = kNone, .offset = block.offset, .bytes = block.bytes};
    if (block.holder < 0) {
      found.reason =
          block.holder == kReservedBlock ? HoldReason::kReservation : HoldReason::kOutput;
    } else {
      const Storage& storage = graph_.storage(block.holder);
      found.storage = block.holder;
      // What no recipe makes again would stay without any reader, too.
      found.reason = storage.permanent              ? HoldReason::kPermanent
                     : storage.producer == kNone    ? HoldReason::kNoRecipe
                     : IsEvictableNow(block.holder) ? HoldReason::kEvictable
                                                    : HoldReason::kRead;
    }
    failure->held.push_back(found);
  }
}

void Residency::Validate() const {
  blocks_.Validate();
  graph_.Validate();
  neighborhood_.Validate();
  demand_.Validate();
  int64_t storage_blocks = 0;
  int64_t reserved_bytes = 0;
  for (BlockId b = blocks_.first(); b != kNone; b = blocks_[b].next) {
    const Block& block = blocks_[b];
    if (block.holder == kReservedBlock) reserved_bytes += block.bytes;
    if (block.holder < 0) continue;
    ++storage_blocks;
    Check(graph_.IsStorage(block.holder) && graph_.storage(block.holder).block == b,
          "a block's holder names the block");
    Check(block.bytes == blocks_.RoundUp(graph_.storage(block.holder).bytes),
          "a block is as large as its storage, rounded up");
  }
  int64_t outside_bytes = 0;
  for (StorageId s = 0; s < graph_.storage_capacity(); ++s) {
    const Storage& storage = graph_.storage(s);
    if (storage.state == StorageState::kDead) continue;
    const bool resident = storage.state == StorageState::kResident;
    Check((storage.block != kNone) == (resident && !storage.outside),
          "exactly the resident storages of the pool have a block");
    if (storage.block != kNone) --storage_blocks;
    if (resident && storage.outside) outside_bytes += storage.bytes;
    Check(pins(s) == 0 && protects(s) == 0, "pins do not outlive a transaction");
  }
  Check(storage_blocks == 0, "a storage holds at most one block");
  const EngineStats& stats = scalars_.stats;
  Check(reserved_bytes == stats.reserved_bytes, "reserved bytes are those of reserved blocks");
  Check(outside_bytes == stats.outside_bytes, "outside bytes are those of outside storages");
  Check(stats.in_use_bytes == blocks_.held_bytes() - reserved_bytes,
        "bytes in use are those of held blocks");
  Check(stats.peak_in_use_bytes >= stats.in_use_bytes + stats.outside_bytes,
        "the peak is not below the present use");
  Check(stats.peak_outside_bytes >= stats.outside_bytes,
        "the peak outside the pool is not below the present one");
  Check(stats.peak_pool_bytes >= stats.in_use_bytes, "nor is that inside");
  Check(unwanted_.empty(), "dead storages are collected at once");
}

uint64_t Residency::Fingerprint() const {
  uint64_t hash =
      demand_.Fingerprint(neighborhood_.Fingerprint(graph_.Fingerprint(blocks_.Fingerprint(0))));
  hash = upcoming_.Fingerprint(hash);
  const EngineStats& s = scalars_.stats;
  return HashValues(hash, s.operations, s.recomputations, s.evictions, Bits(s.compute_seconds),
                    Bits(s.recompute_seconds), s.searches, Bits(s.fragmentation_sum),
                    Bits(s.fragmentation_max), s.fragmentation_count, s.in_use_bytes,
                    s.outside_bytes, s.reserved_bytes, s.peak_in_use_bytes, s.peak_outside_bytes,
                    s.peak_pool_bytes, Bits(scalars_.clock_seconds), scalars_.adopted_left_bytes,
                    scalars_.adopted_right_bytes);
}

}  // namespace coop
