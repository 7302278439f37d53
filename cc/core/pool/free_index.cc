#include "cc/core/pool/free_index.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include "cc/core/base/check.h"

namespace coop {
namespace {

int64_t LargestOf(const std::vector<FreeIndex::Entry>& entries) {
  int64_t largest = 0;
  for (const FreeIndex::Entry& entry : entries) largest = std::max(largest, entry.bytes);
  return largest;
}

}  // namespace

size_t FreeIndex::ChunkOf(int64_t offset) const {
  const auto after = std::ranges::upper_bound(
      chunks_, offset, {}, [](const Chunk& chunk) { return chunk.entries.front().offset; });
  return after == chunks_.begin() ? 0 : static_cast<size_t>(after - chunks_.begin()) - 1;
}

FreeIndex::Entry& FreeIndex::At(int64_t offset, Chunk** chunk) {
  Check(!chunks_.empty(), "the free index holds every free block");
  *chunk = &chunks_[ChunkOf(offset)];
  const auto found = std::ranges::lower_bound((*chunk)->entries, offset, {}, &Entry::offset);
  Check(found != (*chunk)->entries.end() && found->offset == offset,
        "the free index holds every free block");
  return *found;
}

void FreeIndex::Insert(const Entry& entry) {
  if (chunks_.empty()) {
    chunks_.push_back({entry.bytes, {entry}});
    return;
  }
  const size_t number = ChunkOf(entry.offset);
  std::vector<Entry>& entries = chunks_[number].entries;
  entries.insert(std::ranges::upper_bound(entries, entry.offset, {}, &Entry::offset), entry);
  chunks_[number].largest = std::max(chunks_[number].largest, entry.bytes);
  if (entries.size() <= kMost) return;
  const auto middle = entries.begin() + static_cast<std::ptrdiff_t>(entries.size() / 2);
  Chunk second{0, {middle, entries.end()}};
  entries.erase(middle, entries.end());
  chunks_[number].largest = LargestOf(entries);
  second.largest = LargestOf(second.entries);
  chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(number) + 1, std::move(second));
}

void FreeIndex::Erase(int64_t offset) {
  Chunk* chunk = nullptr;
  const Entry& entry = At(offset, &chunk);
  const bool was_largest = entry.bytes == chunk->largest;
  chunk->entries.erase(chunk->entries.begin() + (&entry - chunk->entries.data()));
  const auto place = chunks_.begin() + (chunk - chunks_.data());
  if (place->entries.empty()) {
    chunks_.erase(place);
    return;
  }
  if (was_largest) place->largest = LargestOf(place->entries);
  const auto next = std::next(place);
  if (next == chunks_.end() || place->entries.size() + next->entries.size() > kMost / 2) return;
  place->entries.insert(place->entries.end(), next->entries.begin(), next->entries.end());
  place->largest = std::max(place->largest, next->largest);
  chunks_.erase(next);
}

void FreeIndex::Change(int64_t old_offset, int64_t offset, int64_t bytes) {
  Chunk* chunk = nullptr;
  Entry& entry = At(old_offset, &chunk);
  const bool was_largest = entry.bytes == chunk->largest;
  entry.offset = offset;
  entry.bytes = bytes;
  chunk->largest = was_largest && bytes < chunk->largest ? LargestOf(chunk->entries)
                                                         : std::max(chunk->largest, bytes);
}

BlockId FreeIndex::First(int64_t bytes, Side side) const {
  const auto fits = [bytes](const Entry& entry) { return entry.bytes >= bytes; };
  if (side == Side::kLeft) {
    for (const Chunk& chunk : chunks_) {
      if (chunk.largest >= bytes) return std::ranges::find_if(chunk.entries, fits)->block;
    }
  } else {
    for (const Chunk& chunk : std::views::reverse(chunks_)) {
      if (chunk.largest < bytes) continue;
      return std::ranges::find_if(std::views::reverse(chunk.entries), fits)->block;
    }
  }
  return kNone;
}

BlockId FreeIndex::AtOrBefore(int64_t offset) const {
  if (chunks_.empty()) return kNone;
  const std::vector<Entry>& entries = chunks_[ChunkOf(offset)].entries;
  const auto after = std::ranges::upper_bound(entries, offset, {}, &Entry::offset);
  return after == entries.begin() ? kNone : std::prev(after)->block;
}

int64_t FreeIndex::LargestBytes() const {
  int64_t largest = 0;
  for (const Chunk& chunk : chunks_) largest = std::max(largest, chunk.largest);
  return largest;
}

std::vector<FreeIndex::Entry> FreeIndex::Entries() const {
  std::vector<Entry> all;
  for (const Chunk& chunk : chunks_) {
    all.insert(all.end(), chunk.entries.begin(), chunk.entries.end());
  }
  return all;
}

void FreeIndex::Validate() const {
  int64_t last = -1;
  for (const Chunk& chunk : chunks_) {
    Check(!chunk.entries.empty() && chunk.entries.size() <= kMost, "chunks are of a fair size");
    Check(chunk.largest == LargestOf(chunk.entries), "a chunk's largest block is known");
    for (const Entry& entry : chunk.entries) {
      Check(entry.offset > last, "the free index is in address order");
      last = entry.offset;
    }
  }
}

}  // namespace coop
