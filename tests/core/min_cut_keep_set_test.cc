// What is cheapest to keep, against all ways to choose it; minimum cuts, against all cuts.

#include "cc/core/planner/min_cut_keep_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "cc/core/planner/max_flow.h"
#include "tests/core/random_program.h"

namespace coop::testing {
namespace {

struct Arc {
  int32_t from;
  int32_t to;
  int64_t capacity;
};

int64_t CutCapacity(const std::vector<Arc>& arcs, uint32_t source_side) {
  int64_t capacity = 0;
  for (const Arc& arc : arcs) {
    if ((source_side >> arc.from & 1u) != 0 && (source_side >> arc.to & 1u) == 0) {
      capacity += arc.capacity;
    }
  }
  return capacity;
}

TEST(FlowNetworkTest, TheFlowIsTheLeastCut) {
  std::mt19937_64 generator(7);
  for (int round = 0; round < 400; ++round) {
    const auto nodes = static_cast<int32_t>(2 + generator() % 8);
    std::vector<Arc> arcs(generator() % 24);
    FlowNetwork network(nodes);
    for (Arc& arc : arcs) {
      arc.from = static_cast<int32_t>(generator() % static_cast<uint64_t>(nodes));
      arc.to = static_cast<int32_t>(generator() % static_cast<uint64_t>(nodes));
      arc.capacity = static_cast<int64_t>(generator() % 9);
      const int32_t edge = network.AddEdge(arc.from, arc.to, 0);
      network.SetCapacity(edge, arc.capacity);
    }
    int64_t least = std::numeric_limits<int64_t>::max();
    std::vector<uint32_t> least_sides;
    for (uint32_t side = 0; side < (1u << nodes); ++side) {
      if ((side & 3u) != 1u) continue;  // node 0 is the source, 1 the sink
      const int64_t capacity = CutCapacity(arcs, side);
      if (capacity < least) least_sides.clear();
      least = std::min(least, capacity);
      if (capacity == least) least_sides.push_back(side);
    }
    ASSERT_EQ(network.Maximize(0, 1), least) << "round " << round;
    uint32_t side = 0;
    for (int32_t node = 0; node < nodes; ++node) {
      if (network.IsOnSourceSide(node)) side |= 1u << node;
    }
    EXPECT_EQ(CutCapacity(arcs, side), least);
    for (const uint32_t other : least_sides) EXPECT_EQ(side & other, side) << "not the fewest";
  }
}

// A chain of `length` operations that all are read again in reverse order at the end.
Program ForthAndBack(int32_t length, int64_t bytes) {
  Program program;
  const auto add = [&](std::vector<int32_t> inputs, std::vector<int32_t> released) {
    const int32_t made = program.storage_count();
    program.storage_bytes.push_back(bytes);
    program.storage_outside.push_back(0);
    for (const int32_t input : inputs) program.op_inputs.push_back(input);
    program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
    program.op_outputs.push_back(made);
    program.op_output_begin.push_back(static_cast<int32_t>(program.op_outputs.size()));
    program.op_in_place.push_back(kNone);
    program.op_cost_seconds.push_back(1);
    program.op_recomputable.push_back(1);
    for (const int32_t storage : released) program.releases.push_back(storage);
    program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
    return made;
  };
  program.op_input_begin = program.op_output_begin = program.release_begin = {0};
  std::vector<int32_t> forth;
  for (int32_t i = 0; i < length; ++i) {
    forth.push_back(add(i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{forth.back()}, {}));
  }
  int32_t back = forth.back();
  for (int32_t i = length - 2; i >= 0; --i) {
    const int32_t read = forth[static_cast<size_t>(i)];
    back = add({back, read}, {back, read});
  }
  program.outputs = {back};
  return program;
}

TEST(KeepingTest, MostIsAliveBetweenForthAndBack) {
  const Program program = ForthAndBack(8, 64);
  EXPECT_EQ(FullestMoment(program), 8);
  EXPECT_EQ(FullestMoment(Program{}), 0);
}

TEST(KeepingTest, WhatFitsIsKept) {
  const Program program = ForthAndBack(8, 64);
  // Operation 8 reads two, makes one; six others wait.
  const std::vector<Keeping> found = CheapestToKeep(program, 8, {9 * 64, 8 * 64, 0});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].kept_bytes, 6 * 64);
  EXPECT_EQ(found[0].recompute_seconds, 0);
  EXPECT_EQ(std::count(found[0].kept.begin(), found[0].kept.end(), 1), 6);
  EXPECT_EQ(found[1].kept_bytes, 5 * 64);
  EXPECT_EQ(found[1].recompute_seconds, 1);
  EXPECT_EQ(found[2].kept_bytes, 0);  // not even the operation fits
  EXPECT_EQ(found[2].recompute_seconds, 6);
}

