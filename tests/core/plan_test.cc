// Plans of random straight-line programs, carried out on fake memory: right values in the right
// places, never above the budget, refused with a report that makes sense, and the same from run to
// run.

#include "cc/core/planner/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/named_policies.h"
#include "tests/core/random_program.h"

namespace coop::testing {
namespace {

constexpr int64_t kAlignmentBytes = 64;
constexpr int64_t kUnlimitedBytes = int64_t{1} << 50;

PlanOptions Options(const Policy& policy, int64_t capacity_bytes) {
  PlanOptions options{};
  options.engine.capacity_bytes = capacity_bytes;
  options.engine.alignment_bytes = kAlignmentBytes;
  options.engine.policy = policy;
  options.engine.expensive_seconds_per_byte = 5e-8;
  return options;
}

int64_t ForeignEnd(const Program& program) {
  int64_t end = 0;
  for (const Program::Input& input : program.inputs) {
    if (input.where != Program::Where::kForeign) continue;
    const int64_t bytes = program.storage_bytes[input.storage];
    end = std::max(
        end, input.offset + (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  }
  return end;
}

int64_t OutsideBytes(const Program& program) {
  int64_t total = 0;
  for (size_t s = 0; s < program.storage_bytes.size(); ++s) {
    if (program.storage_outside[s] != 0) total += program.storage_bytes[s];
  }
  return total;
}

// The programs differ in shape, so that chains, wide graphs, in-place updates and impure operations
// all dominate once.
ProgramShape ShapeOf(uint64_t seed) {
  ProgramShape shape;
  shape.operations = 12 + static_cast<int>(seed % 7) * 9;
  shape.inputs = 1 + static_cast<int>(seed % 5) * 2;
  switch (seed % 6) {
    case 0:
      shape.unused_later = 0.95;
      shape.max_fan_out = 1;
      shape.outside = 0;
      break;
    case 1:
      shape.in_place = 0.9;
      shape.same_bytes = 0.95;
      break;
    case 2:
      shape.impure = 0.2;
      break;
    case 3:
      shape.max_fan_out = 5;
      shape.unused_later = 0.2;
      break;
    case 4:
      shape.outside = 0.3;
      shape.max_fan_in = 5;
      break;
    default:
      break;
  }
  return shape;
}

void ExpectSane(const Program& program, const PlanOptions& options, const Plan& plan) {
  const Failure& failure = plan.failure;
  const int64_t capacity_bytes = options.engine.capacity_bytes;
  EXPECT_GE(failure.requested_bytes, 0);
  EXPECT_EQ(failure.capacity_bytes, capacity_bytes);
  EXPECT_GE(failure.in_use_bytes, 0);
  EXPECT_LE(failure.pinned_bytes, failure.in_use_bytes);
  EXPECT_GE(failure.pinned_bytes, 0);
  int64_t held_bytes = 0;
  int64_t pinned_bytes = 0;
  for (const HeldBlock& block : failure.held) {
    held_bytes += block.bytes;
    if (block.reason != HoldReason::kEvictable) pinned_bytes += block.bytes;
    EXPECT_GE(block.storage, kNone);
    EXPECT_LT(block.storage, program.storage_count());
  }
  EXPECT_EQ(held_bytes, failure.in_use_bytes);
  EXPECT_EQ(pinned_bytes, failure.pinned_bytes);
  EXPECT_LE(failure.largest_free_block_bytes, capacity_bytes);
  EXPECT_GE(failure.largest_window_bytes, failure.largest_free_block_bytes);
  EXPECT_LE(failure.largest_window_bytes, capacity_bytes);
  if (failure.reason == FailureReason::kNoSpace) {
    EXPECT_GT(failure.requested_bytes, failure.largest_free_block_bytes);
  }
  EXPECT_GE(plan.failed_operation, -1);
  EXPECT_LE(plan.failed_operation, static_cast<int32_t>(program.op_cost_seconds.size()));
}

bool SamePlan(const Plan& a, const Plan& b) {
  return a.feasible == b.feasible && a.actions == b.actions && a.placements == b.placements &&
         a.input_offsets == b.input_offsets && a.output_offsets == b.output_offsets &&
         a.reserved == b.reserved && a.peak_bytes == b.peak_bytes;
}

// Checks one plan and says whether it was feasible.
bool Check(const Program& program, const PlanOptions& options) {
  try {
    const Plan plan = MakePlan(program, options);
    if (!plan.feasible) {
      ExpectSane(program, options, plan);
      return false;
    }
    EXPECT_LE(plan.peak_bytes, options.engine.capacity_bytes + OutsideBytes(program));
    CheckPlan(program, options, plan);
    return true;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return false;
  }
}

std::vector<double> RandomWorth(uint64_t seed, const Program& program) {
  std::mt19937_64 generator(seed);
  constexpr double kFactors[] = {0, 1e-6, 0.1, 1, 1, 30, Engine::kMostWorth};
  std::vector<double> worth(program.storage_bytes.size());
  for (double& factor : worth) factor = kFactors[generator() % std::size(kFactors)];
  return worth;
}

std::vector<SideHint> RandomSides(uint64_t seed, const Program& program) {
  std::mt19937_64 generator(seed);
  std::vector<SideHint> sides(program.storage_bytes.size());
  for (SideHint& side : sides) side = static_cast<SideHint>(generator() % 3);
  return sides;
}

std::vector<int32_t> RandomHeldFor(uint64_t seed, const Program& program) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> held_for(program.storage_bytes.size(), kNone);
  for (int32_t& operation : held_for) {
    if (generator() % 4 == 0) {
      operation = static_cast<int32_t>(generator() % program.op_cost_seconds.size());
    }
  }
  return held_for;
}

// With about the least memory in which the policy finds a plan.
PlanOptions TightOptions(const Policy& policy, const Program& program) {
  const int64_t bound_bytes = LowerBoundBytes(program, kAlignmentBytes);
  PlanOptions options = Options(policy, 3 * bound_bytes / 2);
  while (!MakePlan(program, options).feasible) {
    options.engine.capacity_bytes += bound_bytes / 4 / kAlignmentBytes * kAlignmentBytes + 64;
  }
  return options;
}

class ProgramTest : public ::testing::TestWithParam<NamedPolicy> {};

TEST_P(ProgramTest, PlansComputeTheRightValuesFromTightToLooseBudgets) {
  int feasible = 0;
  int planned = 0;
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    const Program program = RandomProgram(seed, ShapeOf(seed));
    const Plan loose = MakePlan(program, Options(GetParam().policy, kUnlimitedBytes));
    ASSERT_TRUE(loose.feasible) << "seed " << seed;
    const int64_t peak_bytes =
        std::min(loose.peak_bytes, 2 * TotalRoundedBytes(program, kAlignmentBytes));
    for (const int percent : {25, 40, 50, 60, 70, 80, 90, 100, 130}) {
      int64_t capacity_bytes = peak_bytes * percent / 100 / kAlignmentBytes * kAlignmentBytes;
      capacity_bytes = std::max(capacity_bytes, std::max(ForeignEnd(program), kAlignmentBytes));
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", capacity " << capacity_bytes);
      PlanOptions options = Options(GetParam().policy, capacity_bytes);
      options.pin_outputs_early = seed % 2 == 0;
      if (seed % 3 == 0) options.worth = RandomWorth(seed, program);
      if (seed % 3 == 1) options.sides = RandomSides(seed, program);
      if (seed % 4 == 1) options.held_for = RandomHeldFor(seed, program);
      ++planned;
      if (Check(program, options)) ++feasible;
    }
  }
  // The budgets are chosen so that both happen often; a planner that always refuses would pass
  // otherwise.
  EXPECT_GT(feasible * 100, planned * 40);
  EXPECT_LT(feasible, planned);
}

TEST_P(ProgramTest, PlansWorkAroundForeignBlocksAndReservations) {
  for (uint64_t seed = 100; seed < 130 && !HasFailure(); ++seed) {
    const Program program = RandomProgram(seed, ShapeOf(seed));
    const int64_t first = ForeignEnd(program) + 4 * kAlignmentBytes;
    for (const int blocks : {8, 40, 400}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", blocks " << blocks);
      PlanOptions options = Options(GetParam().policy, first + blocks * kAlignmentBytes);
      options.foreign.push_back({first, 3 * kAlignmentBytes});
      options.foreign.push_back({first + 5 * kAlignmentBytes, 1});
      options.reserve_bytes = blocks * kAlignmentBytes / 8 + 1;
      options.pin_outputs_early = true;
      Check(program, options);
    }
  }
}

