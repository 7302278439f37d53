#include "cc/core/engine/evictor.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "cc/core/base/check.h"

namespace coop {
namespace {

// Coop: the cheapest run of neighbouring blocks, found in one pass: over the pool or, where that is
// cut into very many blocks, over samples of it, so that planning stays linear in the program.
// O(min(blocks, kMostSearched)); O(blocks) where no sample has room.
class SlidingWindowEvictor final : public Evictor {
 public:
  BlockId MakeRoom(Residency& residency, int64_t bytes, Side side) override {
    const std::optional<Window> window = Search(residency, bytes, side);
    if (!window) return kNone;
    const BlockList& blocks = residency.blocks();
    const int64_t begin = blocks[window->first].offset;
    const int64_t end = blocks[window->last].offset + blocks[window->last].bytes;
    if (residency.options().may_move) MoveTreasures(residency, {begin, end - begin});
    const BlockId block = EvictRange(residency, begin, end);
    Check(blocks[block].is_free() && blocks[block].bytes >= bytes,
          "an evicted window is one free block");
    return block;
  }

  bool Choose(const Residency& residency, int64_t bytes, Side side) override {
    return Search(residency, bytes, side).has_value();
  }

 private:
  // Evicts what is left there; the one free block that it is then.
  static BlockId EvictRange(Residency& residency, int64_t begin, int64_t end) {
    // Evicting merges blocks, so the walk goes over the range by offset, not by block id.
    const BlockList& blocks = residency.blocks();
    BlockId block = blocks.first();
    while (blocks[block].offset + blocks[block].bytes <= begin) block = blocks[block].next;
    while (true) {
      if (!blocks[block].is_free()) block = residency.Evict(blocks[block].holder);
      if (blocks[block].offset + blocks[block].bytes >= end) return block;
      block = blocks[block].next;
    }
  }

  // Takes treasures out of a window, each to where something is free or cheap. Those for which
  // there is no such place stay.
  void MoveTreasures(Residency& residency, Range window) {
    const BlockList& blocks = residency.blocks();
    treasures_.clear();
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      if (blocks[b].offset < window.offset || blocks[b].holder < 0) continue;
      if (blocks[b].offset >= window.offset + window.bytes) break;
      if (residency.IsTreasured(blocks[b].holder)) treasures_.push_back(blocks[b].holder);
    }
    for (const StorageId treasure : treasures_) {
      const int64_t bytes = blocks[residency.graph().storage(treasure).block].bytes;
      int64_t place = FreeBeside(blocks, bytes, window);
      if (place < 0) place = EvictBeside(residency, bytes, window);
      if (place >= 0) residency.Move(treasure, place);
    }
  }

  // The lowest free place outside a range; -1 for none.
  static int64_t FreeBeside(const BlockList& blocks, int64_t bytes, Range range) {
    const int64_t range_end = range.offset + range.bytes;
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      if (!blocks[b].is_free()) continue;
      const int64_t begin = blocks[b].offset;
      const int64_t end = begin + blocks[b].bytes;
      if (std::min(end, range.offset) - begin >= bytes) return begin;
      if (end - std::max(begin, range_end) >= bytes) return std::max(begin, range_end);
    }
    return -1;
  }

