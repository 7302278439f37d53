#include "cc/core/evictor.h"

#include <optional>

#include "cc/core/check.h"

namespace coop {
namespace {

// Coop: the cheapest run of neighbouring blocks, found in one pass. O(blocks).
class SlidingWindowEvictor final : public Evictor {
 public:
  BlockId MakeRoom(Residency& residency, int64_t bytes, Side side) override {
    const std::optional<Window> window = Search(residency, bytes, side);
    if (!window) return kNone;
    // Evicting merges blocks, so the walk goes over the range by offset, not by block id.
    const BlockList& blocks = residency.blocks();
    BlockId block = window->first;
    const int64_t end = blocks[window->last].offset + blocks[window->last].bytes;
    while (true) {
      if (!blocks[block].is_free()) block = residency.Evict(blocks[block].holder);
      if (blocks[block].offset + blocks[block].bytes >= end) break;
      block = blocks[block].next;
    }
    Check(blocks[block].is_free() && blocks[block].bytes >= bytes,
          "an evicted window is one free block");
    return block;
  }

  bool Choose(const Residency& residency, int64_t bytes, Side side) override {
    return Search(residency, bytes, side).has_value();
  }

 private:
  std::optional<Window> Search(const Residency& residency, int64_t bytes, Side side) {
    const BlockList& blocks = residency.blocks();
    search_.Begin(bytes, side);
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      const Block& block = blocks[b];
      if (block.is_free()) {
        search_.Push(b, block.bytes, 0, true);
      } else if (block.holder >= 0 && residency.IsEvictableNow(block.holder)) {
        search_.Push(b, block.bytes, ToFixed(residency.Score(block.holder)), false);
      } else {
        search_.Barrier();
      }
    }
    return search_.Best();
  }

  WindowSearch search_;  // kept for its memory
};

// DTR and DTE: the single storage with the least score, again and again. O(blocks) an eviction.
// Ties go to the lower offset.
class IterativeEvictor final : public Evictor {
 public:
  BlockId MakeRoom(Residency& residency, int64_t bytes, Side /*side*/) override {
    // Evicting everything frees every run, so this decides beforehand whether it will come true.
    if (residency.LargestWindowBytes() < bytes) return kNone;
    while (true) {
      const StorageId cheapest = Cheapest(residency);
      Check(cheapest != kNone, "room is found before everything evictable is gone");
      const BlockId block = residency.Evict(cheapest);
      if (residency.blocks()[block].bytes >= bytes) return block;
    }
  }

  bool Choose(const Residency& residency, int64_t bytes, Side /*side*/) override {
    return residency.LargestWindowBytes() >= bytes && Cheapest(residency) != kNone;
  }

 private:
  static StorageId Cheapest(const Residency& residency) {
    const BlockList& blocks = residency.blocks();
    StorageId cheapest = kNone;
    double least = 0;
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      const StorageId storage = blocks[b].holder;
      if (storage < 0 || !residency.IsEvictableNow(storage)) continue;
      const double score = residency.Score(storage);
      if (cheapest != kNone && score >= least) continue;
      cheapest = storage;
      least = score;
    }
    return cheapest;
  }
};

}  // namespace

std::unique_ptr<Evictor> MakeEvictor(const Policy& policy) {
  if (policy.sliding_window) return std::make_unique<SlidingWindowEvictor>();
  return std::make_unique<IterativeEvictor>();
}

}  // namespace coop
