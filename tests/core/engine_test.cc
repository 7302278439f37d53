// Basic behaviours of the engine, one at a time and without fake memory: what it answers with.

#include "cc/core/engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

namespace coop::testing {
namespace {

constexpr int64_t kBlock = 64;

EngineOptions Options(int64_t blocks, const Policy& policy = Policy::Coop()) {
  EngineOptions options;
  options.capacity_bytes = blocks * kBlock;
  options.policy = policy;
  return options;
}

OperationId Add(Engine& engine, const std::vector<StorageId>& inputs, int64_t blocks,
                double cost_seconds, int32_t in_place_input = kNone, bool recomputable = true) {
  const OutputSpec spec{.bytes = blocks * kBlock, .in_place_input = in_place_input};
  return engine.AddOperation(inputs, {&spec, 1}, cost_seconds, recomputable);
}

StorageId OutputOf(const Engine& engine, OperationId operation) {
  std::vector<StorageId> outputs;
  engine.OutputsOf(operation, &outputs);
  return outputs.at(0);
}

StorageId Compute(Engine& engine, const std::vector<StorageId>& inputs, int64_t blocks,
                  double cost_seconds, int32_t in_place_input = kNone) {
  const OperationId operation = Add(engine, inputs, blocks, cost_seconds, in_place_input);
  const StorageId output = OutputOf(engine, operation);
  EXPECT_TRUE(engine.Run(operation));
  engine.Validate();
  return output;
}

Action Evict(StorageId storage) { return {.kind = ActionKind::kEvict, .id = storage}; }

TEST(EngineTest, AnOperationThatFitsIsOneAction) {
  Engine engine(Options(4));
  const StorageId x = engine.AddOutside(8);
  const OperationId operation = Add(engine, {x}, 1, 1.0);
  const StorageId y = OutputOf(engine, operation);
  ASSERT_TRUE(engine.Run(operation));
  ASSERT_EQ(engine.actions().size(), 1u);
  EXPECT_EQ(engine.actions()[0],
            (Action{.kind = ActionKind::kRun, .id = operation, .placement_count = 1}));
  EXPECT_EQ(engine.placements()[0], (Placement{.storage = y, .offset = 0}));
  EXPECT_EQ(engine.stats().in_use_bytes, kBlock);
  EXPECT_EQ(engine.stats().outside_bytes, 8);
}

TEST(EngineTest, EvictedInputsAreRecomputedFirst) {
  Engine engine(Options(2));
  const StorageId a = Compute(engine, {}, 1, 1.0);
  const StorageId b = Compute(engine, {a}, 1, 2.0);
  engine.EvictAll();
  ASSERT_EQ(engine.actions().size(), 2u);
  const OperationId operation = Add(engine, {a}, 1, 1.0);
  ASSERT_TRUE(engine.Run(operation));
  ASSERT_EQ(engine.actions().size(), 2u);
  EXPECT_TRUE(engine.actions()[0].recompute);
  EXPECT_EQ(engine.actions()[1].id, operation);
  EXPECT_EQ(engine.stats().recompute_seconds, 1.0);
  EXPECT_EQ(engine.StateOf(b), StorageState::kEvicted);
}

TEST(EngineTest, ARunThatFindsNoRoomChangesNothing) {
  Engine engine(Options(3));
  const StorageId a = Compute(engine, {}, 1, 1.0);
  const StorageId b = Compute(engine, {a}, 2, 1.0);
  const OperationId operation = Add(engine, {a, b}, 1, 1.0);
  const uint64_t before = engine.Fingerprint();
  EXPECT_FALSE(engine.Run(operation));
  EXPECT_EQ(engine.Fingerprint(), before);
  EXPECT_TRUE(engine.actions().empty());
  const Failure& failure = engine.failure();
  EXPECT_EQ(failure.reason, FailureReason::kNoSpace);
  EXPECT_EQ(failure.requested_bytes, kBlock);
  EXPECT_EQ(failure.capacity_bytes, 3 * kBlock);
  EXPECT_EQ(failure.pinned_bytes, 3 * kBlock);
  EXPECT_EQ(failure.largest_window_bytes, 0);
  EXPECT_EQ(failure.operation, operation);
  engine.Forget(operation);
  engine.Validate();
  EXPECT_TRUE(engine.Run(Add(engine, {a}, 1, 1.0)));
}

TEST(EngineTest, AnAbortedRunKeepsWhatWasDone) {
  Engine engine(Options(2));
  const StorageId a = Compute(engine, {}, 1, 1.0);
  const StorageId b = Compute(engine, {}, 1, 1.0);
  const OperationId operation = Add(engine, {b}, 1, 1.0);
  const StorageId c = OutputOf(engine, operation);
  ASSERT_TRUE(engine.Run(operation));
  ASSERT_EQ(engine.actions().size(), 2u);
  EXPECT_EQ(engine.actions()[0], Evict(a));
  EXPECT_EQ(engine.Abort(1), 1u);
  engine.Validate();
  EXPECT_EQ(engine.StateOf(a), StorageState::kEvicted);
  EXPECT_EQ(engine.StateOf(c), StorageState::kUnborn);
  ASSERT_TRUE(engine.Run(operation));
  EXPECT_EQ(engine.actions().size(), 1u);  // the room is there already
}

TEST(EngineTest, AnUpdateInPlaceSettlesWhatTheOldVersionMade) {
  Engine engine(Options(4));
  const StorageId w = engine.AddAdopted(kBlock);
  const StorageId y = Compute(engine, {w}, 1, 1.0);
  engine.EvictAll();
  const int64_t offset = engine.OffsetOf(w);
  const StorageId updated = Compute(engine, {w}, 1, 1.0, 0);
  ASSERT_EQ(engine.actions().size(), 2u);
  EXPECT_TRUE(engine.actions()[0].recompute);  // y, while the old version is there
  EXPECT_EQ(engine.placements()[1].in_place_input, 0);
  EXPECT_EQ(engine.OffsetOf(updated), offset);
  EXPECT_TRUE(engine.IsPermanent(y));
  EXPECT_EQ(engine.StateOf(w), StorageState::kConsumed);
  engine.Release(w);
  EXPECT_EQ(engine.StateOf(w), StorageState::kDead);
  EXPECT_TRUE(engine.freed().empty());  // its memory lives on
  engine.Validate();
  EXPECT_EQ(engine.live_operations(), 0);
}

TEST(EngineTest, AnInPlaceValueWithARecipeIsEvictedNotLost) {
  Engine engine(Options(4));
  const StorageId a = Compute(engine, {}, 1, 1.0);
  const StorageId reader = Compute(engine, {a}, 1, 1.0);
  const int64_t offset = engine.OffsetOf(a);
  const StorageId b = Compute(engine, {a}, 1, 1.0, 0);
  EXPECT_EQ(engine.OffsetOf(b), offset);
  EXPECT_EQ(engine.StateOf(a), StorageState::kEvicted);
  engine.Release(a);
  engine.EvictAll();
  EXPECT_TRUE(engine.Materialize(reader));
  EXPECT_EQ(engine.stats().recomputations, 2);  // a, then its reader
  engine.Validate();
}

TEST(EngineTest, RecipesThatNothingNeedsAreCollected) {
  Engine engine(Options(1000));
  StorageId last = Compute(engine, {}, 1, 1.0);
  for (int i = 0; i < 100; ++i) {
    const StorageId next = Compute(engine, {last}, 1, 1.0);
    engine.Release(last);
    EXPECT_EQ(engine.freed().size(), 1u);  // evicted at once, the recipe stays
    engine.ClearFreed();
    last = next;
  }
  EXPECT_EQ(engine.live_operations(), 101);
  engine.MakePermanent(last);
  EXPECT_EQ(engine.live_operations(), 0);
  EXPECT_EQ(engine.live_storages(), 1);
  EXPECT_EQ(engine.retired().size(), 101u);
}

TEST(EngineTest, ImpureOperationsNeverRunAgainAndTheirOutputsStay) {
  Engine engine(Options(3));
  const StorageId a = Compute(engine, {}, 1, 1.0);
  const OperationId impure = Add(engine, {a}, 1, 1.0, kNone, false);
  const StorageId b = OutputOf(engine, impure);
  ASSERT_TRUE(engine.Run(impure));
  EXPECT_FALSE(engine.IsEvictable(b));
  engine.Release(a);  // nothing can need it: not even the impure operation
  EXPECT_EQ(engine.StateOf(a), StorageState::kDead);
  engine.EvictAll();
  EXPECT_EQ(engine.StateOf(b), StorageState::kResident);
}

TEST(EngineTest, SeveralOutputsThatDoNotFitOneByOneAreTakenTogether) {
  // A pinned block in the middle, four evictable ones on its right: the larger output would cut
  // the only window that both fit in if it went to the left end of another.
  Engine engine(Options(5));
  const StorageId source = engine.AddForeign(0, kBlock, false);
  Compute(engine, {source}, 1, 1.0);
  Compute(engine, {source}, 1, 3.0);
  Compute(engine, {source}, 1, 3.0);
  Compute(engine, {source}, 1, 1.0);
  const OutputSpec specs[] = {{.bytes = 2 * kBlock}, {.bytes = 2 * kBlock}};
  ASSERT_TRUE(engine.Run(engine.AddOperation({&source, 1}, specs, 1.0, true)));
  engine.Validate();
}

TEST(EngineTest, TheForcedModeRecomputesEveryInput) {
  Policy policy = Policy::Coop();
  policy.evict_always = true;
  Engine engine(Options(100, policy));
  StorageId last = Compute(engine, {}, 1, 1.0);
  for (int i = 0; i < 4; ++i) last = Compute(engine, {last}, 1, 1.0);
  EXPECT_EQ(engine.stats().recomputations, 1 + 2 + 3 + 4);
}

TEST(EngineTest, AReservationIsKeptFromEverybodyElse) {
  Engine engine(Options(4));
  Compute(engine, {}, 1, 1.0);
  ASSERT_TRUE(engine.Reserve(3 * kBlock));
  EXPECT_EQ(engine.ReservedBlocks(), (std::vector<Range>{{kBlock, 3 * kBlock}}));
  ASSERT_TRUE(engine.Reserve(4 * kBlock));
  EXPECT_EQ(engine.stats().evictions, 1);
  const uint64_t before = engine.Fingerprint();
  EXPECT_FALSE(engine.Reserve(5 * kBlock));
  EXPECT_EQ(engine.Fingerprint(), before);
  EXPECT_EQ(engine.stats().in_use_bytes, 0);
}

TEST(EngineTest, BrokenCostsAndZeroBytesAreHarmless) {
  Engine engine(Options(3));
  for (const double cost_seconds : {-1.0, 0.0, 1e300, std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<double>::quiet_NaN()}) {
    const StorageId s = Compute(engine, {}, 0, cost_seconds);
    EXPECT_FALSE(std::isnan(engine.ScoreOf(s)));
    EXPECT_GE(engine.ScoreOf(s), 0);
  }
  EXPECT_THROW(engine.AddOutside(-1), std::invalid_argument);
  EXPECT_THROW(engine.AddForeign(1, kBlock, false), std::invalid_argument);
  engine.Validate();
}

}  // namespace
}  // namespace coop::testing