  // Makes such a place of what is cheap.
  int64_t EvictBeside(Residency& residency, int64_t bytes, Range range) {
    const BlockList& blocks = residency.blocks();
    beside_.Begin(bytes, Side::kLeft);
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      const Block& block = blocks[b];
      if (block.offset < range.offset + range.bytes && block.offset + block.bytes > range.offset) {
        beside_.Barrier();
      } else if (block.is_free()) {
        beside_.Push(b, block.bytes, 0, true);
      } else if (block.holder >= 0 && residency.IsEvictableNow(block.holder) &&
                 !residency.IsTreasured(block.holder)) {
        beside_.Push(b, block.bytes, ToFixed(residency.Score(block.holder)), false);
      } else {
        beside_.Barrier();
      }
    }
    const std::optional<Window> window = beside_.Best();
    if (!window) return -1;
    const int64_t begin = blocks[window->first].offset;
    EvictRange(residency, begin, blocks[window->last].offset + blocks[window->last].bytes);
    return begin;
  }

  static constexpr int32_t kMostSearched = 4096;
  static constexpr int32_t kSamples = 64;  // of neighbours: windows lie in one
  static constexpr int32_t kSampleBlocks = 32;

  std::optional<Window> Search(const Residency& residency, int64_t bytes, Side side) {
    if (!residency.ScoresAreDear()) return Search(residency, bytes, side, search_);
    return Search(residency, bytes, side, lazy_);
  }

  template <typename SearchType>
  static std::optional<Window> Search(const Residency& residency, int64_t bytes, Side side,
                                      SearchType& search) {
    const BlockList& blocks = residency.blocks();
    if (blocks.id_count() > kMostSearched) {
      search.Begin(bytes, side);
      PushSamples(residency, search);
      if (const std::optional<Window> window = Best(residency, search)) return window;
    }
    search.Begin(bytes, side);
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) Push(residency, b, search);
    return Best(residency, search);
  }

  // Each sample begins somewhere in a stretch of its own; the stretches cover all ids of blocks,
  // which is to say the pool. Where in it differs from sample to sample and from search to search:
  // what repeats in the pool, as layers do, must not be missed by all of them.
  template <typename SearchType>
  static void PushSamples(const Residency& residency, SearchType& search) {
    const BlockList& blocks = residency.blocks();
    const int64_t ids = blocks.id_count();
    const int64_t stretch = ids / kSamples;
    const auto searches = static_cast<uint64_t>(residency.stats().searches);
    for (int64_t n = 0; n < kSamples; ++n) {
      const uint64_t mixed = HashValue(searches, static_cast<uint64_t>(n));
      const uint64_t within = mixed % static_cast<uint64_t>(stretch);
      auto b = static_cast<BlockId>(n * stretch + static_cast<int64_t>(within));
      while (b < ids && blocks[b].bytes == 0) ++b;
      if (b == ids) continue;
      for (int32_t left = kSampleBlocks; left > 0 && b != kNone; --left) {
        Push(residency, b, search);
        b = blocks[b].next;
      }
      search.Barrier();
    }
  }

  template <typename SearchType>
  static void Push(const Residency& residency, BlockId b, SearchType& search) {
    const Block& block = residency.blocks()[b];
    if (block.is_free()) {
      search.Push(b, block.bytes, 0, true);
    } else if (block.holder >= 0 && residency.IsEvictableNow(block.holder)) {
      PushEvictable(residency, b, search);
    } else {
      search.Barrier();
    }
  }

  static void PushEvictable(const Residency& residency, BlockId b, WindowSearch& search) {
    const Block& block = residency.blocks()[b];
    search.Push(b, block.bytes, ToFixed(residency.Score(block.holder)), false);
  }

  static void PushEvictable(const Residency& residency, BlockId b, LazyWindowSearch& search) {
    const Block& block = residency.blocks()[b];
    const Fixed at_least = ToFixed(residency.ScoreAtLeast(block.holder));
    if (residency.IsScoreDear(block.holder)) {
      search.PushAtLeast(b, block.bytes, at_least);
    } else {
      search.Push(b, block.bytes, at_least, false);
    }
  }

  static std::optional<Window> Best(const Residency& /*residency*/, WindowSearch& search) {
    return search.Best();
  }

  static std::optional<Window> Best(const Residency& residency, LazyWindowSearch& search) {
    return search.Best(
        [&](BlockId b) { return ToFixed(residency.Score(residency.blocks()[b].holder)); });
  }

  // Kept for their memory.
  WindowSearch search_;
  LazyWindowSearch lazy_;
  WindowSearch beside_;
  std::vector<StorageId> treasures_;  // of MoveTreasures
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
    const bool dear = residency.ScoresAreDear();
    StorageId cheapest = kNone;
    double least = 0;
    for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
      const StorageId storage = blocks[b].holder;
      if (storage < 0 || !residency.IsEvictableNow(storage)) continue;
      if (cheapest != kNone && dear && residency.ScoreAtLeast(storage) >= least) continue;
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