TEST_P(ProgramTest, WithoutABudgetNothingIsEvicted) {
  if (GetParam().policy.evict_always) GTEST_SKIP() << "the forced mode evicts always";
  for (uint64_t seed = 200; seed < 230 && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Program program = RandomProgram(seed, ShapeOf(seed));
    const PlanOptions options = Options(GetParam().policy, kUnlimitedBytes);
    const Plan plan = MakePlan(program, options);
    ASSERT_TRUE(plan.feasible);
    EXPECT_EQ(plan.stats.evictions, 0);
    EXPECT_EQ(plan.stats.recomputations, 0);
    const auto runs = std::count_if(plan.actions.begin(), plan.actions.end(),
                                    [](const Action& a) { return a.kind == ActionKind::kRun; });
    EXPECT_EQ(runs, program.operation_count());
    EXPECT_TRUE(Check(program, options));
  }
}

TEST_P(ProgramTest, LessThanOneOperationNeedsIsRefused) {
  for (uint64_t seed = 300; seed < 330 && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Program program = RandomProgram(seed, ShapeOf(seed));
    const int64_t bound_bytes = LowerBoundBytes(program, kAlignmentBytes) - kAlignmentBytes;
    if (bound_bytes <= 0 || bound_bytes < ForeignEnd(program)) continue;
    const PlanOptions options = Options(GetParam().policy, bound_bytes);
    const Plan plan = MakePlan(program, options);
    ASSERT_FALSE(plan.feasible);
    ExpectSane(program, options, plan);
  }
}

