// What is evicted where the front end says when it will read what.

#include <gtest/gtest.h>

#include <span>
#include <stdexcept>
#include <vector>

#include "cc/core/engine/engine.h"
#include "cc/core/planner/plan.h"
#include "small_pool.h"

namespace coop::testing {
namespace {

StorageId Compute(Engine& engine, const std::vector<StorageId>& inputs = {},
                  double cost_seconds = 1e-3) {
  const OutputSpec spec{.bytes = kBlock};
  const OperationId op = engine.AddOperation(inputs, std::span(&spec, 1), cost_seconds, true);
  std::vector<StorageId> outputs;
  engine.OutputsOf(op, &outputs);
  EXPECT_TRUE(engine.Run(op));
  engine.Validate();
  return outputs.front();
}

bool Evicted(const Engine& engine, StorageId storage) {
  return engine.StateOf(storage) == StorageState::kEvicted;
}

TEST(LookaheadTest, WhatIsReadLastGoesFirst) {
  Engine engine(LookaheadOptions(2));
  const StorageId stale = Compute(engine);
  const StorageId fresh = Compute(engine);
  engine.SetNextRead(stale, 1.0);
  engine.SetNextRead(fresh, 9.0);
  Compute(engine);
  EXPECT_FALSE(Evicted(engine, stale));
  EXPECT_TRUE(Evicted(engine, fresh));
}

TEST(LookaheadTest, TimeCountsFromWhereTheProgramIs) {
  for (const bool late : {false, true}) {
    Engine engine(LookaheadOptions(2));
    const StorageId cheap = Compute(engine, {}, 1.0);
    const StorageId dear = Compute(engine, {}, 4.0);
    engine.SetNextRead(cheap, 12.0);
    engine.SetNextRead(dear, 20.0);
    engine.SetNow(late ? 11.0 : 0.0);  // 1 / 12 < 4 / 20, but 1 / 1 > 4 / 9
    Compute(engine);
    EXPECT_EQ(Evicted(engine, cheap), !late);
    EXPECT_EQ(Evicted(engine, dear), late);
  }
}

TEST(LookaheadTest, WhereNothingIsSaidStalenessDecidesAsForCoop) {
  for (const Policy& policy : {Policy::Coop(), Policy::Lookahead()}) {
    Engine engine(LookaheadOptions(2, policy));
    const StorageId stale = Compute(engine);
    const StorageId fresh = Compute(engine);
    Compute(engine);
    EXPECT_TRUE(Evicted(engine, stale));
    EXPECT_FALSE(Evicted(engine, fresh));
  }
}

TEST(LookaheadTest, OtherPoliciesDoNotListen) {
  Engine engine(LookaheadOptions(2, Policy::Coop()));
  const StorageId stale = Compute(engine);
  const StorageId fresh = Compute(engine);
  engine.SetNextRead(stale, 1.0);
  engine.SetNextRead(fresh, 9.0);
  Compute(engine);
  EXPECT_TRUE(Evicted(engine, stale));
}

TEST(LookaheadTest, ANewStorageDoesNotInheritWhatWasSaidOfADeadOne) {
  Engine engine(LookaheadOptions(2));
  const StorageId dead = Compute(engine);
  engine.SetNextRead(dead, 1e9);
  engine.Release(dead);
  const StorageId heir = Compute(engine);
  ASSERT_EQ(heir, dead);
  const StorageId other = Compute(engine);
  engine.SetNextRead(other, 5.0);  // of the heir nothing is known: it was there a moment ago
  Compute(engine);
  EXPECT_TRUE(Evicted(engine, other));
  EXPECT_FALSE(Evicted(engine, heir));
}

TEST(LookaheadTest, AKeptValueIsReadWhenWhatIsMadeFromItIs) {
  for (const double cheap_at : {2.0, 50.0}) {
    Engine engine(LookaheadOptions(3));
    const StorageId dear = Compute(engine, {}, 1.0);
    const StorageId cheap = Compute(engine, {dear}, 1e-6);
    ASSERT_TRUE(engine.Discard(cheap));
    engine.SetNextRead(cheap, cheap_at);
    engine.Release(dear);  // kept: cheap is made from it
    ASSERT_FALSE(Evicted(engine, dear));
    const StorageId other = Compute(engine, {}, 1.0);
    engine.SetNextRead(other, 10.0);
    Compute(engine);
    Compute(engine);  // one of the two has to go
    EXPECT_EQ(Evicted(engine, dear), cheap_at > 10.0);
    EXPECT_EQ(Evicted(engine, other), cheap_at < 10.0);
  }
}

TEST(LookaheadTest, WhatIsWorthMoreStays) {
  for (const Policy& policy : {Policy::Lookahead(), Policy::Coop(), Policy::Dte(), Policy::Dtr()}) {
    for (const double factor : {1.0, 0.0}) {
      Engine engine(LookaheadOptions(2, policy));
      const StorageId cheap = Compute(engine, {}, 1.0);
      const StorageId dear = Compute(engine, {}, 10.0);
      engine.SetNextRead(cheap, 5.0);
      engine.SetNextRead(dear, 5.0);
      engine.SetWorth(dear, factor);
      Compute(engine);
      EXPECT_EQ(Evicted(engine, cheap), factor == 1.0);
      EXPECT_EQ(Evicted(engine, dear), factor == 0.0);
    }
  }
}

TEST(LookaheadTest, AWorthIsOfOneStorageAndKeptWhenItReturns) {
  Engine engine(LookaheadOptions(2));
  const StorageId first = Compute(engine, {}, 1.0);
  engine.SetWorth(first, 0.0);
  engine.SetNextRead(first, 1.0);
  const StorageId other = Compute(engine, {}, 1e-3);
  engine.SetNextRead(other, 2.0);
  Compute(engine);
  ASSERT_TRUE(Evicted(engine, first));
  ASSERT_TRUE(engine.Materialize(first));
  ASSERT_FALSE(Evicted(engine, first));
  Compute(engine);
  EXPECT_TRUE(Evicted(engine, first));
  EXPECT_THROW(engine.SetWorth(first, -1), std::invalid_argument);
  EXPECT_THROW(engine.SetWorth(first, 2 * Engine::kMostWorth), std::invalid_argument);
}

TEST(LookaheadTest, ATimeIsNotNegative) {
  Engine engine(LookaheadOptions(2));
  const StorageId storage = Compute(engine);
  EXPECT_THROW(engine.SetNow(-1), std::invalid_argument);
  EXPECT_THROW(engine.SetNextRead(storage, -1), std::invalid_argument);
  EXPECT_THROW(engine.SetNextRead(storage + 1, 1), std::invalid_argument);
}

// v0 .. v5 are made one after the other and read back in the order that is worst for staleness:
// the same again, so that what is stalest is what is read next.
TEST(LookaheadTest, APlanKnowsThatTheStalestIsReadNext) {
  Program program;
  constexpr int kValues = 6;
  program.op_input_begin = program.op_output_begin = program.release_begin = {0};
  const auto add = [&](int32_t input) {
    if (input >= 0) {
      program.op_inputs.push_back(input);
      program.releases.push_back(input);
    }
    program.op_outputs.push_back(static_cast<int32_t>(program.storage_bytes.size()));
    program.storage_bytes.push_back(kBlock);
    program.storage_outside.push_back(0);
    program.op_in_place.push_back(kNone);
    program.op_cost_seconds.push_back(1e-3);
    program.op_recomputable.push_back(1);
    if (input >= 0) program.releases.push_back(program.op_outputs.back());  // nobody reads it
    program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
    program.op_output_begin.push_back(static_cast<int32_t>(program.op_outputs.size()));
    program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
  };
  for (int i = 0; i < kValues; ++i) add(kNone);
  for (int i = 0; i < kValues; ++i) add(i);
  const auto recomputations = [&](const Policy& policy) {
    PlanOptions options;
    options.engine = LookaheadOptions(5, policy);
    const Plan plan = MakePlan(program, options);
    EXPECT_TRUE(plan.feasible);
    return plan.stats.recomputations;
  };
  // One of six does not fit, and each read needs a block for its result.
  EXPECT_EQ(recomputations(Policy::Lookahead()), 2);
  EXPECT_GT(recomputations(Policy::Coop()), 2);
}

}  // namespace
}  // namespace coop::testing
