// Plans around checkpoints: that they compute what the program does, whatever is kept, and that
// narrow cuts are found.

#include "cc/core/planner/checkpoint_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <random>
#include <stdexcept>
#include <vector>

#include "cc/core/planner/min_cut_keep_set.h"
#include "tests/core/named_policies.h"
#include "tests/core/random_program.h"

namespace coop::testing {
namespace {

constexpr int64_t kAlignmentBytes = 64;

PlanOptions Options(const Policy& policy, int64_t capacity_bytes) {
  PlanOptions options;
  options.engine.capacity_bytes = capacity_bytes;
  options.engine.alignment_bytes = kAlignmentBytes;
  options.engine.policy = policy;
  return options;
}

std::vector<uint8_t> RandomCheckpoints(uint64_t seed, const Program& program) {
  std::mt19937_64 generator(seed);
  const uint64_t of_ten = seed % 10;
  std::vector<uint8_t> checkpoints(program.storage_bytes.size());
  for (uint8_t& kept : checkpoints) kept = generator() % 10 < of_ten ? 1 : 0;
  return checkpoints;
}

TEST(CheckpointsTest, WhateverIsKeptPlansComputeWhatTheProgramDoes) {
  int feasible = 0;
  int planned = 0;
  int64_t recomputations = 0;
#if defined(COOP_CHECKED)
  constexpr uint64_t kStride = 7;  // validation takes most of the time; all remainders below come
#else
  constexpr uint64_t kStride = 1;
#endif
  for (uint64_t seed = 0; seed < 160 && !HasFailure(); seed += kStride) {
    ProgramShape shape;
    shape.operations = 10 + static_cast<int>(seed % 60);
    shape.in_place = seed % 2 == 0 ? 0.35 : 0.9;
    shape.same_bytes = seed % 2 == 0 ? 0.6 : 0.95;
    shape.unused_later = seed % 3 == 0 ? 0.9 : 0.4;
    const Program program = RandomProgram(seed, shape);
    const int64_t total_bytes = TotalRoundedBytes(program, kAlignmentBytes);
    for (const NamedPolicy& named : AllPolicies()) {
      for (const int percent : {30, 60, 100, 250}) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << percent << "%");
        PlanOptions options =
            Options(named.policy, total_bytes * percent / 100 / kAlignmentBytes * kAlignmentBytes);
        options.pin_outputs_early = seed % 2 == 0;
        options.checkpoints = RandomCheckpoints(seed, program);
        options.only_packed = seed % 5 == 0;
        if (seed % 3 == 1) options.worth.assign(program.storage_bytes.size(), 2.0);
        ++planned;
        try {
          const Plan plan = MakePlan(program, options);
          if (!plan.feasible) continue;
          ++feasible;
          recomputations += plan.stats.recomputations;
          CheckPlan(program, options, plan);
        } catch (const std::invalid_argument&) {  // foreign inputs that lie outside the pool
          --planned;
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    }
  }
  EXPECT_GT(feasible * 100, planned * 20);
  EXPECT_LT(feasible, planned);
  EXPECT_GT(recomputations, feasible);
}

// A program without operations.
Program Empty() {
  Program program;
  program.op_input_begin = program.op_output_begin = program.release_begin = {0};
  return program;
}

// Appends an operation of one second; returns what it makes.
int32_t Add(Program* program, const std::vector<int32_t>& inputs, int64_t bytes,
            const std::vector<int32_t>& released = {}) {
  const int32_t made = program->storage_count();
  program->storage_bytes.push_back(bytes);
  program->storage_outside.push_back(0);
  program->op_inputs.insert(program->op_inputs.end(), inputs.begin(), inputs.end());
  program->op_input_begin.push_back(static_cast<int32_t>(program->op_inputs.size()));
  program->op_outputs.push_back(made);
  program->op_output_begin.push_back(static_cast<int32_t>(program->op_outputs.size()));
  program->op_in_place.push_back(kNone);
  program->op_cost_seconds.push_back(1);
  program->op_recomputable.push_back(1);
  program->releases.insert(program->releases.end(), released.begin(), released.end());
  program->release_begin.push_back(static_cast<int32_t>(program->releases.size()));
  return made;
}

// Layers of three operations: the first makes much from what the layer before has made, the second
// much from that, the third little. Backwards, an operation for each layer reads all that its layer
// made and what came before. The last result is the program's.
Program Layers(int32_t layers, int64_t little, int64_t much) {
  Program program = Empty();
  int32_t last = Add(&program, {}, little);
  for (int32_t i = 0; i < layers; ++i) {
    const int32_t first = Add(&program, {last}, much);
    const int32_t second = Add(&program, {first}, much);
    last = Add(&program, {second}, little);
  }
  int32_t back = Add(&program, {last}, little, {last});
  for (int32_t i = layers; i-- > 0;) {
    const int32_t before = 3 * i;
    back = Add(&program, {back, before, before + 1, before + 2}, little,
               {back, before, before + 1, before + 2});
  }
  program.outputs = {back};
  return program;
}

// Two recurrent layers: a step makes much from its input and the state before, and of that the
// state after it; once all are made, each is made an input of the next layer, or at the end summed
// up. Backwards, for each step what it has read and made is read.
struct Recurrent {
  Program program = Empty();
  std::vector<std::vector<int32_t>> states;  // of each layer, the first one before its steps
};

Recurrent RecurrentLayers(int32_t steps, int64_t little, int64_t much) {
  Recurrent made;
  Program& program = made.program;
  std::vector<std::vector<int32_t>> read;  // by the way back, step by step
  std::vector<int32_t> inputs;
  for (int32_t t = 0; t < steps; ++t) inputs.push_back(Add(&program, {}, little));
  for (int32_t layer = 0; layer < 2; ++layer) {
    std::vector<int32_t> states = {Add(&program, {}, little)};
    for (const int32_t input : inputs) {
      const int32_t gates = Add(&program, {input, states.back()}, much);
      read.push_back({input, states.back(), gates});
      states.push_back(Add(&program, {gates}, little));
    }
    for (size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = Add(&program, {states[t + 1]}, little);
    }
    made.states.push_back(std::move(states));
  }
  int32_t back = Add(&program, inputs, little, inputs);
  for (size_t k = read.size(); k-- > 0;) {
    std::vector<int32_t> operands = read[k];
    operands.push_back(back);
    back = Add(&program, operands, little, {back, read[k][2]});
  }
  program.outputs = {back};
  return made;
}

TEST(CheckpointsTest, NarrowCutsAreBetweenLayers) {
  const Program program = Layers(8, 64, 1024);
  const int32_t moment = FullestMoment(program);
  for (const int32_t parts : {2, 4, 8}) {
    const std::vector<uint8_t> alive = AliveOverNarrowCuts(program, moment, parts);
    int32_t cuts = 0;
    for (int32_t s = 1; s < 3 * 8; ++s) {
      if (alive[static_cast<size_t>(s)] == 0) continue;
      // After the last cut everything is kept; before it what lies between layers.
      const bool after_the_last = std::all_of(alive.begin() + s, alive.begin() + 25,
                                              [](uint8_t kept) { return kept != 0; });
      if (after_the_last) break;
      EXPECT_EQ(s % 3, 0) << "storage " << s << " of " << parts << " parts";
      ++cuts;
    }
    ++cuts;  // the last one, which what follows is kept with
    EXPECT_GE(cuts, parts / 2);
    EXPECT_LE(cuts, parts);
  }
}

TEST(CheckpointsTest, EachOperationRunsOnceMoreWhereItsLayerIsRead) {
  const Program program = Layers(8, 64, 1024);
  PlanOptions options = Options(Policy::Lookahead(), 1 << 20);  // nothing else is short of memory
  const int32_t moment = FullestMoment(program);
  options.checkpoints = AliveOverNarrowCuts(program, moment, 8);
  const Plan plan = MakePlan(program, options);
  ASSERT_TRUE(plan.feasible);
  CheckPlan(program, options, plan);
  std::vector<int32_t> again;
  for (const Action& action : plan.actions) {
    if (action.kind == ActionKind::kRun && action.recompute) again.push_back(action.id);
  }
  EXPECT_EQ(static_cast<int64_t>(again.size()), plan.stats.recomputations);
  EXPECT_GE(again.size(), 10u);
  std::vector<int32_t> once = again;
  std::sort(once.begin(), once.end());
  EXPECT_EQ(std::unique(once.begin(), once.end()), once.end()) << "ran again twice";
  // Layers come back from the last to the first, operations within a layer in their order.
  for (size_t k = 1; k < again.size(); ++k) {
    const int32_t layer = (again[k] - 1) / 3;
    const int32_t layer_before = (again[k - 1] - 1) / 3;
    EXPECT_TRUE(layer < layer_before || (layer == layer_before && again[k] > again[k - 1]));
  }
  PlanOptions lazily = options;
  lazily.checkpoints.clear();
  EXPECT_LT(plan.peak_bytes, MakePlan(program, lazily).peak_bytes / 2);
}

TEST(CheckpointsTest, MoreThanMayBeRecomputedIsNoPlan) {
  const Program program = Layers(8, 64, 1024);
  PlanOptions options = Options(Policy::Lookahead(), 1 << 20);
  options.checkpoints.assign(program.storage_bytes.size(), 0);
  const Plan plan = MakePlan(program, options);
  ASSERT_TRUE(plan.feasible);
  ASSERT_GT(plan.stats.recomputations, 1);
  options.max_recomputations = plan.stats.recomputations + 1;
  EXPECT_TRUE(MakePlan(program, options).feasible);
  options.max_recomputations = plan.stats.recomputations - 1;
  EXPECT_EQ(MakePlan(program, options).failure.reason, FailureReason::kThrashing);
  options.max_recomputations = 0;
  options.max_recompute_seconds = plan.stats.recompute_seconds / 2;
  EXPECT_FALSE(MakePlan(program, options).feasible);
  options.checkpoints.pop_back();
  EXPECT_THROW(static_cast<void>(MakePlan(program, options)), std::invalid_argument);
}

// An input that a first run may write over is not written over elsewhere: where it ends up would
// change from step to step.
TEST(CheckpointsTest, WhatOverwritesAnInputIsNotMadeAgain) {
  Program program = Layers(2, 64, 1024);
  program.storage_bytes.push_back(64);
  program.storage_outside.push_back(0);
  const int32_t input = program.storage_count() - 1;
  program.inputs = {{.storage = input, .where = Program::Where::kAdopt, .donated = true}};
  // The first operation takes it over, and is then to run again.
  program.op_inputs.insert(program.op_inputs.begin(), input);
  for (size_t i = 1; i < program.op_input_begin.size(); ++i) ++program.op_input_begin[i];
  program.op_in_place[0] = 0;
  program.releases.insert(program.releases.begin(), input);
  for (size_t i = 1; i < program.release_begin.size(); ++i) ++program.release_begin[i];
  PlanOptions options = Options(Policy::Lookahead(), 1 << 20);
  ASSERT_TRUE(MakePlan(program, options).feasible);
  options.checkpoints.assign(program.storage_bytes.size(), 0);
  EXPECT_FALSE(MakePlan(program, options).feasible);
  options.checkpoints[0] = 1;
  const Plan plan = MakePlan(program, options);
  ASSERT_TRUE(plan.feasible);
  CheckPlan(program, options, plan);
}

TEST(CheckpointsTest, OfEquallyNarrowCutsTheFirstOrTheLastIsTaken) {
  const Program program = Layers(8, 64, 64);  // each place is as narrow as the next
  const int32_t moment = FullestMoment(program);
  const auto first = AliveOverNarrowCuts(program, moment, 4, Cut::kFirst);
  const auto last = AliveOverNarrowCuts(program, moment, 4, Cut::kLast);
  EXPECT_NE(first, last);
  EXPECT_LT(std::find(first.begin(), first.end(), 1), first.end());
  EXPECT_LT(std::find(last.begin(), last.end(), 1), last.end());
}

TEST(CheckpointsTest, ARecurrentLayerIsDividedByItsState) {
  const auto [program, states] = RecurrentLayers(32, 1024, 4096);
  const std::vector<Checkpoints> ways = CheckpointsAtCuts(program, {16});
  ASSERT_EQ(ways.size(), 2u);
  const auto kept_of = [&](const Checkpoints& way, size_t layer) {
    return std::count_if(states[layer].begin(), states[layer].end(),
                         [&](int32_t s) { return way.kept[static_cast<size_t>(s)] != 0; });
  };
  // Nearly all of them are alive over a cut, until the next layer's inputs are made. To make a part
  // again takes the one that it begins with.
  EXPECT_GE(kept_of(ways[0], 0), 28);
  EXPECT_LE(kept_of(ways[1], 0), 16);
  EXPECT_GE(kept_of(ways[1], 0), 4);
  EXPECT_LT(ways[1].pool_bytes, ways[0].pool_bytes);
  // Each is made again from what its own part makes again: nothing else runs besides.
  EXPECT_LE(ways[1].recompute_seconds - ways[0].recompute_seconds, 33 + 33);
}

TEST(CheckpointsTest, WhatIsKeptAtCutsOfRandomPrograms) {
  int fewer = 0;
  int planned = 0;
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    ProgramShape shape;
    shape.operations = 20 + static_cast<int>(seed % 60);
    shape.unused_later = seed % 3 == 0 ? 0.9 : 0.4;
    const Program program = RandomProgram(seed, shape);
    const std::vector<int32_t> parts = {2, 4, 8};
    const std::vector<Checkpoints> ways =
        CheckpointsAtCuts(program, parts, seed % 2 == 0 ? Cut::kFirst : Cut::kLast);
    ASSERT_EQ(ways.size(), 2 * parts.size());
    for (size_t k = 0; k < ways.size(); ++k) {
      if (k % 2 == 1) {
        fewer += ways[k].kept != ways[k - 1].kept;
        for (size_t s = 0; s < ways[k].kept.size(); ++s) {
          EXPECT_LE(ways[k].kept[s], ways[k - 1].kept[s]);
        }
      }
      PlanOptions options = Options(Policy::Lookahead(), ways[k].pool_bytes * 3 / 2 + 4096);
      options.checkpoints = ways[k].kept;
      try {
        const Plan plan = MakePlan(program, options);
        if (!plan.feasible) continue;
        ++planned;
        CheckPlan(program, options, plan);
      } catch (const std::invalid_argument&) {  // foreign inputs that lie outside the pool
      }
    }
  }
  EXPECT_GT(fewer, 20);
  EXPECT_GT(planned, 100);
}

TEST(CheckpointsTest, WhatIsKeptAtLeastAndAtMost) {
  const Program program = Layers(8, 64, 1024);
  const int32_t moment = FullestMoment(program);
  const std::vector<uint8_t> anyway = AliveOverNarrowCuts(program, moment, 8);
  const auto most = CheckpointsWithin(program, 1 << 20, {0.5, 0.0}, 8);
  const auto least = CheckpointsWithin(program, 0, {0.5}, 8);
  ASSERT_EQ(most.size(), 3u);
  ASSERT_EQ(least.size(), 2u);
  EXPECT_EQ(most[0].recompute_seconds, 0);
  EXPECT_GT(most[1].recompute_seconds, 0);
  EXPECT_EQ(most[2].kept, least[0].kept);
  EXPECT_EQ(least[1].kept, least[0].kept);
  EXPECT_GT(most[1].pool_bytes, least[0].pool_bytes);
  EXPECT_LT(most[1].pool_bytes, most[0].pool_bytes);
  for (size_t s = 0; s < 20; ++s) {
    EXPECT_GE(least[0].kept[s], anyway[s]);
    EXPECT_GE(most[1].kept[s], least[0].kept[s]);
    EXPECT_GE(most[0].kept[s], most[1].kept[s]);
  }
}

TEST(CheckpointsTest, WhatFitsIsPlannedWithoutEvictingAnythingElse) {
  const Program program = Layers(12, 64, 1024);
  int recomputing = 0;
  for (int64_t bytes = 4096; bytes <= 24 * 1024; bytes += 64) {
    const Checkpoints found = CheckpointsWithin(program, bytes, {}, 12).front();
    PlanOptions options = Options(Policy::Lookahead(), bytes);
    options.checkpoints = found.kept;
    options.only_packed = true;
    const Plan plan = MakePlan(program, options);
    EXPECT_FALSE(plan.feasible && found.pool_bytes > bytes) << bytes;
    if (!plan.feasible) continue;
    CheckPlan(program, options, plan);
    EXPECT_EQ(plan.stats.searches, 0) << bytes;
    EXPECT_DOUBLE_EQ(plan.stats.recompute_seconds, found.recompute_seconds) << bytes;
    recomputing += plan.stats.recomputations > 0;
  }
  EXPECT_GT(recomputing, 100);
}

TEST(CheckpointsTest, WhatOnlyLaterOperationsReadIsMadeThen) {
  // The second operation of each layer makes what only the way back reads.
  Program program = Layers(6, 64, 1024);
  for (int32_t layer = 0; layer < 6; ++layer) {
    const int32_t third = 3 + 3 * layer;
    program.op_inputs[static_cast<size_t>(program.op_input_begin[static_cast<size_t>(third)])] =
        third - 2;
  }
  PlanOptions options = Options(Policy::Lookahead(), 1 << 20);
  options.checkpoints.assign(program.storage_bytes.size(), 1);
  for (size_t layer = 0; layer < 6; ++layer) options.checkpoints[2 + 3 * layer] = 0;
  const Plan plan = MakePlan(program, options);
  ASSERT_TRUE(plan.feasible);
  CheckPlan(program, options, plan);
  EXPECT_EQ(plan.stats.recomputations, 0);
  const Plan all_at_once = MakePlan(program, Options(Policy::Lookahead(), 1 << 20));
  EXPECT_LT(plan.peak_bytes, all_at_once.peak_bytes - 4 * 1024);
  // What has run early because somebody wants it there is made again.
  options.checkpoints[1] = 0;
  options.checkpoints[2] = 1;
  const Plan early = MakePlan(program, options);
  ASSERT_TRUE(early.feasible);
  CheckPlan(program, options, early);
  EXPECT_EQ(early.stats.recomputations, 1);
}

TEST(CheckpointsTest, AnOperationThatRunsOnceMoreMakesAllThatIsReadLater) {
  // Operation 0 makes two values: 1 and 2 read the first, 3 the second.
  Program program;
  program.storage_bytes = {64, 64, 1024, 64, 64};
  program.storage_outside.assign(5, 0);
  program.op_input_begin = {0, 0, 1, 2, 4};
  program.op_inputs = {0, 0, 3, 1};
  program.op_output_begin = {0, 2, 3, 4, 5};
  program.op_outputs = {0, 1, 2, 3, 4};
  program.op_in_place.assign(5, kNone);
  program.op_cost_seconds.assign(4, 1.0);
  program.op_recomputable.assign(4, 1);
  program.release_begin = {0, 0, 1, 2, 4};
  program.releases = {2, 0, 3, 1};
  program.outputs = {4};
  PlanOptions options = Options(Policy::Lookahead(), 1 << 20);
  options.checkpoints.assign(5, 0);
  ASSERT_EQ(FullestMoment(program), 1);
  const Plan plan = MakePlan(program, options);
  ASSERT_TRUE(plan.feasible);
  CheckPlan(program, options, plan);
  EXPECT_EQ(plan.stats.recomputations, 1);
}

}  // namespace
}  // namespace coop::testing
