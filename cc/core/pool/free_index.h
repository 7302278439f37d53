// The free blocks in address order, for the first that is large enough from either end.
//
// Model: a sorted list of (offset, bytes, block) in chunks; of each chunk the largest block is
//   known, so that those without a fit are passed over at once. A list in one piece of memory is
//   looked through many times faster than a tree.
// Invariants: chunks are not empty and hold at most kMost entries; entries are in address order
//   over all chunks; `largest` is that of the chunk's entries.
// Thread rule: one thread at a time. Complexity: with n free blocks O(n / kMost + kMost) for all,
//   a few lines of memory where there are few.
// Source: ours.
#ifndef COOP_CORE_POOL_FREE_INDEX_H_
#define COOP_CORE_POOL_FREE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/types.h"
#include "cc/core/pool/sliding_window.h"

namespace coop {

class FreeIndex {
 public:
  struct Entry {
    int64_t offset = 0;
    int64_t bytes = 0;
    BlockId block = kNone;
  };

  void Insert(const Entry& entry);
  // The entry at `offset`, which must be there, is gone.
  void Erase(int64_t offset);
  // It begins elsewhere or has another size now; its place among the others is the same.
  void Change(int64_t old_offset, int64_t offset, int64_t bytes);
  void Clear() { chunks_.clear(); }

  // The first block of at least `bytes` from that side; kNone if there is none.
  [[nodiscard]] BlockId First(int64_t bytes, Side side) const;
  // The last block that begins at or before `offset`; kNone if there is none.
  [[nodiscard]] BlockId AtOrBefore(int64_t offset) const;
  [[nodiscard]] int64_t LargestBytes() const;
  // All, in address order.
  [[nodiscard]] std::vector<Entry> Entries() const;

  void Validate() const;

 private:
  static constexpr size_t kMost = 64;
  struct Chunk {
    int64_t largest = 0;
    std::vector<Entry> entries;
  };

  // The chunk that has, or would have, what begins there. There must be one.
  [[nodiscard]] size_t ChunkOf(int64_t offset) const;
  // The entry at `offset` and its chunk.
  [[nodiscard]] Entry& At(int64_t offset, Chunk** chunk);

  std::vector<Chunk> chunks_;
};

}  // namespace coop

#endif  // COOP_CORE_POOL_FREE_INDEX_H_
