// The simulator without addresses: its rules, one by one, on programs small enough to do by hand.
// That whole logs come out as in the authors' simulator is tested from Python.

#include <gtest/gtest.h>

#include <initializer_list>
#include <random>
#include <stdexcept>
#include <vector>

#include "cc/baselines/dtr/simulator.h"

namespace coop::testing {
namespace {

using Status = FungibleStatus;

// Builds programs; operations are scheduled as they are added.
class Builder {
 public:
  Builder() : program_{{}, {0}, {}, {0}, {}, {}, {}, {}} {}

  // Returns the tensor.
  int32_t Run(int64_t cost_ns, std::initializer_list<int32_t> args, int64_t bytes,
              int32_t alias = kNone) {
    return Runs(cost_ns, std::vector<int32_t>(args), {{bytes, alias}});
  }
  struct Result {
    int64_t bytes;
    int32_t alias;
  };
  int32_t Runs(int64_t cost_ns, const std::vector<int32_t>& args,
               const std::vector<Result>& results) {
    const int32_t first = program_.tensor_count();
    Step(FungibleStep::kRun, program_.operation_count());
    program_.op_cost_ns.push_back(cost_ns);
    program_.op_args.insert(program_.op_args.end(), args.begin(), args.end());
    program_.op_arg_begin.push_back(static_cast<int32_t>(program_.op_args.size()));
    for (const Result& result : results) {
      program_.result_bytes.push_back(result.bytes);
      program_.result_alias.push_back(result.alias);
    }
    program_.op_result_begin.push_back(program_.tensor_count());
    return first;
  }
  int32_t Constant(int64_t bytes) {
    const int32_t tensor = Run(0, {}, bytes);
    Step(FungibleStep::kPin, tensor);
    return tensor;
  }
  void Step(FungibleStep kind, int32_t id) {
    program_.step_kinds.push_back(static_cast<uint8_t>(kind));
    program_.step_ids.push_back(id);
  }
  void Release(int32_t tensor) { Step(FungibleStep::kRelease, tensor); }
  void Pin(int32_t tensor) { Step(FungibleStep::kPin, tensor); }

  FungibleResult Simulate(FungibleHeuristic heuristic, int64_t budget_bytes = -1,
                          int64_t recompute_limit_ns = -1, bool release_pinned = false) const {
    return SimulateFungible(program_,
                            {heuristic, budget_bytes, recompute_limit_ns, release_pinned});
  }
  FungibleProgram& program() { return program_; }

