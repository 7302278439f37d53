// Projected costs against searches of the graph that share no code with the engine.

#include "cc/core/engine/neighborhood.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/core/checked_engine.h"
#include "tests/core/shadow.h"

namespace coop::testing {
namespace {

constexpr int64_t kUnlimitedBytes = int64_t{1} << 40;

EngineOptions Options(const Policy& policy, int64_t capacity_bytes) {
  EngineOptions options;
  options.capacity_bytes = capacity_bytes;
  options.alignment_bytes = 64;
  options.policy = policy;
  return options;
}

// The graph of what may still be replayed, as the caller sees it.
class GraphOracle {
 public:
  explicit GraphOracle(const CheckedEngine& checked) : engine_(checked.engine()) {
    for (const auto& [op, recipe] : checked.recipes()) {
      costs_[op] = recipe.cost_seconds;
      for (const StorageId input : recipe.inputs) {
        inputs_[op].insert(input);
        consumers_[input].insert(op);
      }
      std::vector<StorageId> outputs;
      engine_.OutputsOf(op, &outputs);
      for (const StorageId output : outputs) {
        if (output == kNone) continue;
        outputs_[op].insert(output);
        producer_[output] = op;
      }
    }
  }

  // Own cost, and that of the distinct evicted operations above and below (e* of DTR).
  double Exact(StorageId storage) {
    return Around(storage, [](OperationId) { return true; });
  }
  // Of those below none.
  double Ancestors(StorageId storage) {
    return Around(storage, [](OperationId) { return false; });
  }
  // Of those below the ones that something held waits for.
  double Awaited(StorageId storage) {
    return Around(storage, [this](OperationId op) { return HasMissing(op); });
  }

  // Own cost, and that of all evicted storages connected to it in any direction.
  double Connected(StorageId storage) {
    std::set<StorageId> seen;
    std::vector<StorageId> stack = {storage};
    double cost = costs_[producer_.at(storage)];
    while (!stack.empty()) {
      const StorageId from = stack.back();
      stack.pop_back();
      for (const StorageId neighbor : Neighbors(from)) {
        if (!Evicted(neighbor) || !seen.insert(neighbor).second) continue;
        cost += costs_[producer_.at(neighbor)];
        stack.push_back(neighbor);
      }
    }
    return cost;
  }

 private:
  template <typename Counts>
  double Around(StorageId storage, Counts counts) {
    const OperationId own = producer_.at(storage);
    std::set<OperationId> around;
    std::vector<StorageId> stack = {storage};
    while (!stack.empty()) {
      const auto producer = producer_.find(stack.back());
      stack.pop_back();
      if (producer == producer_.end()) continue;
      for (const StorageId input : inputs_[producer->second]) {
        if (!Evicted(input)) continue;
        around.insert(producer_.at(input));
        stack.push_back(input);
      }
    }
    stack = {storage};
    while (!stack.empty()) {
      const StorageId from = stack.back();
      stack.pop_back();
      for (const OperationId consumer : consumers_[from]) {
        if (!counts(consumer)) continue;
        for (const StorageId output : outputs_[consumer]) {
          if (!Evicted(output)) continue;
          around.insert(consumer);
          stack.push_back(output);
        }
      }
    }
    double cost = costs_[own];
    for (const OperationId op : around) cost += costs_[op];
    return cost;
  }

  // It has an evicted output that is held, or that an operation of this kind reads.
  bool HasMissing(OperationId op) {
    for (const StorageId output : outputs_[op]) {
      if (!Evicted(output)) continue;
      if (engine_.RefsOf(output) > 0) return true;
      for (const OperationId consumer : consumers_[output]) {
        if (HasMissing(consumer)) return true;
      }
    }
    return false;
  }
  bool Evicted(StorageId s) const { return engine_.StateOf(s) == StorageState::kEvicted; }
  std::set<StorageId> Neighbors(StorageId s) {
    std::set<StorageId> neighbors;
    if (producer_.contains(s)) neighbors = inputs_[producer_[s]];
    for (const OperationId consumer : consumers_[s]) {
      neighbors.insert(outputs_[consumer].begin(), outputs_[consumer].end());
    }
    return neighbors;
  }

