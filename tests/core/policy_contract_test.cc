// What every policy promises, with every switch off in turn. Each call is carried out on fake
// memory (CheckedEngine), so right values are part of every test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/core/checked_engine.h"
#include "tests/core/named_policies.h"

namespace coop::testing {
namespace {

constexpr double kSeconds = 1e-3;

class PolicyContractTest : public ::testing::TestWithParam<NamedPolicy> {
 protected:
  // A pool of so many blocks of 64 bytes.
  [[nodiscard]] EngineOptions Options(int64_t blocks) const {
    EngineOptions options;
    options.capacity_bytes = blocks * 64;
    options.alignment_bytes = 64;
    options.policy = GetParam().policy;
    return options;
  }
  [[nodiscard]] bool forced() const { return GetParam().policy.evict_always; }
};

OutputSpec Blocks(int64_t blocks, int32_t in_place_input = kNone) {
  return {.bytes = blocks * 64, .outside = false, .in_place_input = in_place_input};
}

// An operation with one output; kNone where it was refused.
StorageId Compute(CheckedEngine& checked, std::initializer_list<StorageId> inputs, OutputSpec spec,
                  bool recomputable = true) {
  const auto outputs = checked.Submit(inputs, {&spec, 1}, kSeconds, recomputable);
  checked.Check();
  return outputs ? outputs->front() : kNone;
}

std::vector<StorageId> Chain(CheckedEngine& checked, int length) {
  std::vector<StorageId> chain = {Compute(checked, {}, Blocks(1))};
  while (static_cast<int>(chain.size()) < length && chain.back() != kNone) {
    chain.push_back(Compute(checked, {chain.back()}, Blocks(1)));
  }
  return chain;
}

TEST_P(PolicyContractTest, NothingIsEvictedWithoutPressure) {
  if (forced()) GTEST_SKIP() << "the forced mode evicts always";
  CheckedEngine checked(Options(50));
  Chain(checked, 50);
  EXPECT_EQ(checked.counters().evictions, 0);
  EXPECT_EQ(checked.engine().stats().searches, 0);
  EXPECT_EQ(checked.engine().stats().peak_in_use_bytes, 50 * 64);
  checked.Finish();
}

TEST_P(PolicyContractTest, AChainOfAnyLengthRunsInFourBlocks) {
  CheckedEngine checked(Options(4));
  const auto chain = Chain(checked, 40);
  ASSERT_NE(chain.back(), kNone);
  for (const StorageId storage : {chain[20], chain[0], chain[39], chain[5]}) {
    EXPECT_TRUE(checked.Materialize(storage));
    checked.Check();
  }
  EXPECT_GT(checked.counters().recomputations, 0);
  EXPECT_LE(checked.engine().stats().peak_in_use_bytes, 4 * 64);
  checked.Finish();
}

TEST_P(PolicyContractTest, ARefusalSaysWhatWasThereAndChangesNothing) {
  CheckedEngine checked(Options(10));
  const auto first = checked.AddForeign(0, 128, false);
  const auto middle = checked.AddForeign(5 * 64, 64, false);
  ASSERT_TRUE(first && middle);
  const StorageId value = Compute(checked, {*first}, Blocks(2));
  ASSERT_NE(value, kNone);
  // CheckedEngine compares the fingerprints. The value is an input, so it is pinned.
  EXPECT_EQ(Compute(checked, {value}, Blocks(5)), kNone);
  const Failure& failure = checked.engine().failure();
  EXPECT_EQ(failure.reason, FailureReason::kNoSpace);
  EXPECT_EQ(failure.requested_bytes, 5 * 64);
  EXPECT_EQ(failure.capacity_bytes, 10 * 64);
  EXPECT_EQ(failure.in_use_bytes, 5 * 64);
  EXPECT_EQ(failure.pinned_bytes, 5 * 64);
  EXPECT_EQ(failure.largest_free_block_bytes, 4 * 64);
  EXPECT_EQ(failure.largest_window_bytes, 4 * 64);
  // Not pinned, it may go: from block 2 (or the right end) the largest window is still 4.
  EXPECT_EQ(Compute(checked, {}, Blocks(5)), kNone);
  EXPECT_EQ(checked.engine().failure().pinned_bytes, 3 * 64);
  // The engine goes on.
  EXPECT_NE(Compute(checked, {value}, Blocks(1)), kNone);
  checked.Finish();
}

TEST_P(PolicyContractTest, AnEmptyPoolRefusesEverythingButOutsideValues) {
  CheckedEngine checked(Options(0));
  EXPECT_EQ(Compute(checked, {}, Blocks(1)), kNone);
  EXPECT_EQ(Compute(checked, {}, Blocks(0)), kNone);
  EXPECT_FALSE(checked.AddAdopted(64).has_value());
  EXPECT_FALSE(checked.AddForeign(0, 64, true).has_value());
  const StorageId input = checked.AddOutside(1000);
  EXPECT_NE(Compute(checked, {input}, {.bytes = 8, .outside = true}), kNone);
  EXPECT_EQ(checked.engine().stats().outside_bytes, 1008);
  checked.Finish();
}

TEST_P(PolicyContractTest, SourcesPermanentAndImpureValuesStay) {
  CheckedEngine checked(Options(8));
  const StorageId source = checked.AddAdopted(64).value();
  const StorageId permanent = Compute(checked, {source}, Blocks(1));
  checked.MakePermanent(permanent);
  const StorageId impure = Compute(checked, {source}, Blocks(1), /*recomputable=*/false);
  for (int i = 0; i < 30; ++i) {
    const StorageId value = Compute(checked, {permanent, impure}, Blocks(1 + i % 4));
    ASSERT_NE(value, kNone);
    checked.EvictAll();
    checked.Check();  // includes that what has no recipe is there
    EXPECT_NE(checked.engine().StateOf(value), StorageState::kResident);
    if (i >= 3) checked.Release(value);
  }
  checked.Finish();
}

TEST_P(PolicyContractTest, SeveralOutputsAreRecomputedTogether) {
  CheckedEngine checked(Options(8));
  const std::vector<OutputSpec> specs = {
      Blocks(1), Blocks(2), {.bytes = 8, .outside = true}, Blocks(1)};
  const auto outputs = checked.Submit({}, specs, kSeconds).value();
  checked.Release(outputs[3]);  // dead: its block is scratch when the others come back
  checked.EvictAll();
  ASSERT_TRUE(checked.Materialize(outputs[0]));
  checked.Check();
  EXPECT_EQ(checked.engine().StateOf(outputs[1]), StorageState::kResident);
  EXPECT_EQ(checked.engine().stats().recomputations, 1);
  EXPECT_GT(checked.counters().scratch, 0);
  checked.Finish();
}

TEST_P(PolicyContractTest, AReleasedValueComesBackOnlyForARecomputation) {
  CheckedEngine checked(Options(20));
  const StorageId a = Compute(checked, {}, Blocks(1));
  const StorageId b = Compute(checked, {a}, Blocks(1));
  checked.Release(a);
  EXPECT_EQ(checked.engine().StateOf(a), StorageState::kEvicted);  // b may need its recipe
  checked.Check();
  checked.EvictAll();
  const int64_t before = checked.engine().stats().recomputations;
  ASSERT_TRUE(checked.Materialize(b));
  checked.Check();
  EXPECT_EQ(checked.engine().stats().recomputations, before + 2);
  if (checked.engine().StateOf(a) == StorageState::kResident) {
    // Nothing reads it again: it goes first.
    EXPECT_EQ(checked.engine().ScoreOf(a) == 0, GetParam().policy.unheld_first);
  }
  checked.Release(b);
  EXPECT_EQ(checked.engine().live_operations(), 0);
  EXPECT_EQ(checked.engine().live_storages(), 0);
}

TEST_P(PolicyContractTest, TheSameInputTwiceIsOnePin) {
  CheckedEngine checked(Options(3));
  const StorageId a = Compute(checked, {}, Blocks(1));
  const StorageId b = Compute(checked, {a, a, a}, Blocks(1));
  const StorageId c = Compute(checked, {b, a, b}, Blocks(1));
  EXPECT_NE(c, kNone);
  checked.Finish();
}

TEST_P(PolicyContractTest, InPlaceKeepsTheAddressAndSwitchedOffCopies) {
  CheckedEngine checked(Options(10));
  const StorageId parameter = checked.AddAdopted(64).value();
  const int64_t offset = checked.engine().OffsetOf(parameter);
  const StorageId updated = Compute(checked, {parameter, parameter}, Blocks(1, 0));
  EXPECT_EQ(checked.engine().OffsetOf(updated) == offset, GetParam().policy.in_place);
  checked.Finish();
}

// A value made from the old parameter is brought back before the parameter is overwritten.
TEST_P(PolicyContractTest, AnUpdateInPlaceNeverLosesValuesMadeFromTheOldVersion) {
  CheckedEngine checked(Options(10));
  const StorageId parameter = checked.AddAdopted(64).value();
  const StorageId hidden = Compute(checked, {parameter}, Blocks(1));
  const StorageId kept = Compute(checked, {hidden}, Blocks(1));
  const StorageId gradient = Compute(checked, {}, Blocks(1));
  checked.Release(hidden);
  checked.EvictAll();
  const StorageId updated = Compute(checked, {parameter, gradient}, Blocks(1, 0));
  ASSERT_NE(updated, kNone);
  EXPECT_EQ(checked.counters().in_place_sources, GetParam().policy.in_place ? 1 : 0);
  EXPECT_EQ(checked.engine().IsPermanent(kept), GetParam().policy.in_place);
  EXPECT_EQ(checked.engine().IsPermanent(updated), GetParam().policy.in_place);
  ASSERT_TRUE(checked.Materialize(kept));
  checked.EvictAll();
  checked.Check();
  ASSERT_TRUE(checked.Materialize(updated));
  checked.Finish();
}

// With no room for that, the update is written elsewhere and the old version stays.
TEST_P(PolicyContractTest, AnUpdateCopiesWhereTheOldVersionCannotBeSettled) {
  CheckedEngine checked(Options(6));
  const StorageId parameter = checked.AddAdopted(64).value();
  const StorageId small = Compute(checked, {parameter}, Blocks(1));
  const StorageId kept = Compute(checked, {parameter}, Blocks(3));
  const StorageId last = Compute(checked, {parameter}, Blocks(1));
  checked.EvictAll();
  const StorageId wide = Compute(checked, {}, Blocks(3), /*recomputable=*/false);
  ASSERT_NE(wide, kNone);
  const StorageId updated = Compute(checked, {parameter}, Blocks(1, 0));
  ASSERT_NE(updated, kNone);
  EXPECT_EQ(checked.counters().in_place, 0);
  for (const StorageId s : {small, kept, last}) {
    EXPECT_FALSE(checked.engine().IsPermanent(s));  // the attempt left nothing behind
  }
  checked.Release(wide);
  ASSERT_TRUE(checked.Materialize(kept));
  checked.Finish();
}

// Settling the parameter fixes the value that is overwritten as well: then that has to be settled
// too, or what was made from it is lost.
TEST_P(PolicyContractTest, OverwritingASourceAndAValueMadeFromItLosesNothing) {
  for (const bool value_first : {true, false}) {
    CheckedEngine checked(Options(12));
    const StorageId parameter = checked.AddAdopted(64).value();
    const StorageId value = Compute(checked, {parameter}, Blocks(1));
    const StorageId kept = Compute(checked, {value}, Blocks(1));
    checked.EvictAll();
    const StorageId inputs[] = {value, parameter};
    const OutputSpec specs[] = {Blocks(1, value_first ? 0 : 1), Blocks(1, value_first ? 1 : 0)};
    ASSERT_TRUE(checked.Submit(inputs, specs, kSeconds).has_value());
    checked.Check();
    ASSERT_TRUE(checked.Materialize(kept));
    checked.Finish();
  }
}

TEST_P(PolicyContractTest, OneInputIsOverwrittenByOneOutput) {
  CheckedEngine checked(Options(12));
  const StorageId input = Compute(checked, {}, Blocks(1));
  const OutputSpec specs[] = {Blocks(1, 0), Blocks(1, 0), Blocks(1, 0)};
  ASSERT_TRUE(checked.Submit({&input, 1}, specs, kSeconds).has_value());
  checked.Check();
  EXPECT_EQ(checked.counters().in_place, GetParam().policy.in_place ? 1 : 0);
  checked.Finish();
}

// Another operation was added that has yet to read the parameter.
TEST_P(PolicyContractTest, AnOperationThatHasNotRunKeepsItsInputs) {
  CheckedEngine checked(Options(12));
  const StorageId parameter = checked.AddAdopted(64).value();
  const OutputSpec fresh = Blocks(1);
  const OutputSpec in_place = Blocks(1, 0);
  const OperationId waiting = checked.Add({&parameter, 1}, {&fresh, 1}, kSeconds);
  const OperationId update = checked.Add({&parameter, 1}, {&in_place, 1}, kSeconds);
  ASSERT_TRUE(checked.Run(update));
  EXPECT_EQ(checked.counters().in_place, 0);
  ASSERT_TRUE(checked.Run(waiting));
  checked.Release(parameter);
  checked.Check();
  checked.Finish();
}

TEST_P(PolicyContractTest, ForeignBlocksAreOverwrittenOnlyIfDonated) {
  for (const bool donated : {false, true}) {
    CheckedEngine checked(Options(4));
    const StorageId input = checked.AddForeign(64, 60, donated).value();
    const StorageId output = Compute(checked, {input}, Blocks(1, 0));
    EXPECT_EQ(checked.engine().OffsetOf(output) == 64, donated && GetParam().policy.in_place);
    checked.Finish();
  }
}

// A chain of updates of one buffer, as in an accumulation, recomputed from its beginning.
TEST_P(PolicyContractTest, InPlaceUpdatesAreReplayed) {
  CheckedEngine checked(Options(6));
  const StorageId start = checked.AddOutside(8);
  StorageId sum = Compute(checked, {start}, Blocks(2));
  for (int i = 0; i < 10; ++i) {
    sum = Compute(checked, {sum, start}, Blocks(2, 0));
    ASSERT_NE(sum, kNone);
    if (i % 3 == 0) checked.EvictAll();
  }
  checked.EvictAll();
  ASSERT_TRUE(checked.Materialize(sum));
  EXPECT_LE(checked.engine().stats().peak_in_use_bytes, 6 * 64 + 8);
  checked.Finish();
}

TEST_P(PolicyContractTest, AbortAtEveryActionLeavesAnEngineThatGoesOn) {
  size_t actions = 1;
  for (size_t abort_at = 0; abort_at <= actions; ++abort_at) {
    SCOPED_TRACE(::testing::Message() << "abort at " << abort_at);
    CheckedEngine checked(Options(7));
    const StorageId parameter = checked.AddAdopted(64).value();
    const StorageId a = Compute(checked, {parameter}, Blocks(1));
    const StorageId b = Compute(checked, {a, parameter}, Blocks(2));
    const StorageId c = Compute(checked, {b}, Blocks(1));
    const StorageId gradient = Compute(checked, {c}, Blocks(1));
    checked.Release(a);
    checked.EvictAll();
    const StorageId inputs[] = {parameter, gradient};
    const OutputSpec specs[] = {Blocks(1, 0), Blocks(1)};
    const OperationId update = checked.Add(inputs, specs, kSeconds);
    const bool ran = checked.Run(update, abort_at);
    actions = std::max(actions, checked.engine().actions().size());
    checked.Check();
    ASSERT_TRUE(ran || checked.Run(update));
    checked.Release(parameter);
    checked.Check();
    EXPECT_TRUE(checked.Materialize(b));
    EXPECT_TRUE(checked.Materialize(c));
    checked.Finish();
  }
}

TEST_P(PolicyContractTest, ReservationsEvictAndStay) {
  CheckedEngine checked(Options(10));
  const auto chain = Chain(checked, 10);
  ASSERT_TRUE(checked.Reserve(3 * 64 - 5));
  checked.Check();
  // At the right end: in the middle it would cut the pool in two for good.
  EXPECT_EQ(checked.engine().ReservedBlocks(), std::vector<Range>({{7 * 64, 3 * 64}}));
  ASSERT_TRUE(checked.Reserve(100));  // grows only
  EXPECT_EQ(checked.reserved_bytes(), 3 * 64);
  EXPECT_FALSE(checked.Reserve(11 * 64));
  const StorageId source = checked.AddForeign(0, 64, false).value_or(kNone);
  ASSERT_TRUE(checked.Reserve(6 * 64));
  EXPECT_GE(checked.reserved_bytes(), 6 * 64);
  checked.Check();
  for (const StorageId storage : chain) EXPECT_TRUE(checked.Materialize(storage));
  if (source != kNone) checked.Release(source);
  checked.Finish();
}

TEST_P(PolicyContractTest, TenThousandStepsUseNoMoreRecordsThanTen) {
  CheckedEngine checked(Options(8));
  StorageId parameter = checked.AddAdopted(64).value();
  StorageId greatest = 0;
#if defined(COOP_CHECKED)
  const int steps = 1000;
#else
  const int steps = 10000;
#endif
  for (int step = 0; step < steps; ++step) {
    const OutputSpec spec = Blocks(2);
    const StorageId hidden = checked.Submit({&parameter, 1}, {&spec, 1}, kSeconds).value()[0];
    const StorageId both[] = {hidden, parameter};
    const StorageId gradient = checked.Submit(both, {&spec, 1}, kSeconds).value()[0];
    checked.Release(hidden);
    const StorageId operands[] = {parameter, gradient};
    const OutputSpec in_place = Blocks(1, 0);
    parameter = checked.Submit(operands, {&in_place, 1}, kSeconds).value()[0];
    checked.MakePermanent(parameter);
    checked.Release(gradient);
    greatest = std::max({greatest, hidden, gradient, parameter});
    ASSERT_LE(checked.engine().live_storages(), 1);
    ASSERT_EQ(checked.engine().live_operations(), 0);
  }
  EXPECT_LE(greatest, 10);
  checked.Finish();
}

TEST_P(PolicyContractTest, MistakesOfTheCallerAreRefused) {
  EngineOptions options = Options(4);
  options.alignment_bytes = 48;
  EXPECT_THROW(Engine{options}, std::invalid_argument);
  options = Options(-1);
  EXPECT_THROW(Engine{options}, std::invalid_argument);
  Engine engine(Options(4));
  EXPECT_THROW(engine.AddForeign(1, 64, false), std::invalid_argument);
  EXPECT_THROW(engine.AddForeign(-64, 64, false), std::invalid_argument);
  EXPECT_THROW(engine.AddForeign(int64_t{1} << 62, int64_t{1} << 62, false), std::invalid_argument);
  engine.Validate();
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyContractTest, ::testing::ValuesIn(AllPolicies()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace coop::testing