 private:
  FungibleProgram program_;
};

constexpr FungibleHeuristic kAll[] = {FungibleHeuristic::kDtr,   FungibleHeuristic::kUnionFind,
                                      FungibleHeuristic::kLocal, FungibleHeuristic::kLru,
                                      FungibleHeuristic::kSize,  FungibleHeuristic::kMsps};

TEST(FungibleTest, WithoutABudgetEverythingRunsOnce) {
  Builder b;
  const int32_t x = b.Constant(10);
  const int32_t y = b.Run(5, {x}, 20);
  const int32_t z = b.Run(7, {y}, 30);
  b.Release(y);
  b.Pin(z);
  const FungibleResult result = b.Simulate(FungibleHeuristic::kDtr);
  EXPECT_EQ(result.status, Status::kOk);
  EXPECT_EQ(result.clock_ns, 13);  // it begins at 1
  EXPECT_EQ(result.compute_ns, 12);
  EXPECT_EQ(result.recompute_ns, 0);
  EXPECT_EQ(result.peak_bytes, 60);
  EXPECT_EQ(result.operations, 3);
}

TEST(FungibleTest, ConstantsStayUnlessPinnedOnesAreReleased) {
  Builder b;
  const int32_t x = b.Constant(100);
  const int32_t y = b.Run(1, {x}, 10);
  b.Release(x);
  b.Run(1, {y}, 50);
  EXPECT_EQ(b.Simulate(FungibleHeuristic::kLru).peak_bytes, 160);
  EXPECT_EQ(b.Simulate(FungibleHeuristic::kLru, -1, -1, true).peak_bytes, 110);
}

TEST(FungibleTest, TheLeastScoreGoesAndOfEqualOnesTheLast) {
  // Two equal values and a large one; room for one more is made when the fourth comes.
  const auto recompute = [](int64_t first_bytes, int64_t second_bytes, bool use_first) {
    Builder b;
    const int32_t x = b.Constant(1);
    const int32_t first = b.Run(3, {x}, first_bytes);
    const int32_t second = b.Run(3, {x}, second_bytes);
    b.Run(1, {x}, 10);
    b.Run(1, {use_first ? first : second}, 1);
    return b.Simulate(FungibleHeuristic::kSize, 1 + 11 + first_bytes + second_bytes - 10)
        .recompute_ns;
  };
  EXPECT_EQ(recompute(10, 20, true), 0);
  EXPECT_EQ(recompute(20, 10, true), 3);
  EXPECT_EQ(recompute(10, 10, true), 0);
  EXPECT_EQ(recompute(10, 10, false), 3);
}

TEST(FungibleTest, AnAliasDiesWithItsStorageAndComesBackByItself) {
  Builder b;
  const int32_t x = b.Constant(1);
  const int32_t y = b.Run(10, {x}, 50);
  const int32_t view = b.Run(4, {y}, 0, 0);
  const int32_t big = b.Run(1, {x}, 60);  // evicts y and its view
  b.Release(big);
  b.Run(1, {y}, 1);  // y alone comes back
  b.Run(1, {view}, 1);
  const FungibleResult result = b.Simulate(FungibleHeuristic::kDtr, 65);
  EXPECT_EQ(result.status, Status::kOk);
  EXPECT_EQ(result.evictions, 1);
  EXPECT_EQ(result.recomputations, 2);
  EXPECT_EQ(result.recompute_ns, 14);
}

TEST(FungibleTest, WhatIsMadeTwiceIsCountedWhileItIsMade) {
  Builder b;
  const int32_t x = b.Constant(1);
  const int32_t pair = b.Runs(10, {x}, {{10, kNone}, {40, kNone}});
  b.Run(1, {pair}, 1);      // used later than the other: of 40 bytes, which goes
  b.Run(1, {pair}, 40);     // pair[1] goes
  b.Release(4);             // and the 40 bytes
  b.Run(1, {pair + 1}, 1);  // both are made; the second pair[0] goes
  const FungibleResult result = b.Simulate(FungibleHeuristic::kSize, 1 + 10 + 1 + 40 + 10 + 1);
  EXPECT_EQ(result.status, Status::kOk);
  EXPECT_EQ(result.recompute_ns, 10);
  EXPECT_EQ(result.peak_bytes, 1 + 10 + 1 + 50);
}

TEST(FungibleTest, FailuresSayWhich) {
  Builder b;
  const int32_t x = b.Constant(10);
  std::vector<int32_t> chain = {x};
  for (int i = 0; i < 20; ++i) chain.push_back(b.Run(10, {chain.back()}, 10));
  for (int i = 19; i > 0; --i) b.Run(10, {chain[static_cast<size_t>(i)]}, 0);
  for (const FungibleHeuristic heuristic : kAll) {
    EXPECT_EQ(b.Simulate(heuristic, 29).status, Status::kOutOfMemory);
    EXPECT_EQ(b.Simulate(heuristic, 50, 0).status, Status::kThrashing);
    const FungibleResult result = b.Simulate(heuristic, 120);
    EXPECT_EQ(result.status, Status::kOk);
    EXPECT_GT(result.recompute_ns, 0);
    EXPECT_LE(result.peak_bytes, 120);
    EXPECT_EQ(result.clock_ns, 1 + result.compute_ns + result.recompute_ns);
  }
}

TEST(FungibleTest, DeepChainsComeBackWithoutRecursion) {
  Builder b;
  const int32_t x = b.Constant(1);
  std::vector<int32_t> chain = {x};
  constexpr int kDepth = 20000;
  for (int i = 0; i < kDepth; ++i) chain.push_back(b.Run(1, {chain.back()}, 1));
  for (int i = 1; i < kDepth; ++i) b.Release(chain[static_cast<size_t>(i)]);
  const int32_t big = b.Run(1, {x}, 1);
  b.Release(chain.back());
  b.Run(1, {chain.back(), big}, 1);
  const FungibleResult result = b.Simulate(FungibleHeuristic::kLru, 10);
  EXPECT_EQ(result.status, Status::kOk);
  EXPECT_GE(result.recomputations, kDepth);
}

TEST(FungibleTest, RandomProgramsStayWithinTheirBudgets) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
    };
    Builder b;
    b.Constant(4);
    std::vector<int32_t> live = {0};
    for (int i = 0; i < 80; ++i) {
      std::vector<int32_t> args;
      for (int k = 0; k <= below(3); ++k)
        args.push_back(live[static_cast<size_t>(below(static_cast<int>(live.size())))]);
      std::vector<Builder::Result> results;
      for (int k = 0; k <= below(2); ++k) {
        const bool alias = below(4) == 0;
        results.push_back(alias ? Builder::Result{0, below(static_cast<int>(args.size()))}
                                : Builder::Result{1 + below(16), kNone});
      }
      const int32_t first = b.Runs(1 + below(20), args, results);
      for (size_t k = 0; k < results.size(); ++k) live.push_back(first + static_cast<int32_t>(k));
      if (live.size() > 8) {
        const auto at = live.begin() + 1 + below(static_cast<int>(live.size()) - 1);
        b.Release(*at);
        live.erase(at);
      }
    }
    for (const int32_t tensor : live) b.Pin(tensor);
    const int64_t peak = b.Simulate(FungibleHeuristic::kLru).peak_bytes;
    for (const FungibleHeuristic heuristic : kAll) {
      const int64_t budget = peak * 7 / 10;
      const FungibleResult result = b.Simulate(heuristic, budget, 100000);
      EXPECT_LE(result.peak_bytes, budget);
      EXPECT_EQ(result.clock_ns, 1 + result.compute_ns + result.recompute_ns);
      const FungibleResult again = b.Simulate(heuristic, budget, 100000);
      EXPECT_EQ(result.clock_ns, again.clock_ns);
      EXPECT_EQ(result.evictions, again.evictions);
    }
  }
}

