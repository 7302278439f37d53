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
#ifndef COOP_CORE_POOL_SLIDING_WINDOW_H_
#define COOP_CORE_POOL_SLIDING_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cc/core/base/fixed_point.h"
#include "cc/core/base/types.h"

namespace coop {

enum class Side : uint8_t { kLeft, kRight };

struct Window {
  int32_t first = kNone;  // ids of the blocks at the two ends, as they were pushed
  int32_t last = kNone;
  int64_t bytes = 0;
  int64_t evicted_bytes = 0;
  Fixed score = 0;
};

// The best of the windows that it is offered, in the order of their last blocks.
class BestWindow {
 public:
  void Begin(Side side) {
    side_ = side;
    found_ = false;
  }
  // `head` orders first blocks by address.
  [[gnu::always_inline]] void Offer(const Window& window, size_t head) {
    if (found_) {
      if (window.score > best_.score) return;
      if (window.score == best_.score) {
        if (window.evicted_bytes > best_.evicted_bytes) return;
        if (window.evicted_bytes == best_.evicted_bytes && side_ == Side::kLeft && head >= head_) {
          return;
        }
      }
    }
    found_ = true;
    best_ = window;
    head_ = head;
  }
  [[nodiscard]] std::optional<Window> Get() const {
    return found_ ? std::optional<Window>(best_) : std::nullopt;
  }

 private:
  Side side_ = Side::kLeft;
  bool found_ = false;
  Window best_;
  size_t head_ = 0;
};

// Takes the blocks in address order, one at a time. Keeps running totals before each block, so that
// the sums of a window are differences of two of them.
class WindowSearch {
 public:
  void Begin(int64_t request_bytes, Side side) {
    request_bytes_ = request_bytes > 1 ? request_bytes : 1;
    best_.Begin(side);
    count_ = 0;
    head_ = 0;
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
    best_.Offer({.first = ids_[head_],
                 .last = id,
                 .bytes = after.bytes - first.bytes,
                 .evicted_bytes = after.evicted_bytes - first.evicted_bytes,
                 .score = after.score - first.score},
                head_);
  }

  // A block that may not be evicted.
  void Barrier() { head_ = count_; }

  [[nodiscard]] std::optional<Window> Best() const { return best_.Get(); }

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
  BestWindow best_;
  size_t head_ = 0;             // the window is [head_, count_)
  size_t count_ = 0;            // blocks pushed
  std::vector<Totals> totals_;  // [n]: of all blocks before the n-th
  std::vector<int32_t> ids_;
};

// The same search, with the same answer, where scores are dear: it takes bounds, and asks for the
// score of a block only while a window with it may still be the best. Each block enters and leaves
// twice and is asked for once at most: O(blocks).
class LazyWindowSearch {
 public:
  void Begin(int64_t request_bytes, Side side) {
    request_bytes_ = request_bytes > 1 ? request_bytes : 1;
    side_ = side;
    all_known_ = true;
    blocks_.clear();
  }
  // A free or evictable block. `score` is 0 for a free one.
  void Push(int32_t id, int64_t bytes, Fixed score, bool is_free) {
    blocks_.push_back({score, bytes, id, true, is_free, false});
  }
  // An evictable block with that score or a higher one.
  void PushAtLeast(int32_t id, int64_t bytes, Fixed score) {
    blocks_.push_back({score, bytes, id, false, false, false});
    all_known_ = false;
  }
  // A block that may not be evicted.
  void Barrier() { blocks_.push_back({.is_barrier = true}); }

  // `score_of(id)`: the score of a block where it is not known.
  template <typename ScoreOf>
  std::optional<Window> Best(ScoreOf score_of) {
    std::optional<Window> likely = BestByBounds();
    if (!likely) return std::nullopt;
    if (all_known_) {
      likely->first = blocks_[static_cast<size_t>(likely->first)].id;
      likely->last = blocks_[static_cast<size_t>(likely->last)].id;
      return likely;
    }
    Fixed most = 0;
    for (int32_t i = likely->first; i <= likely->last; ++i) {
      Item& block = blocks_[static_cast<size_t>(i)];
      Learn(block, score_of);
      most += block.score;
    }

    best_.Begin(side_);
    unknown_.clear();
    size_t first_unknown = 0;  // in unknown_, which has those of the window from here on
    size_t head = 0;
    Window window;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Item& block = blocks_[i];
      if (block.is_barrier) {
        head = i + 1;
        window = {};
        first_unknown = unknown_.size();
        continue;
      }
      window.bytes += block.bytes;
      window.evicted_bytes += block.is_free ? 0 : block.bytes;
      window.score += block.score;
      if (!block.is_known) unknown_.push_back(i);
      if (window.bytes < request_bytes_) continue;
      for (; window.bytes - blocks_[head].bytes >= request_bytes_; ++head) {
        const Item& leaving = blocks_[head];
        window.bytes -= leaving.bytes;
        window.evicted_bytes -= leaving.is_free ? 0 : leaving.bytes;
        window.score -= leaving.score;
        if (!leaving.is_known) ++first_unknown;
      }
      while (window.score <= most && unknown_.size() > first_unknown) {
        window.score += Learn(blocks_[unknown_.back()], score_of);
        unknown_.pop_back();
      }
      if (window.score > most) continue;
      most = window.score;
      window.first = blocks_[head].id;
      window.last = block.id;
      best_.Offer(window, head);
    }
    return best_.Get();
  }

 private:
  // Likely to be good, so nothing above its score is looked at; named by positions in `blocks_`.
  std::optional<Window> BestByBounds() {
    bounds_.Begin(request_bytes_, side_);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Item& block = blocks_[i];
      if (block.is_barrier) {
        bounds_.Barrier();
      } else {
        bounds_.Push(static_cast<int32_t>(i), block.bytes, block.score, block.is_free);
      }
    }
    return bounds_.Best();
  }

  struct Item {
    Fixed score = 0;
    int64_t bytes = 0;
    int32_t id = kNone;
    bool is_known = true;
    bool is_free = false;
    bool is_barrier = false;
  };

  // By how much the score is above what was known of it.
  template <typename ScoreOf>
  static Fixed Learn(Item& block, ScoreOf score_of) {
    if (block.is_known) return 0;
    const Fixed before = block.score;
    block.score = score_of(block.id);
    block.is_known = true;
    return block.score - before;
  }

  int64_t request_bytes_ = 1;
  Side side_ = Side::kLeft;
  bool all_known_ = true;
  std::vector<Item> blocks_;
  std::vector<size_t> unknown_;  // of the window, by address
  WindowSearch bounds_;
  BestWindow best_;
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

#endif  // COOP_CORE_POOL_SLIDING_WINDOW_H_
