// The pool as blocks in address order.
//
// Model: every byte of [0, capacity) belongs to exactly one block. A block is free, or held by a
// storage, a reservation, or the scratch output of a run. Blocks form a doubly linked list inside a
// vector; ids of merged blocks are recycled.
// Invariants: block.offset + block.bytes == next.offset; no two neighbours are free; all offsets
// and sizes are multiples of the alignment; the free index holds exactly the free blocks.
// Thread rule: one thread at a time. Complexity: that of the free index to split, free and find.
// Source: paper section 3.2 (memory pool); the two ends: section 3.4.
#ifndef COOP_CORE_POOL_BLOCK_LIST_H_
#define COOP_CORE_POOL_BLOCK_LIST_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/journal.h"
#include "cc/core/base/types.h"
#include "cc/core/pool/free_index.h"
#include "cc/core/pool/sliding_window.h"

namespace coop {

// What a block holds instead of a storage id.
inline constexpr int32_t kFreeBlock = -1;
inline constexpr int32_t kReservedBlock = -2;
inline constexpr int32_t kScratchBlock = -3;  // of the run being prepared

struct Block {
  int64_t offset = 0;
  int64_t bytes = 0;
  BlockId previous = kNone;
  BlockId next = kNone;  // of a recycled id: the next recycled one
  int32_t holder = kFreeBlock;

  [[nodiscard]] bool is_free() const { return holder == kFreeBlock; }
};

class BlockList {
 public:
  BlockList(int64_t capacity_bytes, int64_t alignment_bytes);

  [[nodiscard]] int64_t RoundUp(int64_t bytes) const {
    return ((bytes > 1 ? bytes : 1) + alignment_bytes_ - 1) & ~(alignment_bytes_ - 1);
  }
  [[nodiscard]] int64_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] int64_t held_bytes() const { return scalars_.held_bytes; }
  [[nodiscard]] const Block& operator[](BlockId block) const { return blocks_[block]; }
  [[nodiscard]] BlockId first() const { return scalars_.first; }  // kNone: an empty pool
  // Ids are below it. Those of no block have 0 bytes.
  [[nodiscard]] int32_t id_count() const { return blocks_.count(); }

  // First free block of at least `bytes` from that side; kNone if there is none.
  [[nodiscard]] BlockId FindFree(int64_t bytes, Side side) const {
    return free_.First(bytes, side);
  }
  [[nodiscard]] int64_t LargestFreeBytes() const { return free_.LargestBytes(); }
  // Free bytes in the blocks beside this one.
  [[nodiscard]] int64_t AdjacentFreeBytes(BlockId block) const;

  // Gives `bytes` (rounded) at that end of a free block to a holder.
  BlockId Take(BlockId free_block, int64_t bytes, Side side, int32_t holder);
  // The same at a fixed place; kNone where it is not free.
  BlockId TakeAt(int64_t offset, int64_t bytes, int32_t holder);
  // Frees a block and merges it; returns the free block that contains it.
  BlockId Free(BlockId block);
  void SetHolder(BlockId block, int32_t holder) { blocks_.Mutable(block).holder = holder; }

  struct Scalars {
    BlockId first = kNone;
    BlockId recycled = kNone;
    int64_t held_bytes = 0;
  };
  struct MarkPoint {
    size_t log = 0;
    Scalars scalars;
  };
  void Record(bool recording) { blocks_.Record(recording); }
  [[nodiscard]] MarkPoint Mark() const { return {blocks_.Mark(), scalars_}; }
  void Rollback(const MarkPoint& mark);

  void Validate() const;
  [[nodiscard]] uint64_t Fingerprint(uint64_t hash) const;

 private:
  BlockId NewBlock(const Block& block);
  void Recycle(BlockId block);
  // A free block is not where, or as large as, it was.
  void Reindex(BlockId block, int64_t old_offset) {
    free_.Change(old_offset, blocks_[block].offset, blocks_[block].bytes);
  }

  int64_t capacity_bytes_;
  int64_t alignment_bytes_;
  Scalars scalars_;
  JournaledVector<Block> blocks_;
  FreeIndex free_;  // derived; rebuilt after a rollback
};

}  // namespace coop

#endif  // COOP_CORE_POOL_BLOCK_LIST_H_