TEST(FungibleTest, MalformedProgramsAreRefused) {
  const auto refused = [](auto change) {
    Builder b;
    const int32_t x = b.Constant(4);
    b.Run(1, {x}, 4);
    change(b.program());
    EXPECT_THROW((void)b.Simulate(FungibleHeuristic::kDtr), std::invalid_argument);
  };
  refused([](FungibleProgram& p) { p.op_cost_ns[1] = -1; });
  refused([](FungibleProgram& p) { p.op_cost_ns[1] = int64_t{1} << 62; });
  refused([](FungibleProgram& p) { p.result_bytes[1] = -1; });
  refused([](FungibleProgram& p) { p.op_args[0] = 1; });  // its own result
  refused([](FungibleProgram& p) { p.op_args[0] = -1; });
  refused([](FungibleProgram& p) { p.result_alias[1] = 1; });
  refused([](FungibleProgram& p) { p.result_alias[1] = 0; });  // an alias of 4 bytes
  refused([](FungibleProgram& p) { p.op_arg_begin[1] = 7; });
  refused([](FungibleProgram& p) { p.op_result_begin[2] = 1; });
  refused([](FungibleProgram& p) { p.step_ids[0] = 1; });
  refused([](FungibleProgram& p) { p.step_ids[1] = 1; });  // pinned before it exists
  refused([](FungibleProgram& p) { p.step_kinds[2] = 9; });
  refused([](FungibleProgram& p) { p.step_ids.pop_back(); });
  refused([](FungibleProgram& p) {
    for (int i = 0; i < 2; ++i) {
      p.step_kinds.push_back(static_cast<uint8_t>(FungibleStep::kRelease));
      p.step_ids.push_back(1);
    }
  });
}

}  // namespace
}  // namespace coop::testing
