// Random straight-line programs for tests, and the check that a plan computes them.
//
// Model: a program is drawn operation by operation. Inputs of an operation are drawn from the
// values alive so far, with a taste for recent ones (chains) and for old ones (skips, as in a
// backward pass). Last uses are computed, and values whose last use it is may be overwritten in
// place. The same seed gives the same program. Thread rule: one thread. Complexity: linear in the
// operations times the values alive.

#ifndef COOP_TESTS_CORE_RANDOM_PROGRAM_H_
#define COOP_TESTS_CORE_RANDOM_PROGRAM_H_

#include <cstdint>
#include <random>
#include <vector>

#include "cc/core/planner/plan.h"
#include "tests/core/fake_memory.h"

namespace coop::testing {

struct ProgramShape {
  int operations = 40;
  int inputs = 4;
  int max_fan_in = 3;
  int max_fan_out = 3;
  int64_t max_bytes = 640;
  int64_t alignment_bytes = 64;
  double impure = 0.04;    // chance that an operation is never replayed
  double outside = 0.06;   // chance that a value lies outside the pool
  double in_place = 0.35;  // chance that a last use is declared as in place, where sizes allow
  double same_bytes =
      0.6;  // chance that an output is as big as the first input (in place needs it)
  double unused_later = 0.5;  // chance that an operand is drawn from the recent values
};

// Draws a program; foreign inputs lie at `foreign_base` and above, in order.
[[nodiscard]] Program RandomProgram(uint64_t seed, const ProgramShape& shape);

// Executes the plan on fake memory. Throws std::logic_error on the first wrong read or write, on
// memory used past the peak that the plan states, and on results that are not there at the end.
void CheckPlan(const Program& program, const PlanOptions& options, const Plan& plan);

// Bytes with everything kept: a pool this large (doubled, for placement at both ends) needs no
// eviction.
[[nodiscard]] int64_t TotalRoundedBytes(const Program& program, int64_t alignment_bytes);

// No plan can run in less: the most that a single operation reads and writes, in-place outputs
// counted once.
[[nodiscard]] int64_t LowerBoundBytes(const Program& program, int64_t alignment_bytes);

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_RANDOM_PROGRAM_H_