TEST_P(ProgramTest, MoreRecomputationThanIsAllowedIsNoPlan) {
  int refused = 0;
  for (uint64_t seed = 350; seed < 380 && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Program program = RandomProgram(seed, ShapeOf(seed));
    PlanOptions options = TightOptions(GetParam().policy, program);
    const Plan any = MakePlan(program, options);
    if (any.stats.recomputations < 2) continue;
    options.max_recomputations = any.stats.recomputations;
    EXPECT_TRUE(MakePlan(program, options).feasible);
    const int64_t fewer = any.stats.recomputations / 2;
    // Of all, or with those that were undone. An attempt that is cut short may lead to another that
    // needs fewer, so that there is a plan after all, or gets to where something does not fit.
    for (const bool all : {true, false}) {
      options.max_recomputations = all ? fewer : 0;
      options.max_tried_recomputations = all ? 0 : fewer;
      const Plan plan = MakePlan(program, options);
      EXPECT_LE(plan.stats.recomputations, fewer);
      if (plan.feasible) continue;
      EXPECT_GE(plan.failed_operation, 0);
      refused += plan.failure.reason == FailureReason::kThrashing ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_P(ProgramTest, ALongerRecomputationThanIsAllowedIsNoPlan) {
  int refused = 0;
  for (uint64_t seed = 350; seed < 380 && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Program program = RandomProgram(seed, ShapeOf(seed));
    PlanOptions options = TightOptions(GetParam().policy, program);
    const Plan any = MakePlan(program, options);
    const double seconds = any.stats.recompute_seconds;
    if (seconds <= 0) continue;
    options.max_recompute_seconds = seconds;
    const Plan same = MakePlan(program, options);
    EXPECT_TRUE(same.feasible);
    EXPECT_EQ(same.actions.size(), any.actions.size());
    options.max_recompute_seconds = seconds * 0.99;
    const Plan plan = MakePlan(program, options);
    ASSERT_FALSE(plan.feasible);
    EXPECT_EQ(plan.failure.reason, FailureReason::kThrashing);
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

TEST_P(ProgramTest, PlansAreTheSameFromRunToRun) {
  for (uint64_t seed = 400; seed < 425 && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Program program = RandomProgram(seed, ShapeOf(seed));
    const int64_t peak_bytes =
        MakePlan(program, Options(GetParam().policy, kUnlimitedBytes)).peak_bytes;
    const int64_t capacity_bytes =
        std::max(peak_bytes / 2 / kAlignmentBytes * kAlignmentBytes, ForeignEnd(program));
    const PlanOptions options =
        Options(GetParam().policy, std::max(capacity_bytes, kAlignmentBytes));
    EXPECT_TRUE(SamePlan(MakePlan(program, options), MakePlan(program, options)));
  }
}

// Storage 0 is an input; operations 0 and 1 read it and make 1 and 2.
Program SmallProgram() {
  Program program;
  program.storage_bytes = {64, 64, 64};
  program.storage_outside = {0, 0, 0};
  program.inputs = {{.storage = 0, .where = Program::Where::kAdopt, .donated = true}};
  program.op_input_begin = {0, 1, 2};
  program.op_inputs = {0, 0};
  program.op_output_begin = {0, 1, 2};
  program.op_outputs = {1, 2};
  program.op_in_place = {kNone, 0};
  program.op_cost_seconds = {1, 1};
  program.op_recomputable = {1, 1};
  program.release_begin = {0, 0, 1};
  program.releases = {0};
  program.outputs = {1, 2};
  return program;
}

// 0 is dear and made into 1, which is large and read at the end; 2 needs its place.
Program DearThenLarge() {
  Program program;
  program.storage_bytes = {64, 128, 128, 64, 64};
  program.storage_outside = {0, 0, 0, 1, 1};
  program.op_input_begin = {0, 0, 1, 1, 2, 4};
  program.op_inputs = {0, 2, 1, 3};
  program.op_output_begin = {0, 1, 2, 3, 4, 5};
  program.op_outputs = {0, 1, 2, 3, 4};
  program.op_in_place.assign(5, kNone);
  program.op_cost_seconds = {100, 1, 1, 1, 1};
  program.op_recomputable.assign(5, 1);
  program.release_begin = {0, 0, 1, 1, 2, 4};
  program.releases = {0, 2, 1, 3};
  program.outputs = {4};
  return program;
}

TEST(HeldForTest, AHeldStorageIsThereForWhatIsMadeFromItAgain) {
  const Program program = DearThenLarge();
  PlanOptions options = Options(Policy::Lookahead(), 192);
  const Plan plain = MakePlan(program, options);
  ASSERT_TRUE(plain.feasible);
  EXPECT_EQ(plain.stats.recompute_seconds, 101);
  options.held_for.assign(5, kNone);
  EXPECT_EQ(MakePlan(program, options).stats.recompute_seconds, 101);
  options.held_for[0] = 4;
  const Plan held = MakePlan(program, options);
  ASSERT_TRUE(held.feasible);
  CheckPlan(program, options, held);
  EXPECT_EQ(held.stats.recompute_seconds, 1);
  // No longer than said.
  options.held_for[0] = 1;
  EXPECT_EQ(MakePlan(program, options).stats.recompute_seconds, 101);
}

TEST(HeldForTest, WhatIsHeldIsNotOverwritten) {
  // 0 is read by 1 alone, which may take its place; 2 and 3 do nothing with it.
  Program program = DearThenLarge();
  program.storage_bytes[1] = 64;
  program.op_in_place[1] = 0;
  PlanOptions options = Options(Policy::Lookahead(), 320);
  EXPECT_EQ(MakePlan(program, options).stats.peak_in_use_bytes,
            64 + 128 + 64);  // the last lies outside
  options.held_for = {4, kNone, kNone, kNone, kNone};
  const Plan held = MakePlan(program, options);
  CheckPlan(program, options, held);
  EXPECT_EQ(held.stats.peak_in_use_bytes, 64 + 64 + 128 + 64);
}

TEST(ProgramMistakesTest, MalformedProgramsAreRefused) {
  const PlanOptions options = Options(Policy::Coop(), 640);
  EXPECT_TRUE(Check(SmallProgram(), options));
  const auto refuses = [&](auto change) {
    Program program = SmallProgram();
    PlanOptions changed = options;
    change(program, changed);
    EXPECT_THROW((void)MakePlan(program, changed), std::invalid_argument);
  };
  refuses([](Program& p, PlanOptions&) { p.op_inputs[0] = 3; });
  refuses([](Program& p, PlanOptions&) { p.op_inputs[0] = -1; });
  refuses([](Program& p, PlanOptions&) { p.op_inputs[0] = 2; });  // before it exists
  refuses([](Program& p, PlanOptions&) { p.op_outputs[1] = 1; });
  refuses([](Program& p, PlanOptions&) { p.op_outputs[1] = 0; });
  refuses([](Program& p, PlanOptions&) { p.op_in_place[1] = 1; });
  refuses([](Program& p, PlanOptions&) { p.op_recomputable.pop_back(); });
  refuses([](Program& p, PlanOptions&) { p.op_input_begin[1] = 7; });
  refuses([](Program& p, PlanOptions&) { p.release_begin = {0, 1, 1}; });  // read after it
  refuses([](Program& p, PlanOptions&) {
    p.releases = {0, 0};
    p.release_begin = {0, 0, 2};
  });
  refuses([](Program& p, PlanOptions&) { p.outputs = {3}; });
  refuses([](Program& p, PlanOptions&) { p.storage_bytes[1] = -1; });
  refuses([](Program& p, PlanOptions&) { p.inputs.push_back(p.inputs[0]); });
  refuses([](Program&, PlanOptions& o) { o.foreign = {{0, 128}, {64, 64}}; });
  refuses([](Program&, PlanOptions& o) { o.foreign = {{640, 64}}; });
  refuses([](Program&, PlanOptions& o) { o.engine.alignment_bytes = 0; });
  refuses([](Program&, PlanOptions& o) { o.worth = {1}; });
  refuses([](Program&, PlanOptions& o) { o.sides = {SideHint::kLeft}; });
  refuses([](Program&, PlanOptions& o) { o.held_for = {kNone}; });
  refuses([](Program& p, PlanOptions& o) {
    o.held_for.assign(p.storage_bytes.size(), p.operation_count());
  });
  refuses([](Program& p, PlanOptions& o) { o.held_for.assign(p.storage_bytes.size(), -2); });
  refuses([](Program& p, PlanOptions& o) { o.worth.assign(p.storage_bytes.size(), -1); });
}

TEST(ProgramMistakesTest, AProgramWithoutOperationsReturnsItsInputs) {
  Program program;
  program.storage_bytes = {100};
  program.storage_outside = {0};
  program.inputs = {{.storage = 0, .where = Program::Where::kForeign, .offset = 128}};
  program.op_input_begin = program.op_output_begin = program.release_begin = {0};
  program.outputs = {0, 0};
  EXPECT_TRUE(Check(program, Options(Policy::Coop(), 256)));
  EXPECT_EQ(MakePlan(program, Options(Policy::Coop(), 256)).output_offsets[1], 128);
  Program empty;
  empty.op_input_begin = empty.op_output_begin = empty.release_begin = {0};
  EXPECT_TRUE(Check(empty, Options(Policy::Coop(), 0)));
}

INSTANTIATE_TEST_SUITE_P(Policies, ProgramTest, ::testing::ValuesIn(AllPolicies()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace coop::testing
