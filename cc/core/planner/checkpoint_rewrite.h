// A program written around checkpoints: what is not kept over its fullest moment is made again, by
// operations of its own (see checkpoint_plan.h).
//
// Model. Up to the moment what is not kept goes with its last use. After it the operations that
// make it run once more just before the first operation that reads any of what they make; what one
// of them makes is there for all that read it later. Operations whose results are not kept, and
// which nothing before the moment reads, are left out there and run after it for the first time.
//
// Invariants: the program is well formed, computes what the original does, and its first storages
// are those of the original. Thread rule: a value. Complexity: linear in the program, but for the
// order of what is made again at one time.
// Source: see checkpoint_plan.h.
#ifndef COOP_CORE_PLANNER_CHECKPOINT_REWRITE_H_
#define COOP_CORE_PLANNER_CHECKPOINT_REWRITE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/planner/plan.h"

namespace coop {

// By storage the operation that makes it; kNone: an input.
[[nodiscard]] std::vector<int32_t> MakersOf(const Program& program);

class Rewriting {
 public:
  // `kept`: by storage. The original must be well formed, and outlive this.
  Rewriting(const Program& original, const std::vector<uint8_t>& kept);

  [[nodiscard]] bool IsMadeAfterTheMoment(int32_t storage) const {
    return made_at_[static_cast<size_t>(storage)] > moment_;
  }

  Program program;
  std::vector<int32_t> storage_of;    // in the original; kNone: an output that nobody asked for
  std::vector<int32_t> operation_of;  // in the original
  std::vector<uint8_t> is_copy;       // by operation: it has run before
  int64_t copies = 0;
  double copied_seconds = 0;
  bool is_valid = true;  // whether no input is overwritten elsewhere than in the original

 private:
  // By operation up to the moment: whether all that it makes is gone after it and read after the
  // moment only, or by others of which that is so. Such an operation need not run before.
  [[nodiscard]] std::vector<uint8_t> WhatMayWait() const;
  void MarkInputs(size_t operation, std::vector<uint8_t>* marks) const;
  void RunAgainFor(int32_t reader);
  // The operation as it is, or making `made_again_`.
  void Append(int32_t operation, bool again);
  // What the original releases, and what is made again, with the last operation that has it.
  void Release();
  // Where an operation of the original runs for the first time.
  [[nodiscard]] int32_t PositionOf(int32_t operation) const;

  const Program& original_;
  std::vector<int32_t> made_at_;
  int32_t moment_;
  std::vector<uint8_t> is_gone_;  // by storage of the original: not there unless made again
  std::vector<int32_t> now_;      // by storage of the original: the one that holds its contents
  std::vector<uint8_t> to_run_;   // by operation of the original, while something is made again
  std::vector<uint8_t> has_run_;  // by operation of the original
  std::vector<int32_t> made_again_;
};

}  // namespace coop

#endif  // COOP_CORE_PLANNER_CHECKPOINT_REWRITE_H_
