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

// Takes the blocks in address order, one at a time. Keeps running totals before each block, so that
// the sums of a window are differences of two of them.
class WindowSearch {
 public:
  void Begin(int64_t request_bytes, Side side) {
    request_bytes_ = request_bytes > 1 ? request_bytes : 1;
    side_ = side;
    count_ = 0;
    head_ = 0;
    found_ = false;
    if (totals_.empty()) Grow();
    totals_[0] = {};
  }

  // A free or evictable block. `score` is 0 for a free one.
  [[gnu::always_inline]] void Push(int32_t id, int64_t bytes, Fixed score, bool is_free) {
    if (count_ + 1 == totals_.size()) Grow();
    const Totals& before = totals_[count_];
    Totals& after = totals_[count_ + 1];
    after.score = before.score + score;
    after.bytes = before.bytes + bytes;
    after.evicted_bytes = before.evicted_bytes + (is_free ? 0 : bytes);
    ids_[count_++] = id;
    if (after.bytes - totals_[head_].bytes < request_bytes_) return;
    while (after.bytes - totals_[head_ + 1].bytes >= request_bytes_) ++head_;
    const Totals& first = totals_[head_];
    const Fixed window_score = after.score - first.score;
    const int64_t evicted_bytes = after.evicted_bytes - first.evicted_bytes;
    if (found_) {
      if (window_score > best_.score) return;
      if (window_score == best_.score) {
        if (evicted_bytes > best_.evicted_bytes) return;
        // Windows come in address order, of their last blocks.
        if (evicted_bytes == best_.evicted_bytes && side_ == Side::kLeft && head_ >= best_head_) {
          return;
        }
      }
    }
    found_ = true;
    best_ = {ids_[head_], id, after.bytes - first.bytes, evicted_bytes, window_score};
    best_head_ = head_;
  }

  // A block that may not be evicted.
  void Barrier() { head_ = count_; }

  [[nodiscard]] std::optional<Window> Best() const {
    return found_ ? std::optional<Window>(best_) : std::nullopt;
  }

 private:
  struct Totals {
    Fixed score = 0;
    int64_t bytes = 0;
    int64_t evicted_bytes = 0;
  };

  void Grow() {
    totals_.resize(2 * totals_.size() + 64);
    ids_.resize(totals_.size());
  }

  int64_t request_bytes_ = 1;
  Side side_ = Side::kLeft;
  bool found_ = false;
  Window best_;
  size_t best_head_ = 0;
  size_t head_ = 0;             // the window is [head_, count_)
  size_t count_ = 0;            // blocks pushed
  std::vector<Totals> totals_;  // [n]: of all blocks before the n-th
  std::vector<int32_t> ids_;
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
