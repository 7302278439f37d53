// Where the policies differ: scores, what is evicted, where things are placed. And depth.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/checked_engine.h"

namespace coop::testing {
namespace {

EngineOptions Options(const Policy& policy, int64_t blocks) {
  EngineOptions options;
  options.capacity_bytes = blocks * 64;
  options.alignment_bytes = 64;
  options.policy = policy;
  return options;
}

StorageId Compute(CheckedEngine& checked, std::initializer_list<StorageId> inputs, int64_t blocks,
                  double cost_seconds) {
  const OutputSpec spec{.bytes = blocks * 64};
  const auto outputs = checked.Submit(inputs, {&spec, 1}, cost_seconds);
  checked.Check();
  return outputs ? outputs->front() : kNone;
}

bool Resident(const CheckedEngine& checked, StorageId storage) {
  return checked.engine().StateOf(storage) == StorageState::kResident;
}

// Four values of one block in address order whose costs are cheap, dear, cheap, middling.
std::vector<StorageId> FourBlocks(CheckedEngine& checked) {
  std::vector<StorageId> values;
  for (const double cost_seconds : {1e-6, 1.0, 1e-6, 1e-3}) {
    values.push_back(Compute(checked, {}, 1, cost_seconds));
  }
  // Equal staleness: one long operation after all of them.
  checked.Release(checked.AddOutside(1));
  const OutputSpec none{.bytes = 1, .outside = true};
  checked.Release(checked.Submit({}, {&none, 1}, 1e6).value()[0]);
  return values;
}

TEST(PolicyTest, CoopEvictsNeighboursWhereDtrEvictsTheCheapestOnes) {
  Policy coop = Policy::Coop();
  coop.cheap_partitioning = false;  // all from the left, in order
  CheckedEngine window(Options(coop, 4));
  auto values = FourBlocks(window);
  ASSERT_NE(Compute(window, {}, 2, 1e-6), kNone);
  EXPECT_TRUE(Resident(window, values[0]));
  EXPECT_TRUE(Resident(window, values[1]));
  EXPECT_FALSE(Resident(window, values[2]));
  EXPECT_FALSE(Resident(window, values[3]));

  CheckedEngine dtr(Options(Policy::Dtr(), 4));
  values = FourBlocks(dtr);
  ASSERT_NE(Compute(dtr, {}, 2, 1e-6), kNone);
  EXPECT_FALSE(Resident(dtr, values[0]));  // evicted for nothing
  EXPECT_TRUE(Resident(dtr, values[1]));
  EXPECT_FALSE(Resident(dtr, values[2]));
  EXPECT_FALSE(Resident(dtr, values[3]));
}

TEST(PolicyTest, TheLowerOffsetOfEqualScoresIsEvicted) {
  Policy coop = Policy::Coop();
  coop.cheap_partitioning = false;
  for (const Policy& policy : {coop, Policy::Dtr(), Policy::Dte()}) {
    CheckedEngine checked(Options(policy, 4));
    const std::vector<OutputSpec> specs(4, {.bytes = 64});  // one operation: one cost, one access
    const auto values = checked.Submit({}, specs, 1e-3).value();
    ASSERT_NE(Compute(checked, {}, 1, 1e-6), kNone);
    for (const StorageId s : values) EXPECT_EQ(Resident(checked, s), s != values[0]);
  }
}

// The three scores of one state differ by the bytes they divide by.
TEST(PolicyTest, ScoresDivideByNothingByBytesAndByBytesWithFreeNeighbours) {
  Policy no_window = Policy::Coop();
  no_window.sliding_window = false;
  no_window.cheap_partitioning = false;
  Policy coop = Policy::Coop();
  coop.cheap_partitioning = false;
  std::vector<std::vector<double>> scores;
  for (const Policy& policy : {coop, Policy::Dtr(), Policy::Dte(), no_window}) {
    CheckedEngine checked(Options(policy, 12));
    const StorageId a = Compute(checked, {}, 1, 1e-3);
    const StorageId b = Compute(checked, {a}, 3, 2e-3);
    const StorageId c = Compute(checked, {b}, 2, 3e-3);
    const StorageId d = Compute(checked, {}, 1, 5e-3);
    checked.Release(a);  // evicted: b needs its recipe. One free block beside b
    const Engine& engine = checked.engine();
    scores.push_back({engine.ScoreOf(b), engine.ScoreOf(c), engine.ScoreOf(d)});
  }
  const double bytes[] = {3 * 64, 2 * 64, 1 * 64};
  const double bytes_with_free[] = {4 * 64, 2 * 64, 6 * 64};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(scores[1][i] * bytes[i], scores[0][i], 1e-9 * scores[0][i]) << i;
    EXPECT_NEAR(scores[2][i] * bytes_with_free[i], scores[0][i], 1e-9 * scores[0][i]) << i;
    EXPECT_EQ(scores[3][i], scores[2][i]) << i;  // without the window Coop scores as DTE
  }
}

// b is recomputed on the way from a to c, and nothing holds it.
TEST(PolicyTest, WhatNothingHoldsCostsNothingUnlessThePolicyScoresItLikeTheRest) {
  for (const bool unheld_first : {true, false}) {
    Policy policy = Policy::Coop();
    policy.unheld_first = unheld_first;
    CheckedEngine checked(Options(policy, 40));
    const StorageId a = Compute(checked, {}, 1, 1e-3);
    const StorageId b = Compute(checked, {a}, 1, 1e-3);
    const StorageId c = Compute(checked, {b}, 1, 1e-3);
    checked.Release(b);
    ASSERT_TRUE(checked.Discard(c));
    ASSERT_TRUE(checked.Materialize(c));
    ASSERT_TRUE(Resident(checked, b));
    EXPECT_EQ(checked.engine().ScoreOf(b) == 0, unheld_first);
    EXPECT_GT(checked.engine().ScoreOf(c), 0);
  }
}

TEST(PolicyTest, OlderValuesScoreLess) {
  CheckedEngine checked(Options(Policy::Coop(), 40));
  const StorageId a = Compute(checked, {}, 1, 1e-3);
  const StorageId b = Compute(checked, {}, 1, 1e-3);
  Compute(checked, {}, 1, 1e-3);
  EXPECT_LT(checked.engine().ScoreOf(a), checked.engine().ScoreOf(b));
  Compute(checked, {a}, 1, 1e-3);  // touched
  EXPECT_GT(checked.engine().ScoreOf(a), checked.engine().ScoreOf(b));
}

TEST(PolicyTest, ExpensiveOperationsAreOnTheLeftCheapOnesOnTheRight) {
  for (const bool partitioning : {true, false}) {
    Policy policy = Policy::Coop();
    policy.cheap_partitioning = partitioning;
    EngineOptions options = Options(policy, 8);
    options.expensive_seconds_per_byte = 1e-3 / 64;
    CheckedEngine checked(options);
    const StorageId cheap = Compute(checked, {}, 1, 1e-4);
    const StorageId expensive = Compute(checked, {}, 1, 1e-2);
    const StorageId cheap_again = Compute(checked, {}, 1, 1e-4);
    const Engine& engine = checked.engine();
    EXPECT_EQ(engine.OffsetOf(cheap), partitioning ? 7 * 64 : 0);
    EXPECT_EQ(engine.OffsetOf(expensive), partitioning ? 0 : 64);
    EXPECT_EQ(engine.OffsetOf(cheap_again), partitioning ? 6 * 64 : 2 * 64);
    // The same holds inside a window, once there is no free block.
    for (int i = 0; i < 5; ++i) Compute(checked, {}, 1, 1e-2);
    checked.MakePermanent(cheap);
    checked.MakePermanent(expensive);
    ASSERT_EQ(engine.stats().in_use_bytes, 8 * 64);
    const StorageId wide = Compute(checked, {}, 4, 4e-4);
    ASSERT_NE(wide, kNone);
    const StorageId narrow = Compute(checked, {}, 1, 1e-4);
    EXPECT_NE(narrow, kNone);
    checked.Finish();
  }
}

TEST(PolicyTest, AdoptedParametersSitAtBothEnds) {
  CheckedEngine checked(Options(Policy::Coop(), 20));
  const StorageId a = checked.AddAdopted(3 * 64).value();
  const StorageId b = checked.AddAdopted(2 * 64).value();
  const StorageId c = checked.AddAdopted(64).value();
  const StorageId d = checked.AddAdopted(64).value();
  const Engine& engine = checked.engine();
  EXPECT_EQ(engine.OffsetOf(a), 0);
  EXPECT_EQ(engine.OffsetOf(b), 18 * 64);
  EXPECT_EQ(engine.OffsetOf(c), 17 * 64);
  EXPECT_EQ(engine.OffsetOf(d), 3 * 64);
  EXPECT_EQ(engine.largest_free_block_bytes(), 13 * 64);
}

TEST(PolicyTest, FragmentationIsMeasuredWhenNoBlockFits) {
  CheckedEngine checked(Options(Policy::Dtr(), 10));
  std::vector<StorageId> values;
  for (int i = 0; i < 10; ++i) values.push_back(Compute(checked, {}, 1, 1e-3));
  EXPECT_EQ(checked.engine().stats().fragmentation_count, 0);
  checked.Release(values[2]);
  checked.Release(values[6]);
  ASSERT_NE(Compute(checked, {}, 2, 1e-3), kNone);
  EXPECT_EQ(checked.engine().stats().fragmentation_count, 1);
  EXPECT_DOUBLE_EQ(checked.engine().stats().fragmentation_max, 0.2);
}

TEST(PolicyTest, SearchesAreTimedByTheClockThatIsPassedIn) {
  EngineOptions options = Options(Policy::Coop(), 2);
  double now = 0;
  options.timer = [&now] { return now += 1; };
  CheckedEngine checked(options);
  Compute(checked, {}, 1, 1e-3);
  Compute(checked, {}, 1, 1e-3);
  EXPECT_EQ(now, 0);
  Compute(checked, {}, 1, 1e-3);
  EXPECT_EQ(checked.engine().stats().searches, 1);
  EXPECT_EQ(checked.engine().stats().search_seconds, 1);
}

// What was brought back for somebody else's recomputation goes before anything that is referenced.
TEST(PolicyTest, AValueThatNothingReferencesGoesFirst) {
  for (const Policy& policy : {Policy::Coop(), Policy::Dtr(), Policy::Dte()}) {
    CheckedEngine checked(Options(policy, 5));
    const StorageId hidden = Compute(checked, {}, 1, 10.0);
    const StorageId kept = Compute(checked, {hidden}, 1, 1e-3);
    checked.Release(hidden);
    checked.EvictAll();
    ASSERT_TRUE(checked.Materialize(kept));
    ASSERT_TRUE(Resident(checked, hidden));
    const StorageId a = Compute(checked, {}, 1, 1e-6);
    const StorageId b = Compute(checked, {}, 1, 1e-6);
    const StorageId c = Compute(checked, {}, 1, 1e-6);
    ASSERT_NE(Compute(checked, {}, 1, 1e-6), kNone);
    EXPECT_FALSE(Resident(checked, hidden));
    for (const StorageId s : {kept, a, b, c}) EXPECT_TRUE(Resident(checked, s));
  }
}

// A chain of that many operations, of which only the end is held, evicted and brought back.
void RecomputeChain(const Policy& policy, int64_t blocks, int depth) {
  Engine engine(Options(policy, blocks));
  std::vector<StorageId> last;
  std::vector<StorageId> outputs;
  for (int i = 0; i < depth; ++i) {
    const OutputSpec spec{.bytes = 64};
    const OperationId op = engine.AddOperation(last, {&spec, 1}, 1e-3, true);
    engine.OutputsOf(op, &outputs);
    ASSERT_TRUE(engine.Run(op));
    for (const StorageId input : last) engine.Release(input);
    last = outputs;
  }
  engine.EvictAll();
  ASSERT_TRUE(engine.Materialize(last[0]));
  EXPECT_EQ(engine.stats().recomputations, depth);
  EXPECT_LE(engine.stats().peak_in_use_bytes, blocks * 64);
  engine.Validate();
  engine.Release(last[0]);
  EXPECT_EQ(engine.live_operations(), 0);
  EXPECT_EQ(engine.live_storages(), 0);
}

// Recomputation keeps its own stack: with C++ frames a level this would overflow.
TEST(PolicyTest, DepthTenThousandIsRecomputed) { RecomputeChain(Policy::Coop(), 3, 10000); }

TEST(PolicyTest, DeepChainsAreRecomputedOnceInTightAndLoosePools) {
#if defined(COOP_CHECKED)
  constexpr int kDepth = 1500;  // every mutation validates the whole state: quadratic
#else
  constexpr int kDepth = 10000;
#endif
  for (const int64_t blocks : {int64_t{3}, int64_t{1} << 20}) {
    for (const Policy& policy : {Policy::Coop(), Policy::Dtr(), Policy::Dte()}) {
      RecomputeChain(policy, blocks, kDepth);
    }
  }
}

// Outer frames give way where the inner ones find no room; it must come to an end either way.
TEST(PolicyTest, RecomputationInATightPoolEnds) {
  for (const Policy& policy : {Policy::Coop(), Policy::Dtr(), Policy::Dte()}) {
    for (int64_t blocks = 3; blocks < 12; ++blocks) {
      CheckedEngine checked(Options(policy, blocks));
      // A ladder: every rung needs the two below, so that naive recomputation is exponential.
      std::vector<StorageId> rungs = {Compute(checked, {}, 1, 1e-3), Compute(checked, {}, 1, 1e-3)};
      for (int i = 0; i < 24; ++i) {
        const StorageId below = rungs[rungs.size() - 1];
        const StorageId two_below = rungs[rungs.size() - 2];
        const StorageId rung = Compute(checked, {below, two_below}, 1, 1e-3);
        if (rung == kNone) break;
        rungs.push_back(rung);
      }
      checked.EvictAll();
      checked.Materialize(rungs.back());
      checked.Check();
      checked.Finish();
    }
  }
}

}  // namespace
}  // namespace coop::testing
