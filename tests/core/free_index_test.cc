// The index of free blocks beside a map that is looked through from end to end.

#include "cc/core/pool/free_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <utility>

namespace coop {
namespace {

struct Reference {
  std::map<int64_t, std::pair<int64_t, BlockId>> blocks;  // offset: (bytes, block)

  [[nodiscard]] BlockId First(int64_t bytes, Side side) const {
    BlockId last = kNone;
    for (const auto& [offset, block] : blocks) {
      if (block.first < bytes) continue;
      if (side == Side::kLeft) return block.second;
      last = block.second;
    }
    return last;
  }
  [[nodiscard]] BlockId AtOrBefore(int64_t offset) const {
    const auto after = blocks.upper_bound(offset);
    return after == blocks.begin() ? kNone : std::prev(after)->second.second;
  }
};

void ExpectEqual(const FreeIndex& index, const Reference& reference, std::mt19937_64& random) {
  index.Validate();
  const auto entries = index.Entries();
  ASSERT_EQ(entries.size(), reference.blocks.size());
  int64_t largest = 0;
  auto it = reference.blocks.begin();
  for (const FreeIndex::Entry& entry : entries) {
    EXPECT_EQ(entry.offset, it->first);
    EXPECT_EQ(entry.bytes, it->second.first);
    EXPECT_EQ(entry.block, it->second.second);
    largest = std::max(largest, entry.bytes);
    ++it;
  }
  EXPECT_EQ(index.LargestBytes(), largest);
  for (int i = 0; i < 8; ++i) {
    const auto bytes = static_cast<int64_t>(random() % 1100);
    for (const Side side : {Side::kLeft, Side::kRight}) {
      EXPECT_EQ(index.First(bytes, side), reference.First(bytes, side));
    }
    const auto offset = static_cast<int64_t>(random() % 3'000'000);
    EXPECT_EQ(index.AtOrBefore(offset), reference.AtOrBefore(offset));
  }
}

TEST(FreeIndexTest, NothingIsFree) {
  const FreeIndex index;
  EXPECT_EQ(index.First(1, Side::kLeft), kNone);
  EXPECT_EQ(index.First(1, Side::kRight), kNone);
  EXPECT_EQ(index.AtOrBefore(5), kNone);
  EXPECT_EQ(index.LargestBytes(), 0);
}

TEST(FreeIndexTest, WhatIsNotThereCannotGo) {
  FreeIndex index;
  EXPECT_ANY_THROW(index.Erase(0));
  index.Insert({64, 64, 1});
  EXPECT_ANY_THROW(index.Erase(0));
  EXPECT_ANY_THROW(index.Change(128, 128, 1));
}

// Grows to some thousand blocks, shrinks to none, and so again.
TEST(FreeIndexTest, AgreesWithAMap) {
  std::mt19937_64 random(5);
  FreeIndex index;
  Reference reference;
  BlockId next = 0;
  for (int step = 0; step < 20'000; ++step) {
    const bool grows = (step / 5'000) % 2 == 0;
    const auto any = [&] {
      const auto at = static_cast<std::ptrdiff_t>(random() % reference.blocks.size());
      return std::next(reference.blocks.begin(), at);
    };
    if (reference.blocks.empty() || random() % 10 < (grows ? 7 : 2)) {
      const auto offset = static_cast<int64_t>(random() % 3000) * 1000;
      const auto bytes = static_cast<int64_t>(1 + random() % 500);
      const auto at_or_after = reference.blocks.lower_bound(offset);
      if (at_or_after != reference.blocks.end() && at_or_after->first < offset + 1000) continue;
      reference.blocks[offset] = {bytes, next};
      index.Insert({offset, bytes, next++});
    } else if (random() % 3 == 0) {  // one moves and is larger or smaller than before
      const auto [offset, block] = *any();
      const auto moved = offset / 1000 * 1000 + static_cast<int64_t>(random() % 400);
      const auto bytes = static_cast<int64_t>(1 + random() % 500);
      reference.blocks.erase(offset);
      reference.blocks[moved] = {bytes, block.second};
      index.Change(offset, moved, bytes);
    } else {
      const auto it = any();
      index.Erase(it->first);
      reference.blocks.erase(it);
    }
    if (step % 16 == 0 || reference.blocks.size() < 4) ExpectEqual(index, reference, random);
  }
  index.Clear();
  reference.blocks.clear();
  ExpectEqual(index, reference, random);
}

}  // namespace
}  // namespace coop
