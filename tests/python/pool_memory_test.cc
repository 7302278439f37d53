// Pool memory without Python: what slots are refused, and who keeps what alive, under sanitizers.

#include "cc/python/memory/pool_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace coop::python {
namespace {

struct ReleasePool {
  void operator()(PoolMemory* pool) const { pool->Release(); }
};
using PoolPtr = std::unique_ptr<PoolMemory, ReleasePool>;

struct DeleteTensor {
  void operator()(DLManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using SlotPtr = std::unique_ptr<DLManagedTensor, DeleteTensor>;

PoolPtr HostPool(int64_t capacity_bytes) {
  return PoolPtr(PoolMemory::New(std::make_unique<HostArena>(capacity_bytes)));
}

SlotSpec Bytes(int64_t bytes) { return SlotSpec({bytes}, /*type_code=*/1, 8, -1); }

TEST(PoolMemory, SlotsOutliveThePoolObject) {
  PoolPtr pool = HostPool(1 << 16);
  SlotPtr slot(pool->NewSlot(4096, Bytes(4096), true));
  pool.reset();
  std::memset(slot->dl_tensor.data, 1, 4096);
}

TEST(PoolMemory, TheOwnerOfForeignMemoryIsReleasedOnceAfterTheLastSlot) {
  std::vector<char> memory(4096);
  int released = 0;
  PoolPtr pool(PoolMemory::New(
      std::make_unique<ForeignArena>(reinterpret_cast<uint64_t>(memory.data()), 4096,
                                     DLDevice{kDLCuda, 3}, [&released] { ++released; })));
  SlotPtr slot(pool->NewSlot(0, Bytes(64), true));
  EXPECT_EQ(slot->dl_tensor.device.device_type, kDLCuda);
  EXPECT_EQ(slot->dl_tensor.device.device_id, 3);
  pool.reset();
  EXPECT_EQ(released, 0);
  slot.reset();
  EXPECT_EQ(released, 1);
}

TEST(PoolMemory, ASlotCopiesTheShapeOfItsSpec) {
  const PoolPtr pool = HostPool(1 << 16);
  for (const size_t rank : {0, 1, 8, 9, 20}) {
    auto spec = std::make_unique<SlotSpec>(std::vector<int64_t>(rank, 2 - (rank > 8)), 2, 32, -1);
    const std::vector<int64_t> shape = spec->shape;
    const SlotPtr slot(pool->NewSlot(0, *spec, true));
    spec.reset();
    ASSERT_EQ(slot->dl_tensor.ndim, static_cast<int32_t>(rank));
    EXPECT_EQ(std::vector<int64_t>(slot->dl_tensor.shape, slot->dl_tensor.shape + rank), shape);
    EXPECT_EQ(slot->dl_tensor.strides, nullptr);
  }
}

TEST(PoolMemory, ARefusedSlotChangesNothing) {
  const PoolPtr pool = HostPool(1 << 16);
  const SlotPtr held(pool->NewSlot(64, Bytes(64), true));
  EXPECT_THROW((void)pool->NewSlot(64, Bytes(64), true), SlotInUseError);
  EXPECT_THROW((void)pool->NewSlot(64, Bytes(65), false), SlotInUseError);
  EXPECT_THROW((void)pool->NewSlot(0, Bytes(65), false), SlotInUseError);
  EXPECT_THROW((void)pool->NewSlot(127, Bytes(1), false), SlotInUseError);
  EXPECT_THROW((void)pool->NewSlot(1 << 16, Bytes(1), false), std::invalid_argument);
  EXPECT_EQ(pool->LiveCount(64), 1);
  EXPECT_EQ(pool->LiveBlocks().size(), 1u);
  EXPECT_FALSE(pool->has_freed());
  pool->Validate();
}

TEST(PoolMemory, WhatItHoldsIsTold) {
  const PoolPtr pool = HostPool(1 << 16);
  const SlotPtr first(pool->NewSlot(0, Bytes(64), true));
  const SlotPtr second(pool->NewSlot(128, Bytes(32), true));
  EXPECT_TRUE(pool->Holds({{0, 64, true}, {128, 32, true}}));
  EXPECT_TRUE(pool->Holds({{0, 0, true}, {128, 0, false}}));  // of any size
  EXPECT_FALSE(pool->Holds({{0, 64, true}}));
  EXPECT_FALSE(pool->Holds({{0, 64, true}, {192, 32, true}}));
  EXPECT_FALSE(pool->Holds({{0, 64, true}, {128, 64, true}}));
  const SlotPtr again(pool->NewSlot(128, Bytes(32), false));
  EXPECT_FALSE(pool->Holds({{0, 64, true}, {128, 32, true}}));
  EXPECT_TRUE(pool->Holds({{0, 64, true}, {128, 32, false}}));
}

TEST(PoolMemory, RandomSlotsAgreeWithAByteMap) {
  constexpr int64_t kCapacity = 512;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const PoolPtr pool = HostPool(kCapacity);
  std::vector<std::pair<int64_t, SlotPtr>> held;
  std::vector<int> users(kCapacity);
  const auto any = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int step = 0; step < 20000; ++step) {
    if (!held.empty() && any(2) == 0) {
      std::swap(held[static_cast<size_t>(any(static_cast<int64_t>(held.size())))], held.back());
      const auto& [offset, slot] = held.back();
      for (int64_t i = 0; i < slot->dl_tensor.shape[0]; ++i) --users[offset + i];
      held.pop_back();
    } else {
      const int64_t bytes = 1 + any(40);
      const int64_t offset = any(kCapacity - bytes + 1);
      bool busy = false;
      for (int64_t i = 0; i < bytes; ++i) busy |= users[offset + i] > 0;
      if (busy) {
        EXPECT_THROW((void)pool->NewSlot(offset, Bytes(bytes), true), SlotInUseError);
      } else {
        held.emplace_back(offset, pool->NewSlot(offset, Bytes(bytes), true));
        for (int64_t i = 0; i < bytes; ++i) ++users[offset + i];
      }
    }
    pool->Validate();
    ASSERT_EQ(pool->LiveBlocks().size(), held.size());
  }
}

TEST(PoolMemory, SlotsComeAndGoOnManyThreads) {
  PoolPtr pool = HostPool(1 << 20);
  std::vector<std::thread> threads;
  for (int64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&pool, first] {
      for (int step = 0; step < 5000; ++step) {
        const SlotPtr slot(pool->NewSlot((first << 16) + 64 * (step % 8), Bytes(64), true));
        *static_cast<char*>(slot->dl_tensor.data) = 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(pool->LiveBlocks().empty());
  EXPECT_EQ(pool->DrainFreed().size(), 20000u);
  pool->Validate();
}

}  // namespace
}  // namespace coop::python
