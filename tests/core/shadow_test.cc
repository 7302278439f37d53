// 100,000 random calls of the engine, each validated and carried out on fake memory.

#include "tests/core/shadow.h"

#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "tests/core/named_policies.h"

namespace coop::testing {
namespace {

ShadowOptions Options(const Policy& policy, int64_t blocks, int max_held) {
  ShadowOptions options;
  options.engine.capacity_bytes = blocks * 64;
  options.engine.alignment_bytes = 64;
  options.engine.policy = policy;
  options.engine.expensive_seconds_per_byte = 5e-8;
  options.engine.costs_from_first_search = blocks == 40;  // in one of the settings
  options.max_held = max_held;
  return options;
}

// Pools from one where nearly every call fails to one with little pressure.
struct Setting {
  int64_t blocks;
  int max_held;
};
constexpr Setting kSettings[] = {{12, 8}, {30, 14}, {40, 30}, {80, 50}};

CheckedEngine::Counters RunSteps(uint64_t seed, const ShadowOptions& options, int steps,
                                 uint64_t* log = nullptr) {
  Shadow shadow(seed, options);
  int step = 0;
  try {
    for (; step < steps; ++step) shadow.Step();
    shadow.Finish();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n  seed " << seed << ", step " << step << ", capacity "
                  << options.engine.capacity_bytes;
  }
  if (log != nullptr) *log = shadow.log();
  return shadow.checked().counters();
}

class ShadowTest : public ::testing::TestWithParam<NamedPolicy> {};

// 10 policies x 4 pools x 10 seeds x 250 calls = 100,000.
TEST_P(ShadowTest, RandomCallsNeverGiveWrongDataAndAlwaysValidate) {
  CheckedEngine::Counters total;
  for (const Setting& setting : kSettings) {
    for (uint64_t seed = 0; seed < 10 && !HasFailure(); ++seed) {
      const auto counters =
          RunSteps(seed, Options(GetParam().policy, setting.blocks, setting.max_held), 250);
      total.runs += counters.runs;
      total.failed_runs += counters.failed_runs;
      total.aborted_runs += counters.aborted_runs;
      total.recomputations += counters.recomputations;
      total.evictions += counters.evictions;
      total.direct += counters.direct;
      total.taken_back += counters.taken_back;
      total.in_place += counters.in_place;
      total.in_place_sources += counters.in_place_sources;
      total.scratch += counters.scratch;
      total.materialized += counters.materialized;
      total.reservations += counters.reservations;
    }
  }
  // Every path must have been taken; otherwise the test tests nothing.
  EXPECT_GT(total.runs, 1000);
  EXPECT_GT(total.failed_runs, 50);
  EXPECT_GT(total.aborted_runs, 10);
  if (!GetParam().policy.evict_always) {
    EXPECT_GT(total.direct, 200);
    EXPECT_GT(total.taken_back, 5);
  }
  EXPECT_GT(total.recomputations, 200);
  EXPECT_GT(total.evictions, 200);
  EXPECT_GT(total.scratch, 20);
  EXPECT_GT(total.materialized, 20);
  EXPECT_GT(total.reservations, 10);
  if (GetParam().policy.in_place) {
    EXPECT_GT(total.in_place, 100);
    EXPECT_GT(total.in_place_sources, 5);
  } else {
    EXPECT_EQ(total.in_place, 0);
  }
}

TEST_P(ShadowTest, DecisionsAreTheSameFromRunToRun) {
  for (uint64_t seed = 500; seed < 503; ++seed) {
    uint64_t first = 0;
    uint64_t second = 1;
    RunSteps(seed, Options(GetParam().policy, 30, 14), 150, &first);
    RunSteps(seed, Options(GetParam().policy, 30, 14), 150, &second);
    EXPECT_EQ(first, second) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ShadowTest, ::testing::ValuesIn(AllPolicies()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace coop::testing
