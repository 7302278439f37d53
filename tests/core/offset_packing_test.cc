// Packing: what is returned fits, and what can be packed mostly is.

#include "cc/core/pool/offset_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

namespace coop::testing {
namespace {

void ExpectFits(const std::vector<PackedItem>& items, const std::vector<int64_t>& offsets,
                int64_t capacity_bytes) {
  ASSERT_EQ(offsets.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_GE(offsets[i], 0);
    EXPECT_LE(offsets[i] + items[i].bytes, capacity_bytes);
    if (items[i].offset != kNone) {
      EXPECT_EQ(offsets[i], items[i].offset);
    }
    for (size_t j = 0; j < i; ++j) {
      const bool meet = items[i].begin < items[j].end && items[j].begin < items[i].end;
      const bool overlap =
          offsets[i] < offsets[j] + items[j].bytes && offsets[j] < offsets[i] + items[i].bytes;
      EXPECT_FALSE(meet && overlap) << i << " and " << j;
    }
  }
}

std::vector<PackedItem> RandomItems(std::mt19937_64* generator, int count) {
  std::vector<PackedItem> items;
  for (int i = 0; i < count; ++i) {
    const auto begin = static_cast<int32_t>((*generator)() % 40);
    const auto moments = static_cast<int32_t>(1 + (*generator)() % 12);
    const auto bytes = static_cast<int64_t>(64 * ((*generator)() % 9));
    items.push_back({.begin = begin, .end = begin + moments, .bytes = bytes});
  }
  return items;
}

int64_t MostAtOnce(const std::vector<PackedItem>& items) {
  int64_t most = 0;
  for (int32_t moment = 0; moment < 64; ++moment) {
    int64_t bytes = 0;
    for (const PackedItem& item : items) {
      if (item.begin <= moment && moment < item.end) bytes += item.bytes;
    }
    most = std::max(most, bytes);
  }
  return most;
}

TEST(PackingTest, WhatIsReturnedFits) {
  std::mt19937_64 generator(1);
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<PackedItem> items = RandomItems(&generator, 1 + round % 60);
    const int64_t most = MostAtOnce(items);
    // Something that is there already, and stays.
    items.push_back({.begin = 0, .end = 64, .bytes = 128, .offset = 256});
    const int64_t capacity_bytes =
        std::max<int64_t>(384, (most + 128) * (100 + round % 4 * 20) / 100 / 64 * 64);
    const auto offsets = Pack(items, capacity_bytes, 12);
    EXPECT_EQ(offsets, Pack(items, capacity_bytes, 12));
    if (!offsets) continue;
    ++found;
    ExpectFits(items, *offsets, capacity_bytes);
    for (const int64_t offset : *offsets) EXPECT_EQ(offset % 64, 0);
  }
  EXPECT_GT(found, 150);
}

TEST(PackingTest, WhatIsMoreThanThePoolIsNot) {
  std::mt19937_64 generator(2);
  for (int round = 0; round < 100; ++round) {
    const std::vector<PackedItem> items = RandomItems(&generator, 30);
    EXPECT_FALSE(Pack(items, MostAtOnce(items) - 64, 12));
  }
}

// Layers as in training: each makes something that stays until its way back, and much that goes.
std::vector<PackedItem> ForthAndBack(int32_t layers) {
  std::vector<PackedItem> items;
  const int32_t end = 8 * layers;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const int32_t there = 4 * layer;
    const int32_t back = end - 4 * layer;
    items.push_back({.begin = there, .end = back, .bytes = 64});
    for (int32_t k = 0; k < 3; ++k) {
      items.push_back({.begin = there + k, .end = there + k + 2, .bytes = 640});
      items.push_back({.begin = back - k - 2, .end = back - k, .bytes = 512 + 64 * k});
    }
    items.push_back({.begin = back - 1, .end = end + 1, .bytes = 128});  // a gradient
  }
  return items;
}

TEST(PackingTest, LayersArePackedWithHardlyMoreThanIsAlive) {
  for (int32_t layers = 1; layers <= 40; ++layers) {
    const std::vector<PackedItem> items = ForthAndBack(layers);
    int64_t most = 0;
    for (int32_t moment = 0; moment <= 8 * layers; ++moment) {
      int64_t bytes = 0;
      for (const PackedItem& item : items) {
        if (item.begin <= moment && moment < item.end) bytes += item.bytes;
      }
      most = std::max(most, bytes);
    }
    const int64_t capacity_bytes = most * 102 / 100 / 64 * 64 + 64;
    const auto offsets = Pack(items, capacity_bytes, 9);
    ASSERT_TRUE(offsets) << layers;
    ExpectFits(items, *offsets, capacity_bytes);
  }
}

TEST(PackingTest, WhatFoundNoRoomComesEarlier) {
  std::mt19937_64 generator(3);
  int by_one = 0;
  int by_many = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<PackedItem> items = RandomItems(&generator, 40);
    const int64_t capacity_bytes = MostAtOnce(items) * 104 / 100 / 64 * 64;
    by_one += Pack(items, capacity_bytes, 3).has_value();
    by_many += Pack(items, capacity_bytes, 30).has_value();
  }
  EXPECT_GT(by_many, by_one + 10);
}

TEST(PackingTest, TooManyNeighborsAreNotTried) {
  const std::vector<PackedItem> items(20, {.begin = 0, .end = 2, .bytes = 64});
  EXPECT_TRUE(Pack(items, 20 * 64, 1));
  EXPECT_FALSE(Pack(items, 20 * 64, 1, 100));
}

TEST(PackingTest, NothingTakesNoRoom) {
  EXPECT_TRUE(Pack({}, 0, 3));
  const std::vector<PackedItem> items = {{.begin = 0, .end = 9, .bytes = 0},
                                         {.begin = 4, .end = 4, .bytes = 64},
                                         {.begin = 2, .end = 6, .bytes = 64}};
  const auto offsets = Pack(items, 64, 3);
  ASSERT_TRUE(offsets);
  EXPECT_EQ(offsets->at(2), 0);
  EXPECT_THROW((void)Pack({{.begin = 0, .end = 2, .bytes = 64, .offset = 64}}, 64, 1),
               std::invalid_argument);
  EXPECT_THROW((void)Pack({{.begin = 3, .end = 2, .bytes = 1}}, 64, 1), std::invalid_argument);
}

}  // namespace
}  // namespace coop::testing
