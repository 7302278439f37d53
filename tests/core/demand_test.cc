// What happens at the last use of a value that something evicted is made from.

#include <gtest/gtest.h>

#include <initializer_list>

#include "cc/core/engine/engine.h"
#include "tests/core/checked_engine.h"

namespace coop::testing {
namespace {

EngineOptions Options(int64_t blocks, const Policy& policy = Policy::Coop()) {
  EngineOptions options;
  options.capacity_bytes = blocks * 64;
  options.alignment_bytes = 64;
  options.policy = policy;
  return options;
}

StorageId Compute(CheckedEngine& checked, std::initializer_list<StorageId> inputs, int64_t blocks,
                  double cost_seconds, int32_t in_place_input = kNone) {
  const OutputSpec spec{.bytes = blocks * 64, .in_place_input = in_place_input};
  const auto outputs = checked.Submit(inputs, {&spec, 1}, cost_seconds);
  checked.Check();
  return outputs ? outputs->front() : kNone;
}

bool Resident(const CheckedEngine& checked, StorageId storage) {
  return checked.engine().StateOf(storage) == StorageState::kResident;
}

// A dear value and a cheap one made from it, held both; the cheap one is evicted.
struct DearAndCheap {
  StorageId dear = kNone;
  StorageId cheap = kNone;
};
DearAndCheap EvictTheCheapOne(CheckedEngine& checked) {
  const StorageId dear = Compute(checked, {}, 1, 1.0);
  const StorageId cheap = Compute(checked, {dear}, 1, 1e-6);
  EXPECT_TRUE(checked.Discard(cheap));
  return {dear, cheap};
}

TEST(DemandTest, AValueStaysAtItsLastUseWhileSomethingEvictedIsMadeFromIt) {
  CheckedEngine checked(Options(4));
  const auto [dear, cheap] = EvictTheCheapOne(checked);
  checked.Release(dear);
  checked.Check();
  EXPECT_TRUE(Resident(checked, dear));
  ASSERT_TRUE(checked.Materialize(cheap));
  EXPECT_EQ(checked.engine().stats().recomputations, 1);  // not the dear one
}

TEST(DemandTest, ItIsDroppedThereUnderAPolicyThatDoesNotCare) {
  Policy policy = Policy::Coop();
  policy.keep_demanded = false;
  CheckedEngine checked(Options(4, policy));
  const auto [dear, cheap] = EvictTheCheapOne(checked);
  checked.Release(dear);
  checked.Check();
  EXPECT_FALSE(Resident(checked, dear));
  ASSERT_TRUE(checked.Materialize(cheap));
  EXPECT_EQ(checked.engine().stats().recomputations, 2);
}

TEST(DemandTest, AValueThatNothingEvictedNeedsIsDropped) {
  CheckedEngine checked(Options(4));
  const StorageId dear = Compute(checked, {}, 1, 1.0);
  const StorageId cheap = Compute(checked, {dear}, 1, 1e-6);
  checked.Release(dear);
  checked.Check();
  EXPECT_FALSE(Resident(checked, dear));
  EXPECT_TRUE(Resident(checked, cheap));
}

TEST(DemandTest, DemandReachesThroughEvictedValuesThatNobodyHolds) {
  CheckedEngine checked(Options(6));
  const StorageId first = Compute(checked, {}, 1, 1.0);
  const StorageId between = Compute(checked, {first}, 1, 1e-6);
  const StorageId last = Compute(checked, {between}, 1, 1e-6);
  ASSERT_TRUE(checked.Discard(between));
  ASSERT_TRUE(checked.Discard(last));
  checked.Release(between);
  checked.Release(first);
  checked.Check();
  EXPECT_TRUE(Resident(checked, first));
  // With the last one gone nobody waits for the first one: it dies with the recipes.
  checked.Release(last);
  checked.Check();
  EXPECT_EQ(checked.engine().stats().in_use_bytes, 0);
}

TEST(DemandTest, WhatIsKeptGoesFirstOnceNothingWaitsForIt) {
  CheckedEngine checked(Options(3));
  const auto [dear, cheap] = EvictTheCheapOne(checked);
  checked.Release(dear);
  ASSERT_TRUE(checked.Materialize(cheap));
  const StorageId other = Compute(checked, {}, 1, 1e-9);
  ASSERT_NE(Compute(checked, {}, 1, 1e-6), kNone);  // one of the three has to go
  EXPECT_FALSE(Resident(checked, dear));
  EXPECT_TRUE(Resident(checked, cheap));
  EXPECT_TRUE(Resident(checked, other));
}

TEST(DemandTest, WhatIsKeptIsEvictedAsAnythingElse) {
  CheckedEngine checked(Options(2));
  const auto [dear, cheap] = EvictTheCheapOne(checked);
  checked.Release(dear);
  ASSERT_NE(Compute(checked, {}, 2, 1e-6), kNone);
  EXPECT_FALSE(Resident(checked, dear));
  ASSERT_TRUE(checked.Materialize(cheap));
}

TEST(DemandTest, ADemandedValueIsNotOverwrittenInPlace) {
  for (const bool keep_demanded : {true, false}) {
    Policy policy = Policy::Coop();
    policy.keep_demanded = keep_demanded;
    CheckedEngine checked(Options(4, policy));
    const auto [dear, cheap] = EvictTheCheapOne(checked);
    ASSERT_NE(Compute(checked, {dear}, 1, 1e-6, 0), kNone);
    EXPECT_EQ(checked.counters().in_place, keep_demanded ? 0 : 1);
    EXPECT_EQ(Resident(checked, dear), keep_demanded);
  }
}

TEST(DemandTest, ARecomputationDoesNotOverwriteWhatAnotherWaitsFor) {
  for (const bool keep_demanded : {true, false}) {
    Policy policy = Policy::Coop();
    policy.keep_demanded = keep_demanded;
    CheckedEngine checked(Options(6, policy));
    const StorageId dear = Compute(checked, {}, 1, 1.0);
    const StorageId other = Compute(checked, {dear}, 1, 1e-6);
    const StorageId updated = Compute(checked, {dear}, 1, 1e-6, 0);
    checked.EvictAll();
    ASSERT_TRUE(checked.Materialize(updated));
    EXPECT_EQ(checked.engine().stats().recomputations, 2);
    EXPECT_EQ(Resident(checked, dear), keep_demanded);
    ASSERT_TRUE(checked.Materialize(other));
    EXPECT_EQ(checked.engine().stats().recomputations, keep_demanded ? 3 : 4);
  }
}

TEST(DemandTest, ARecomputationOverwritesWhatNoOtherWaitsFor) {
  CheckedEngine checked(Options(6));
  const StorageId dear = Compute(checked, {}, 1, 1.0);
  const StorageId updated = Compute(checked, {dear}, 1, 1e-6, 0);
  checked.EvictAll();
  const int64_t before = checked.counters().in_place;
  ASSERT_TRUE(checked.Materialize(updated));
  EXPECT_EQ(checked.counters().in_place, before + 1);
}

TEST(DemandTest, OverwritingOneOperandDoesNotMakeTheOthersSeemDemanded) {
  CheckedEngine checked(Options(6));
  const StorageId a = Compute(checked, {}, 1, 1e-3);
  const StorageId b = Compute(checked, {a}, 1, 1e-3);
  const OutputSpec spec{.bytes = 64, .in_place_input = 0};
  const StorageId inputs[] = {b, a};
  const OperationId operation = checked.Add(inputs, {&spec, 1}, 1e-3);
  ASSERT_TRUE(checked.Run(operation));
  checked.Release(a);  // before that of the operand that was overwritten
  EXPECT_FALSE(Resident(checked, a));
  checked.Release(b);
  checked.Check();
}

}  // namespace
}  // namespace coop::testing
