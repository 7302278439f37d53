// Pools of so many blocks that a search looks at samples of them only.

#include <gtest/gtest.h>

#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/checked_engine.h"

namespace coop::testing {
namespace {

constexpr size_t kBlocks = size_t{3} * 4096;

EngineOptions Options() {
  EngineOptions options;
  options.capacity_bytes = kBlocks * 64;
  options.alignment_bytes = 64;
  options.policy = Policy::Coop();
  options.policy.cheap_partitioning = false;  // all from the left, in order
  return options;
}

// The results, of so many blocks each, of one operation; empty where they do not fit.
std::vector<StorageId> Compute(CheckedEngine& checked, size_t results, int64_t blocks,
                               double cost_seconds, bool recomputable = true) {
  const std::vector<OutputSpec> specs(results, {.bytes = blocks * 64});
  return checked.Submit({}, specs, cost_seconds, recomputable).value_or(std::vector<StorageId>{});
}

bool Resident(const CheckedEngine& checked, StorageId storage) {
  return checked.engine().StateOf(storage) == StorageState::kResident;
}

TEST(LargePoolTest, TheOnlyRoomIsFoundWhereverItIs) {
  for (const size_t room : {size_t{1}, size_t{4999}, kBlocks - 3}) {
    CheckedEngine checked(Options());
    Compute(checked, room, 1, 1.0, false);
    const std::vector<StorageId> between = Compute(checked, 2, 1, 1.0);
    ASSERT_FALSE(Compute(checked, kBlocks - room - 2, 1, 1.0, false).empty());
    EXPECT_TRUE(Compute(checked, 1, 3, 1e-6).empty());
    EXPECT_TRUE(Resident(checked, between[0]));
    EXPECT_FALSE(Compute(checked, 1, 2, 1e-6).empty());
    EXPECT_FALSE(Resident(checked, between[0]));
    EXPECT_FALSE(Resident(checked, between[1]));
    checked.Check();
  }
}

TEST(LargePoolTest, CheapValuesGoFirstWhereverTheyAre) {
  CheckedEngine checked(Options());
  std::vector<StorageId> cheap;
  std::vector<StorageId> dear;
  for (size_t filled = 0; filled < kBlocks; filled += 128) {
    cheap.push_back(Compute(checked, 1, 1, 1e-6).at(0));
    for (const StorageId s : Compute(checked, 127, 1, 1.0)) dear.push_back(s);
  }
  const size_t half = cheap.size() / 2;
  for (size_t n = 0; n < half; ++n) ASSERT_FALSE(Compute(checked, 1, 1, 1e3).empty());
  size_t evicted = 0;
  for (const StorageId s : cheap) evicted += Resident(checked, s) ? 0 : 1;
  EXPECT_EQ(evicted, half);
  for (const StorageId s : dear) ASSERT_TRUE(Resident(checked, s));
  checked.Check();
}

TEST(LargePoolTest, ARefusedTransactionChangesNoLaterChoice) {
  std::vector<uint64_t> logs;  // of every decision
  for (const bool refuse : {false, true}) {
    CheckedEngine checked(Options());
    for (size_t filled = 0; filled < kBlocks; filled += 64) {
      ASSERT_FALSE(Compute(checked, 64, 1, 1.0 + static_cast<double>(filled % 7)).empty());
    }
    if (refuse) {
      EXPECT_TRUE(Compute(checked, 2, kBlocks * 3 / 4, 1.0).empty());
    }
    for (int n = 0; n < 20; ++n) ASSERT_FALSE(Compute(checked, 1, 2, 1.0).empty());
    checked.Check();
    logs.push_back(checked.log());
  }
  EXPECT_EQ(logs[0], logs[1]);
}

}  // namespace
}  // namespace coop::testing
