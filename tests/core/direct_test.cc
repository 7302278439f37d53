// The short way of an operation against the general one, and costs that are kept from the first
// search on.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/named_policies.h"

namespace coop::testing {
namespace {

EngineOptions Options(const Policy& policy, int64_t blocks) {
  EngineOptions options;
  options.capacity_bytes = blocks * 64;
  options.policy = policy;
  options.expensive_seconds_per_byte = 5e-8;
  return options;
}

std::vector<StorageId> OutputsOf(const Engine& engine, OperationId operation) {
  std::vector<StorageId> outputs;
  engine.OutputsOf(operation, &outputs);
  return outputs;
}

// The general way; kNone where there is no room.
StorageId RunGenerally(Engine* engine, const std::vector<StorageId>& inputs, const OutputSpec& spec,
                       double cost_seconds, bool recomputable) {
  const OperationId operation =
      engine->AddOperation(inputs, {&spec, 1}, cost_seconds, recomputable);
  const StorageId output = OutputsOf(*engine, operation)[0];
  if (engine->Run(operation)) return output;
  engine->Forget(operation);
  return kNone;
}

void ExpectEqual(const Engine& a, const Engine& b, StorageId storages) {
  ASSERT_NO_THROW(a.Validate());
  ASSERT_NO_THROW(b.Validate());
  const EngineStats &x = a.stats(), &y = b.stats();
  ASSERT_EQ(x.operations, y.operations);
  ASSERT_EQ(x.recomputations, y.recomputations);
  ASSERT_EQ(x.evictions, y.evictions);
  ASSERT_EQ(x.compute_seconds, y.compute_seconds);
  ASSERT_EQ(x.in_use_bytes, y.in_use_bytes);
  ASSERT_EQ(x.outside_bytes, y.outside_bytes);
  ASSERT_EQ(x.peak_in_use_bytes, y.peak_in_use_bytes);
  ASSERT_EQ(a.clock_seconds(), b.clock_seconds());
  ASSERT_EQ(a.live_storages(), b.live_storages());
  ASSERT_EQ(a.live_operations(), b.live_operations());
  ASSERT_EQ(a.largest_free_block_bytes(), b.largest_free_block_bytes());
  for (StorageId s = 0; s < storages; ++s) {
    ASSERT_EQ(a.StateOf(s), b.StateOf(s)) << s;
    if (a.StateOf(s) == StorageState::kDead) continue;
    ASSERT_EQ(a.OffsetOf(s), b.OffsetOf(s)) << s;
    ASSERT_EQ(a.RefsOf(s), b.RefsOf(s)) << s;
    ASSERT_EQ(a.ProjectedCost(s), b.ProjectedCost(s)) << s;
    if (a.OffsetOf(s) < 0) continue;
    ASSERT_EQ(a.ScoreOf(s), b.ScoreOf(s)) << s;
  }
}

class DirectTest : public ::testing::TestWithParam<NamedPolicy> {};

TEST_P(DirectTest, LeavesWhatTheGeneralWayLeaves) {
  int direct = 0, general = 0;
  int64_t evictions = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    Engine a(Options(GetParam().policy, 40)), b(Options(GetParam().policy, 40));
    std::vector<StorageId> held{a.AddForeign(640, 100, false), a.AddOutside(30)};
    ASSERT_EQ(held, (std::vector<StorageId>{b.AddForeign(640, 100, false), b.AddOutside(30)}));
    StorageId most = 2;
    for (int step = 0; step < 150; ++step) {
      if (held.size() > 12 || (held.size() > 2 && below(3) == 0)) {
        const size_t i = below(held.size());
        a.Release(held[i]);
        b.Release(held[i]);
        ASSERT_EQ(a.freed(), b.freed());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        std::vector<StorageId> inputs;
        for (uint64_t k = held.empty() ? 0 : below(4); k > 0; --k) {
          inputs.push_back(held[below(held.size())]);
        }
        const OutputSpec spec{.bytes = static_cast<int64_t>(below(400)), .outside = below(8) == 0};
        const double cost_seconds = 1e-6 * static_cast<double>(below(30));
        const bool recomputable = below(10) != 0;
        const StorageId output = RunGenerally(&a, inputs, spec, cost_seconds, recomputable);
        Engine::DirectRun run;
        if (b.RunDirectly(inputs, spec, cost_seconds, recomputable, &run)) {
          ++direct;
          ASSERT_EQ(run.output, output);
          ASSERT_EQ(run.offset, a.OffsetOf(output));
        } else {
          ++general;
          ASSERT_EQ(RunGenerally(&b, inputs, spec, cost_seconds, recomputable), output);
        }
        if (output == kNone) continue;
        held.push_back(output);
        most = std::max(most, output + 1);
      }
      a.ClearFreed();
      b.ClearFreed();
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(a, b, most)) << "seed " << seed << ", step " << step;
    }
    evictions += a.stats().evictions;
  }
  EXPECT_GT(general, 50);
  EXPECT_GT(evictions, 50);
  if (GetParam().policy.evict_always) {
    EXPECT_EQ(direct, 0);
  } else {
    EXPECT_GT(direct, 500);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, DirectTest, ::testing::ValuesIn(AllPolicies()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(DirectRunTest, AskedPlacesAreTakenWhereTheyAreFree) {
  Engine engine(Options(Policy::Coop(), 16));
  const OutputSpec spec{.bytes = 64, .place = 320};
  Engine::DirectRun first, second;
  ASSERT_TRUE(engine.RunDirectly({}, spec, 1, true, &first));
  EXPECT_EQ(first.offset, 320);
  ASSERT_TRUE(engine.RunDirectly({}, spec, 1, true, &second));
  EXPECT_EQ(second.offset, 0);  // from the left, as it is expensive
  engine.Validate();
}

TEST(DirectRunTest, WhatNeedsMoreIsLeftAsItIs) {
  Engine engine(Options(Policy::Coop(), 4));
  Engine::DirectRun a, b, none;
  ASSERT_TRUE(engine.RunDirectly({}, {.bytes = 128}, 1, true, &a));
  ASSERT_TRUE(engine.RunDirectly({}, {.bytes = 128}, 1, true, &b));
  const uint64_t before = engine.Fingerprint();
  const auto refused = [&](const std::vector<StorageId>& inputs, const OutputSpec& spec) {
    return !engine.RunDirectly(inputs, spec, 1, true, &none) && engine.Fingerprint() == before;
  };
  EXPECT_TRUE(refused({}, {.bytes = 64}));  // something has to go
  EXPECT_TRUE(refused({77}, {.bytes = 8, .outside = true}));
  EXPECT_TRUE(refused({kNone}, {.bytes = 8, .outside = true}));
  EXPECT_TRUE(refused({a.output}, {.bytes = 128, .in_place_input = 0}));
  EXPECT_TRUE(refused({a.output}, {.bytes = -1}));
  ASSERT_TRUE(engine.Discard(a.output));
  EXPECT_FALSE(engine.RunDirectly(std::vector{a.output}, {.bytes = 64}, 1, true, &none));
}

TEST(DirectRunTest, TakenBackItHasNotRun) {
  Engine engine(Options(Policy::Coop(), 8));
  Engine::DirectRun kept, gone;
  ASSERT_TRUE(engine.RunDirectly({}, {.bytes = 64}, 1, true, &kept));
  ASSERT_TRUE(engine.RunDirectly(std::vector{kept.output}, {.bytes = 64}, 2, true, &gone));
  engine.Retain(gone.output);
  engine.TakeBack(gone);
  engine.Validate();
  EXPECT_EQ(engine.StateOf(gone.output), StorageState::kDead);
  EXPECT_EQ(engine.freed(), std::vector{gone.output});
  EXPECT_EQ(engine.retired(), std::vector{gone.operation});
  EXPECT_EQ(engine.stats().operations, 1);
  EXPECT_EQ(engine.stats().compute_seconds, 1);
  EXPECT_EQ(engine.stats().in_use_bytes, 64);
  EXPECT_THROW(engine.TakeBack(gone), std::invalid_argument);
}

// a -> b -> c -> d, of which b and c are evicted as nobody holds them.
std::vector<StorageId> Chain(Engine* engine) {
  std::vector<StorageId> chain{RunGenerally(engine, {}, {.bytes = 64}, 1, true)};
  for (int i = 0; i < 3; ++i) {
    chain.push_back(RunGenerally(engine, {chain.back()}, {.bytes = 64}, 1 + i, true));
  }
  engine->Release(chain[1]);
  engine->Release(chain[2]);
  return chain;
}

TEST_P(DirectTest, CostsFromTheFirstSearchOnAreThoseFromTheBeginning) {
  EngineOptions options = Options(GetParam().policy, 8);
  Engine always(options);
  options.costs_from_first_search = true;
  Engine late(options);
  const std::vector<StorageId> chain = Chain(&always);
  ASSERT_EQ(chain, Chain(&late));
  ASSERT_NO_FATAL_FAILURE(ExpectEqual(always, late, 4));  // asks for costs: kept from here on
  for (Engine* engine : {&always, &late}) engine->Discard(chain[3]);
  ASSERT_NO_FATAL_FAILURE(ExpectEqual(always, late, 4));
}

TEST(DirectRunTest, AFailedSearchLeavesNoCostsBehind) {
  EngineOptions options = Options(Policy::Coop(), 4);
  options.costs_from_first_search = true;
  Engine engine(options);
  const std::vector<StorageId> chain = Chain(&engine);
  const OutputSpec large{.bytes = 1000};
  const OperationId operation = engine.AddOperation(std::vector{chain[3]}, {&large, 1}, 1, true);
  const uint64_t before = engine.Fingerprint();
  EXPECT_FALSE(engine.Run(operation));
  EXPECT_EQ(engine.Fingerprint(), before);
  engine.Forget(operation);
  engine.Validate();
  engine.Release(chain[0]);
  engine.Validate();
  EXPECT_NE(RunGenerally(&engine, {chain[3]}, {.bytes = 192}, 1, true), kNone);
  engine.Validate();
}

}  // namespace
}  // namespace coop::testing
