// The sliding-window search: which run of neighbouring blocks is cheapest to evict.
//
// Model: blocks in address order, each with bytes and a score. Free blocks score 0; so do storages
// that nobody references. A block that may not be evicted ends every window. For each right end
// only the shortest sufficient window counts (scores are not negative, so it is the cheapest one
// with that right end). Among those the best has
//   1. the least sum of scores (in fixed point: exact),
//   2. then the fewest evicted bytes (free blocks evict nothing),
//   3. then, for a request from the left, the lowest first block; from the right, the highest last
//      block.
//   4. then the first one found (lowest last block).
//
// Complexity: each block enters and leaves once: O(blocks). Thread rule: one thread at a time.
// Source: paper section 3.3, Algorithm 1.
#ifndef COOP_CORE_WINDOW_H_
#define COOP_CORE_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cc/core/fixed_point.h"
#include "cc/core/types.h"

namespace coop {

enum class Side : uint8_t { kLeft, kRight };

struct Window {
  int32_t first = kNone;  // ids of the blocks at the two ends, as they were pushed
  int32_t last = kNone;
  int64_t bytes = 0;
  int64_t evicted_bytes = 0;
  Fixed score = 0;
};

// Takes the blocks in address order, one at a time.
class WindowSearch {
 public:
  void Begin(int64_t request_bytes, Side side) {
    request_bytes_ = request_bytes > 1 ? request_bytes : 1;
    side_ = side;
    found_ = false;
    Barrier();
  }

  // A free or evictable block. `score` is 0 for a free one.
  void Push(int32_t id, int64_t bytes, Fixed score, bool is_free) {
    const int64_t evicted_bytes = is_free ? 0 : bytes;
    entries_.push_back({score, bytes, evicted_bytes, id, order_++});
    score_ += score;
    bytes_ += bytes;
    evicted_bytes_ += evicted_bytes;
    if (bytes_ < request_bytes_) return;
    while (bytes_ - entries_[head_].bytes >= request_bytes_) {
      const Entry& left = entries_[head_++];
      score_ -= left.score;
      bytes_ -= left.bytes;
      evicted_bytes_ -= left.evicted_bytes;
    }
    if (!found_ || IsBetter()) {
      found_ = true;
      best_ = {entries_[head_].id, id, bytes_, evicted_bytes_, score_};
      best_first_order_ = entries_[head_].order;
    }
  }

  // A block that may not be evicted.
  void Barrier() {
    entries_.clear();
    head_ = 0;
    score_ = 0;
    bytes_ = 0;
    evicted_bytes_ = 0;
  }

  [[nodiscard]] std::optional<Window> Best() const {
    return found_ ? std::optional<Window>(best_) : std::nullopt;
  }

 private:
  struct Entry {
    Fixed score;
    int64_t bytes;
    int64_t evicted_bytes;
    int32_t id;
    int32_t order;
  };

  [[nodiscard]] bool IsBetter() const {
    if (score_ != best_.score) return score_ < best_.score;
    if (evicted_bytes_ != best_.evicted_bytes) return evicted_bytes_ < best_.evicted_bytes;
    // Blocks come in address order: this window ends after the best one so far.
    return side_ == Side::kRight || entries_[head_].order < best_first_order_;
  }

  int64_t request_bytes_ = 0;
  Side side_ = Side::kLeft;
  bool found_ = false;
  Window best_;
  int32_t best_first_order_ = 0;
  std::vector<Entry> entries_;  // the window is [head_, end)
  size_t head_ = 0;
  int32_t order_ = 0;
  Fixed score_ = 0;
  int64_t bytes_ = 0;
  int64_t evicted_bytes_ = 0;
};

// The same search over given blocks, for tests and benchmarks. Ids are indices into the span.
struct WindowBlock {
  int64_t bytes = 0;
  double score = 0;
  bool evictable = true;
  bool is_free = false;
};

[[nodiscard]] inline std::optional<Window> SearchWindow(std::span<const WindowBlock> blocks,
                                                        int64_t request_bytes, Side side) {
  WindowSearch search;
  search.Begin(request_bytes, side);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const WindowBlock& block = blocks[i];
    if (block.evictable || block.is_free) {
      search.Push(static_cast<int32_t>(i), block.bytes, block.is_free ? 0 : ToFixed(block.score),
                  block.is_free);
    } else {
      search.Barrier();
    }
  }
  return search.Best();
}

}  // namespace coop

#endif  // COOP_CORE_WINDOW_H_