TEST(KeepingTest, OfEqualOnesTheFirstGo) {
  const Program program = ForthAndBack(8, 64);
  const Keeping found = CheapestToKeep(program, 8, {6 * 64}).front();
  EXPECT_EQ(found.kept_bytes, 3 * 64);
  EXPECT_EQ(std::vector<uint8_t>(found.kept.begin(), found.kept.begin() + 6),
            (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
}

// Two cheap values read later are made from a dear one, which is not, and is as large.
TEST(KeepingTest, WhatOthersAreMadeFromIsHeldForThem) {
  Program program;
  program.storage_bytes.assign(6, 64);
  program.storage_outside.assign(6, 0);
  //  0 dear; 1, 2 cheap; 3 in between; 4 reads 1; 5 reads 2
  program.op_input_begin = {0, 0, 1, 2, 2, 4, 6};
  program.op_inputs = {0, 0, 1, 3, 2, 4};
  program.op_output_begin = {0, 1, 2, 3, 4, 5, 6};
  program.op_outputs = {0, 1, 2, 3, 4, 5};
  program.op_in_place.assign(6, kNone);
  program.op_cost_seconds = {100, 1, 1, 1, 1, 1};
  program.op_recomputable.assign(6, 1);
  program.release_begin = {0, 0, 0, 1, 1, 3, 5};
  program.releases = {0, 1, 3, 2, 4};
  program.outputs = {5};
  const Keeping found = CheapestToKeep(program, 3, {2 * 64}).front();
  EXPECT_EQ(found.kept, (std::vector<uint8_t>{1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(found.held_for, (std::vector<int32_t>{5, kNone, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(found.recompute_seconds, 2);
}

// What is kept, and what it costs, for some operations that run again.
struct Choice {
  bool possible = true;
  int64_t kept_bytes = 0;
  double seconds = 0;
};

class Exhaustive {
 public:
  Exhaustive(const Program& program, int32_t moment) : program_(program), moment_(moment) {
    const size_t storages = program.storage_bytes.size();
    made_at_.assign(storages, kNone);
    until_.assign(storages, program.operation_count());
    for (int32_t i = 0; i < program.operation_count(); ++i) {
      for (int32_t k = program.op_output_begin[i]; k < program.op_output_begin[i + 1]; ++k) {
        made_at_[program.op_outputs[k]] = i;
      }
      for (int32_t k = program.release_begin[i]; k < program.release_begin[i + 1]; ++k) {
        until_[program.releases[k]] = i;
      }
    }
    for (const int32_t storage : program.outputs) until_[storage] = program.operation_count();
    for (int32_t k = program.op_input_begin[moment]; k < program.op_input_begin[moment + 1]; ++k) {
      here_.insert(program.op_inputs[k]);
    }
  }

  // Bytes and seconds if these operations run again and all that needs to be is kept.
  [[nodiscard]] Choice Of(uint32_t again) const {
    Choice choice;
    std::set<int32_t> needed;
    for (size_t s = 0; s < made_at_.size(); ++s) {
      if (made_at_[s] != kNone && made_at_[s] < moment_ && until_[s] > moment_) {
        needed.insert(static_cast<int32_t>(s));
      }
    }
    for (int32_t i = 0; i < moment_; ++i) {
      if ((again >> i & 1u) == 0) continue;
      if (program_.op_recomputable[i] == 0) choice.possible = false;
      choice.seconds += program_.op_cost_seconds[i];
      for (int32_t k = program_.op_input_begin[i]; k < program_.op_input_begin[i + 1]; ++k) {
        if (made_at_[program_.op_inputs[k]] != kNone) needed.insert(program_.op_inputs[k]);
      }
    }
    for (const int32_t storage : needed) {
      if (here_.contains(storage) || (again >> made_at_[storage] & 1u) != 0) continue;
      if (program_.storage_outside[storage] == 0) {
        choice.kept_bytes += program_.storage_bytes[storage];
      }
    }
    return choice;
  }

 private:
  const Program& program_;
  int32_t moment_;
  std::vector<int32_t> made_at_;
  std::vector<int32_t> until_;
  std::set<int32_t> here_;
};

TEST(KeepingTest, NothingThatTakesNoMoreIsCheaper) {
  ProgramShape shape;
  shape.operations = 14;
  shape.in_place = 0;
  int compared = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Program program = RandomProgram(seed, shape);
    const int32_t moment = std::min(FullestMoment(program), 11);
    const Exhaustive exhaustive(program, moment);
    for (int64_t bytes = 0; bytes < TotalRoundedBytes(program, 64); bytes += 448) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", bytes " << bytes);
      const Keeping found = CheapestToKeep(program, moment, {bytes}).front();
      double least = std::numeric_limits<double>::infinity();
      for (uint32_t again = 0; again < (1u << moment); ++again) {
        const Choice choice = exhaustive.Of(again);
        if (choice.possible && choice.kept_bytes <= found.kept_bytes) {
          least = std::min(least, choice.seconds);
        }
      }
      ASSERT_LT(least, std::numeric_limits<double>::infinity());
      EXPECT_GE(found.recompute_seconds, least * (1 - 1e-9));
      EXPECT_LE(found.recompute_seconds, least * 1.002);  // ties are broken by making some dearer
      compared += found.recompute_seconds > 0;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(KeepingTest, AMomentIsAnOperation) {
  const Program program = ForthAndBack(3, 64);
  EXPECT_THROW((void)CheapestToKeep(program, -1, {0}), std::invalid_argument);
  EXPECT_THROW((void)CheapestToKeep(program, program.operation_count(), {0}),
               std::invalid_argument);
}

}  // namespace
}  // namespace coop::testing