  const Engine& engine_;
  std::map<OperationId, double> costs_;
  std::map<OperationId, std::set<StorageId>> inputs_, outputs_;
  std::map<StorageId, std::set<OperationId>> consumers_;
  std::map<StorageId, OperationId> producer_;
};

std::vector<StorageId> Evictable(const CheckedEngine& checked) {
  std::vector<StorageId> evictable;
  for (const auto& [storage, known] : checked.held()) {
    if (checked.engine().IsEvictable(storage)) evictable.push_back(storage);
  }
  return evictable;
}

void ExpectNear(double actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-9 * std::max(std::abs(expected), 1e-6));
}

// Every kind of call, so that components have been merged, left, and joined again.
TEST(NeighborhoodTest, WalkedCostsAreThoseOfTheEvictedAncestorsAndDescendants) {
  double largest = 0;
  int in_between = 0;
  for (uint64_t seed = 0; seed < 30 && !HasFailure(); ++seed) {
    ShadowOptions options;
    options.engine = Options(seed % 2 == 0 ? Policy::Coop() : Policy::Dtr(), 40 * 64);
    options.max_held = 30;
    Shadow shadow(seed, options);
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      shadow.Step();
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", step " << step);
      GraphOracle oracle(shadow.checked());
      const Engine& engine = shadow.checked().engine();
      for (const StorageId s : Evictable(shadow.checked())) {
        const double exact = engine.ProjectedCost(s, NeighborhoodMode::kExact);
        ExpectNear(exact, oracle.Exact(s));
        const double ancestors = engine.ProjectedCost(s, NeighborhoodMode::kAncestors);
        const double awaited = engine.ProjectedCost(s, NeighborhoodMode::kAwaited);
        ExpectNear(ancestors, oracle.Ancestors(s));
        ExpectNear(awaited, oracle.Awaited(s));
        in_between += ancestors < awaited && awaited < exact ? 1 : 0;
        const double fast = engine.ProjectedCost(s, NeighborhoodMode::kUnionFind);
        EXPECT_TRUE(std::isfinite(fast));
        EXPECT_GE(fast, exact);
        largest = std::max(largest, fast / std::max(exact, 1e-9));
      }
    }
  }
  EXPECT_GT(in_between, 0);
  EXPECT_GT(largest, 1.0);  // the two do differ somewhere: they are not one implementation
}

// An operation reads only what is resident, so nothing ever comes back.
TEST(NeighborhoodTest, UnionFindIsTheConnectedComponentsWhileNothingComesBack) {
  for (uint64_t seed = 0; seed < 25 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    CheckedEngine checked(Options(Policy::Dtr(), 14 * 64));
    for (int op = 0; op < 60; ++op) {
      std::vector<StorageId> inputs;
      for (const auto& [storage, known] : checked.held()) {
        const bool resident = checked.engine().StateOf(storage) == StorageState::kResident;
        if (resident && inputs.size() < 3 && random() % 3 == 0) inputs.push_back(storage);
      }
      const OutputSpec spec{.bytes = static_cast<int64_t>(1 + random() % 128)};
      const double cost_seconds = 1e-6 * static_cast<double>(1 + random() % 40);
      if (!checked.Submit(inputs, std::span(&spec, 1), cost_seconds)) continue;
      checked.Check();
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", operation " << op);
      GraphOracle oracle(checked);
      for (const StorageId s : Evictable(checked)) {
        ExpectNear(checked.engine().ProjectedCost(s), oracle.Connected(s));
        ExpectNear(checked.engine().ProjectedCost(s, NeighborhoodMode::kExact), oracle.Exact(s));
      }
    }
    EXPECT_EQ(checked.counters().recomputations, 0);
    EXPECT_GT(checked.counters().evictions, 10);
  }
}

// In a chain every evicted neighbour is an ancestor or a descendant.
TEST(NeighborhoodTest, UnionFindEqualsExactOnAChain) {
  for (uint64_t seed = 0; seed < 25 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    CheckedEngine checked(Options(Policy::Dte(), 12 * 64));
    std::vector<StorageId> last;
    for (int op = 0; op < 60; ++op) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", operation " << op);
      const OutputSpec spec{.bytes = 64};
      const double cost_seconds = 1e-6 * static_cast<double>(random() % 40);
      const auto outputs = checked.Submit(last, std::span(&spec, 1), cost_seconds);
      ASSERT_TRUE(outputs.has_value());
      last = *outputs;
      for (const StorageId s : Evictable(checked)) {
        const double exact = checked.engine().ProjectedCost(s, NeighborhoodMode::kExact);
        EXPECT_DOUBLE_EQ(checked.engine().ProjectedCost(s), exact);
      }
    }
    EXPECT_GT(checked.counters().evictions, 40);
  }
}

