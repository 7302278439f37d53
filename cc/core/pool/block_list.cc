#include "cc/core/pool/block_list.h"

#include <vector>

#include "cc/core/base/check.h"

namespace coop {

BlockList::BlockList(int64_t capacity_bytes, int64_t alignment_bytes)
    : capacity_bytes_(capacity_bytes & ~(alignment_bytes - 1)), alignment_bytes_(alignment_bytes) {
  if (capacity_bytes_ == 0) return;
  scalars_.first = NewBlock({0, capacity_bytes_, kNone, kNone, kFreeBlock});
  free_.Insert({0, capacity_bytes_, scalars_.first});
}

BlockId BlockList::NewBlock(const Block& block) {
  const BlockId id = scalars_.recycled;
  if (id == kNone) return blocks_.Append(block);
  scalars_.recycled = blocks_[id].next;
  blocks_.Mutable(id) = block;
  return id;
}

void BlockList::Recycle(BlockId block) {
  blocks_.Mutable(block) = {-1, 0, kNone, scalars_.recycled, kFreeBlock};
  scalars_.recycled = block;
}

int64_t BlockList::AdjacentFreeBytes(BlockId block) const {
  const Block& b = blocks_[block];
  int64_t bytes = 0;
  if (b.previous != kNone && blocks_[b.previous].is_free()) bytes += blocks_[b.previous].bytes;
  if (b.next != kNone && blocks_[b.next].is_free()) bytes += blocks_[b.next].bytes;
  return bytes;
}

BlockId BlockList::Take(BlockId free_block, int64_t bytes, Side side, int32_t holder) {
  const Block whole = blocks_[free_block];
  Check(whole.is_free() && whole.bytes >= bytes && bytes > 0, "only free blocks are taken");
  scalars_.held_bytes += bytes;
  if (whole.bytes == bytes) {
    free_.Erase(whole.offset);
    blocks_.Mutable(free_block).holder = holder;
    return free_block;
  }
  if (side == Side::kLeft) {
    const BlockId taken = NewBlock({whole.offset, bytes, whole.previous, free_block, holder});
    Block& rest = blocks_.Mutable(free_block);
    rest.offset += bytes;
    rest.bytes -= bytes;
    rest.previous = taken;
    if (whole.previous == kNone) {
      scalars_.first = taken;
    } else {
      blocks_.Mutable(whole.previous).next = taken;
    }
    Reindex(free_block, whole.offset);
    return taken;
  }
  const BlockId taken =
      NewBlock({whole.offset + whole.bytes - bytes, bytes, free_block, whole.next, holder});
  Block& rest = blocks_.Mutable(free_block);
  rest.bytes -= bytes;
  rest.next = taken;
  if (whole.next != kNone) blocks_.Mutable(whole.next).previous = taken;
  Reindex(free_block, whole.offset);
  return taken;
}

BlockId BlockList::TakeAt(int64_t offset, int64_t bytes, int32_t holder) {
  if (offset < 0 || bytes <= 0 || offset > capacity_bytes_ || bytes > capacity_bytes_ - offset) {
    return kNone;
  }
  const BlockId found = free_.AtOrBefore(offset);
  if (found == kNone) return kNone;
  const int64_t before = offset - blocks_[found].offset;
  if (before + bytes > blocks_[found].bytes) return kNone;
  if (before == 0) return Take(found, bytes, Side::kLeft, holder);
  // Cut off what is left of the place, take, and give the cut back.
  const BlockId cut = Take(found, before, Side::kLeft, kScratchBlock);
  const BlockId taken = Take(found, bytes, Side::kLeft, holder);
  Free(cut);
  return taken;
}

BlockId BlockList::Free(BlockId block) {
  const Block freed = blocks_[block];
  Check(!freed.is_free(), "only held blocks are freed");
  scalars_.held_bytes -= freed.bytes;
  const bool merge_left = freed.previous != kNone && blocks_[freed.previous].is_free();
  const bool merge_right = freed.next != kNone && blocks_[freed.next].is_free();
  if (!merge_left && !merge_right) {
    blocks_.Mutable(block).holder = kFreeBlock;
    free_.Insert({freed.offset, freed.bytes, block});
    return block;
  }
  if (!merge_left) {  // the right neighbour grows to the left
    const int64_t old_offset = blocks_[freed.next].offset;
    Block& right = blocks_.Mutable(freed.next);
    right.offset = freed.offset;
    right.bytes += freed.bytes;
    right.previous = freed.previous;
    if (freed.previous == kNone) {
      scalars_.first = freed.next;
    } else {
      blocks_.Mutable(freed.previous).next = freed.next;
    }
    Reindex(freed.next, old_offset);
    Recycle(block);
    return freed.next;
  }
  BlockId after = freed.next;
  int64_t gained = freed.bytes;
  if (merge_right) {
    const Block right = blocks_[freed.next];
    gained += right.bytes;
    after = right.next;
    free_.Erase(right.offset);
    Recycle(freed.next);
  }
  Block& left = blocks_.Mutable(freed.previous);
  left.bytes += gained;
  left.next = after;
  if (after != kNone) blocks_.Mutable(after).previous = freed.previous;
  Reindex(freed.previous, left.offset);
  Recycle(block);
  return freed.previous;
}

void BlockList::Rollback(const MarkPoint& mark) {
  blocks_.Rollback(mark.log);
  scalars_ = mark.scalars;
  free_.Clear();
  for (BlockId b = first(); b != kNone; b = blocks_[b].next) {
    if (blocks_[b].is_free()) free_.Insert({blocks_[b].offset, blocks_[b].bytes, b});
  }
}

void BlockList::Validate() const {
  int64_t end = 0;
  int64_t held_bytes = 0;
  const std::vector<FreeIndex::Entry> listed = free_.Entries();
  size_t free_count = 0;
  bool previous_free = false;
  BlockId previous = kNone;
  int32_t visited = 0;
  for (BlockId b = first(); b != kNone; b = blocks_[b].next) {
    const Block& block = blocks_[b];
    Check(++visited <= blocks_.count(), "the block list has no cycle");
    Check(block.previous == previous, "a block's previous block names it as its next");
    Check(block.offset == end && block.bytes > 0, "blocks tile the pool");
    Check(block.offset % alignment_bytes_ == 0 && block.bytes % alignment_bytes_ == 0,
          "blocks are aligned");
    Check(!(previous_free && block.is_free()), "free neighbours are merged");
    Check(block.holder != kScratchBlock, "scratch blocks do not outlive their run");
    if (block.is_free()) {
      Check(free_count < listed.size(), "the free index holds every free block");
      const FreeIndex::Entry& entry = listed[free_count++];
      Check(entry.offset == block.offset && entry.bytes == block.bytes && entry.block == b,
            "the free index knows the free blocks");
    } else {
      held_bytes += block.bytes;
    }
    end += block.bytes;
    previous_free = block.is_free();
    previous = b;
  }
  Check(end == capacity_bytes_, "blocks cover the pool");
  free_.Validate();
  Check(listed.size() == free_count, "the free index holds nothing but free blocks");
  Check(held_bytes == scalars_.held_bytes, "the held bytes are those of the held blocks");
  for (BlockId b = scalars_.recycled; b != kNone; b = blocks_[b].next) ++visited;
  Check(visited == blocks_.count(), "every block is listed or recycled");
}

uint64_t BlockList::Fingerprint(uint64_t hash) const {
  hash = HashValues(hash, scalars_.first, scalars_.recycled, scalars_.held_bytes, blocks_.count());
  for (BlockId b = 0; b < blocks_.count(); ++b) {
    const Block& block = blocks_[b];
    hash = HashValues(hash, block.offset, block.bytes, block.previous, block.next, block.holder);
  }
  for (const auto& [offset, bytes, block] : free_.Entries()) hash = HashValues(hash, offset, block);
  return hash;
}

}  // namespace coop
