// What is treasured is moved out of a window's way, not evicted, where the executor can copy.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/small_pool.h"

namespace coop::testing {
namespace {

EngineOptions Options(int64_t blocks, bool may_move) {
  EngineOptions options;
  options.capacity_bytes = blocks * kBlock;
  options.alignment_bytes = kBlock;
  options.policy.cheap_partitioning = false;  // all from the left
  options.policy.neighborhood = NeighborhoodMode::kAncestors;
  options.may_move = may_move;
  return options;
}

OperationId Add(Engine& engine, int64_t blocks) {
  const OutputSpec spec{.bytes = blocks * kBlock};
  return engine.AddOperation({}, {&spec, 1}, 1e-6, true);
}

StorageId OutputOf(const Engine& engine, OperationId operation) {
  std::vector<StorageId> outputs;
  engine.OutputsOf(operation, &outputs);
  return outputs.at(0);
}

StorageId Compute(Engine& engine, int64_t blocks) {
  const OperationId operation = Add(engine, blocks);
  const StorageId output = OutputOf(engine, operation);
  EXPECT_TRUE(engine.Run(operation));
  engine.Validate();
  return output;
}

// [a][treasure][b][free]: a request of three blocks meets the treasure in any case.
struct Pool {
  explicit Pool(bool may_move) : engine(Options(4, may_move)) {
    a = Compute(engine, 1);
    treasure = Compute(engine, 1);
    b = Compute(engine, 1);
    engine.Treasure(treasure);
  }
  Engine engine;
  StorageId a, treasure, b;
};

TEST(TreasuresTest, ATreasureIsMovedOutOfTheWay) {
  Pool pool(true);
  Compute(pool.engine, 3);
  EXPECT_EQ(pool.engine.StateOf(pool.treasure), StorageState::kResident);
  EXPECT_EQ(pool.engine.StateOf(pool.a), StorageState::kEvicted);
  EXPECT_EQ(pool.engine.StateOf(pool.b), StorageState::kEvicted);
  bool moved = false;
  for (const Action& action : pool.engine.actions()) {
    if (action.kind != ActionKind::kMove) continue;
    moved = true;
    EXPECT_EQ(action.id, pool.treasure);
    const auto placement = static_cast<size_t>(action.first_placement);
    EXPECT_EQ(pool.engine.placements()[placement].offset, pool.engine.OffsetOf(pool.treasure));
  }
  EXPECT_TRUE(moved);
}

TEST(TreasuresTest, WhereNothingCanBeMovedATreasureGoesLast) {
  Pool pool(false);
  Compute(pool.engine, 2);  // b and what is free
  EXPECT_EQ(pool.engine.StateOf(pool.treasure), StorageState::kResident);
  Compute(pool.engine, 3);
  EXPECT_EQ(pool.engine.StateOf(pool.treasure), StorageState::kEvicted);
}

// Two sources and what is made of both; the pool holds three, and a treasure of one.
TEST(TreasuresTest, WhereTheyLeaveTooLittleTheyAreMadeAgain) {
  Engine engine(Options(3, false));
  const StorageId a = Compute(engine, 1);
  const StorageId b = Compute(engine, 1);
  const OutputSpec spec{.bytes = kBlock};
  const std::vector<StorageId> inputs = {a, b};
  const OperationId operation = engine.AddOperation(inputs, {&spec, 1}, 1e-6, true);
  const StorageId sum = OutputOf(engine, operation);
  ASSERT_TRUE(engine.Run(operation));
  engine.EvictAll();
  const StorageId treasure = Compute(engine, 1);
  engine.Treasure(treasure);
  ASSERT_TRUE(engine.IsTreasured(treasure));
  EXPECT_TRUE(engine.Materialize(sum));  // of three blocks at once
  EXPECT_EQ(engine.StateOf(treasure), StorageState::kEvicted);
  EXPECT_TRUE(engine.Materialize(treasure));
  EXPECT_TRUE(engine.IsTreasured(treasure));
  engine.Validate();
}

TEST(TreasuresTest, AMoveThatWasNotCarriedOutIsUndone) {
  for (size_t done = 0;; ++done) {
    Pool pool(true);
    const OperationId operation = Add(pool.engine, 3);
    ASSERT_TRUE(pool.engine.Run(operation));
    const size_t count = pool.engine.actions().size();
    if (done == count) break;
    pool.engine.Abort(done);
    pool.engine.Validate();
    const bool moves_done = done > 1;  // a goes, then the treasure moves there
    EXPECT_EQ(pool.engine.OffsetOf(pool.treasure), moves_done ? 0 : kBlock);
    pool.engine.Forget(operation);
    pool.engine.Validate();
  }
}

TEST(TreasuresTest, WhatIsLetGoOfIsNoTreasure) {
  Pool pool(true);
  pool.engine.Release(pool.treasure);
  EXPECT_EQ(pool.engine.StateOf(pool.treasure), StorageState::kDead);
  EXPECT_NE(Compute(pool.engine, 2), kNone);
}

TEST(TreasuresTest, RecomputationHasALimit) {
  EngineOptions options = Options(2, false);
  options.max_recompute = 1.0;
  Engine engine(options);
  const StorageId a = Compute(engine, 1);
  int64_t recomputed = 0;
  for (; recomputed < 2 * EngineOptions::kRecomputeAllowance; ++recomputed) {
    engine.EvictAll();
    if (!engine.Materialize(a)) break;
  }
  EXPECT_EQ(recomputed, 1 + EngineOptions::kRecomputeAllowance);
  EXPECT_EQ(engine.failure().reason, FailureReason::kLimit);
  engine.Validate();
}

}  // namespace
}  // namespace coop::testing