// With an old node kept, the cost would grow with every round.
TEST(NeighborhoodTest, ARestoredStorageLeavesItsComponentAndComesBackAsAFreshOne) {
  CheckedEngine checked(Options(Policy::Coop(), kUnlimitedBytes));
  std::vector<StorageId> chain;
  std::vector<StorageId> last;
  for (int op = 0; op < 8; ++op) {
    const OutputSpec spec{.bytes = 64};
    last = checked.Submit(last, std::span(&spec, 1), 1e-3).value();
    chain.push_back(last[0]);
  }
  for (int round = 0; round < 3000; ++round) {
    checked.EvictAll();
    ASSERT_TRUE(checked.Materialize(chain[3]));  // brings back 0 to 3 as well; 4 to 7 are evicted
    ASSERT_NEAR(checked.engine().ProjectedCost(chain[3]), 5e-3, 1e-9) << "round " << round;
    ASSERT_NEAR(checked.engine().ProjectedCost(chain[1]), 1e-3, 1e-9) << "round " << round;
  }
  checked.Check();
  ASSERT_TRUE(checked.Materialize(chain[7]));
  for (const StorageId s : chain) EXPECT_EQ(checked.engine().ProjectedCost(s), 1e-3);
}

// Restored and evicted again one at a time, while something else stays evicted: nodes of the past
// must not add up, in cost or in number.
TEST(NeighborhoodTest, CostsStayBoundedWhileSomethingIsAlwaysEvicted) {
  CheckedEngine checked(Options(Policy::Coop(), 6 * 64));
  std::vector<StorageId> chain;
  std::vector<StorageId> last;
  for (int op = 0; op < 12; ++op) {
    const OutputSpec spec{.bytes = 64};
    last = checked.Submit(last, std::span(&spec, 1), 1e-3).value();
    chain.push_back(last[0]);
  }
  std::mt19937_64 random(3);
  for (int round = 0; round < 4000; ++round) {
    ASSERT_TRUE(checked.Materialize(chain[random() % chain.size()]));
    for (const StorageId s : Evictable(checked)) {
      const double fast = checked.engine().ProjectedCost(s);
      ASSERT_GE(fast, checked.engine().ProjectedCost(s, NeighborhoodMode::kExact));
      ASSERT_LE(fast, 12.5e-3) << "round " << round;
    }
  }
  checked.Check();
}

TEST(NeighborhoodTest, BrokenCostsNeverMakeScoresUndefined) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double costs[] = {0,         1e-6,  -1,     infinity,
                          -infinity, 1e300, 5e-324, std::numeric_limits<double>::quiet_NaN()};
  for (const Policy& policy : {Policy::Coop(), Policy::Dtr(), Policy::Dte()}) {
    std::mt19937_64 random(11);
    CheckedEngine checked(Options(policy, 12 * 64));
    for (int op = 0; op < 300; ++op) {
      std::vector<StorageId> inputs;
      for (const auto& [storage, known] : checked.held()) {
        if (inputs.size() < 2 && random() % 8 == 0) inputs.push_back(storage);
      }
      const OutputSpec spec{.bytes = static_cast<int64_t>(1 + random() % 128)};
      checked.Submit(inputs, std::span(&spec, 1), costs[random() % std::size(costs)]);
      if (checked.held().size() > 30) checked.Release(checked.held().begin()->first);
      checked.Check();
      for (const StorageId s : Evictable(checked)) {
        ASSERT_TRUE(std::isfinite(checked.engine().ProjectedCost(s)));
        ASSERT_GE(checked.engine().ProjectedCost(s), 0);
        ASSERT_TRUE(std::isfinite(checked.engine().ScoreOf(s)));
        ASSERT_GE(checked.engine().ScoreOf(s), 0);
      }
    }
    EXPECT_GT(checked.counters().evictions, 50);
  }
}

}  // namespace
}  // namespace coop::testing
