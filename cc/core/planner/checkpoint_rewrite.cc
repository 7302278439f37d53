#include "cc/core/planner/checkpoint_rewrite.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cc/core/planner/min_cut_keep_set.h"

namespace coop {

std::vector<int32_t> MakersOf(const Program& program) {
  std::vector<int32_t> made_at(program.storage_bytes.size(), kNone);
  for (int32_t i = 0; i < program.operation_count(); ++i) {
    for (const int32_t s : Row(program.op_outputs, program.op_output_begin, i)) {
      made_at[static_cast<size_t>(s)] = i;
    }
  }
  return made_at;
}

Rewriting::Rewriting(const Program& original, const std::vector<uint8_t>& kept)
    : original_(original), made_at_(MakersOf(original)), moment_(FullestMoment(original)) {
  program.storage_bytes = original.storage_bytes;
  program.storage_outside = original.storage_outside;
  program.inputs = original.inputs;
  program.outputs = original.outputs;
  program.op_input_begin = program.op_output_begin = program.release_begin = {0};
  const size_t storages = original.storage_bytes.size();
  for (size_t s = 0; s < storages; ++s) {
    storage_of.push_back(static_cast<int32_t>(s));
    is_gone_.push_back(made_at_[s] != kNone && made_at_[s] < moment_ && kept[s] == 0 &&
                       original.storage_outside[s] == 0 &&
                       original.op_recomputable[static_cast<size_t>(made_at_[s])] != 0);
  }
  for (const int32_t s : original.outputs) is_gone_[static_cast<size_t>(s)] = 0;
  now_ = storage_of;
  const auto operations = static_cast<size_t>(original.operation_count());
  to_run_.assign(operations, 0);
  has_run_.assign(operations, 0);
  const std::vector<uint8_t> waits = WhatMayWait();
  for (int32_t i = 0; i < original.operation_count(); ++i) {
    if (i > moment_) RunAgainFor(i);
    if (i > moment_ || waits[static_cast<size_t>(i)] == 0) Append(i, false);
  }
  Release();
}

std::vector<uint8_t> Rewriting::WhatMayWait() const {
  const auto moment = static_cast<size_t>(moment_);
  std::vector<uint8_t> read_before(original_.storage_bytes.size(), 0);
  std::vector<uint8_t> read_later(original_.storage_bytes.size(), 0);
  for (size_t i = moment + 1; i < to_run_.size(); ++i) MarkInputs(i, &read_later);
  std::vector<uint8_t> waits(to_run_.size(), 0);
  MarkInputs(moment, &read_before);
  for (size_t i = moment; i-- > 0;) {
    bool may_wait = original_.op_recomputable[i] != 0;
    bool is_read = false;
    for (const int32_t s :
         Row(original_.op_outputs, original_.op_output_begin, static_cast<int32_t>(i))) {
      const auto storage = static_cast<size_t>(s);
      may_wait &= is_gone_[storage] != 0 && read_before[storage] == 0;
      is_read |= read_later[storage] != 0;
    }
    // What nobody reads runs in its turn.
    waits[i] = may_wait && is_read ? 1 : 0;
    MarkInputs(i, waits[i] != 0 ? &read_later : &read_before);
  }
  return waits;
}

void Rewriting::MarkInputs(size_t operation, std::vector<uint8_t>* marks) const {
  for (const int32_t s :
       Row(original_.op_inputs, original_.op_input_begin, static_cast<int32_t>(operation))) {
    (*marks)[static_cast<size_t>(s)] = 1;
  }
}

void Rewriting::RunAgainFor(int32_t reader) {
  std::vector<int32_t> operations;
  const auto want_inputs_of = [&](int32_t operation) {
    for (const int32_t s : Row(original_.op_inputs, original_.op_input_begin, operation)) {
      const auto storage = static_cast<size_t>(s);
      if (is_gone_[storage] == 0) continue;
      const int32_t maker = made_at_[storage];
      if (std::exchange(to_run_[static_cast<size_t>(maker)], 1) == 0) operations.push_back(maker);
    }
  };
  want_inputs_of(reader);
  for (size_t k = 0; k < operations.size(); ++k) want_inputs_of(operations[k]);
  std::sort(operations.begin(), operations.end());
  for (const int32_t operation : operations) {
    to_run_[static_cast<size_t>(operation)] = 0;
    const bool again = has_run_[static_cast<size_t>(operation)] != 0;
    const auto outputs = Row(original_.op_outputs, original_.op_output_begin, operation);
    for (const int32_t s : outputs) {
      const auto storage = static_cast<size_t>(s);
      // Also what only later operations read: nothing runs for each of its results.
      const bool asked_for = std::exchange(is_gone_[storage], 0) != 0;
      if (!again) continue;  // it makes what it makes in the original
      made_again_.push_back(static_cast<int32_t>(program.storage_bytes.size()));
      if (asked_for) now_[storage] = made_again_.back();
      program.storage_bytes.push_back(original_.storage_bytes[storage]);
      program.storage_outside.push_back(original_.storage_outside[storage]);
      storage_of.push_back(asked_for ? s : kNone);
    }
    Append(operation, again);
    if (!again) continue;
    ++copies;
    copied_seconds += original_.op_cost_seconds[static_cast<size_t>(operation)];
  }
}

void Rewriting::Append(int32_t operation, bool again) {
  const auto row = static_cast<size_t>(operation);
  has_run_[row] = 1;
  for (const int32_t s : Row(original_.op_inputs, original_.op_input_begin, operation)) {
    program.op_inputs.push_back(now_[static_cast<size_t>(s)]);
  }
  const auto in_place = Row(original_.op_in_place, original_.op_output_begin, operation);
  const std::span<const int32_t> outputs =
      again ? std::span<const int32_t>(made_again_)
            : Row(original_.op_outputs, original_.op_output_begin, operation);
  program.op_outputs.insert(program.op_outputs.end(), outputs.begin(), outputs.end());
  made_again_.clear();
  program.op_in_place.insert(program.op_in_place.end(), in_place.begin(), in_place.end());
  program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
  program.op_output_begin.push_back(static_cast<int32_t>(program.op_outputs.size()));
  program.op_cost_seconds.push_back(original_.op_cost_seconds[row]);
  program.op_recomputable.push_back(original_.op_recomputable[row]);
  operation_of.push_back(operation);
  is_copy.push_back(again ? 1 : 0);
}

void Rewriting::Release() {
  const size_t storages = program.storage_bytes.size();
  const auto originals = original_.storage_bytes.size();
  std::vector<int32_t> released_by(storages, kNone);  // in the original
  std::vector<int32_t> last(storages, kNone);
  for (int32_t i = 0; i < original_.operation_count(); ++i) {
    for (const int32_t s : Row(original_.releases, original_.release_begin, i)) {
      released_by[static_cast<size_t>(s)] = i;
    }
  }
  for (int32_t i = 0; i < program.operation_count(); ++i) {
    for (const auto list : {Row(program.op_inputs, program.op_input_begin, i),
                            Row(program.op_outputs, program.op_output_begin, i)}) {
      for (const int32_t s : list) last[static_cast<size_t>(s)] = i;
    }
  }
  for (size_t s = 0; s < originals; ++s) {
    // An input that nobody reads goes when it went.
    if (released_by[s] != kNone && last[s] == kNone) last[s] = PositionOf(released_by[s]);
  }
  for (int32_t i = 0; i < original_.operation_count(); ++i) {
    const auto inputs = Row(original_.op_inputs, original_.op_input_begin, i);
    for (const int32_t position : Row(original_.op_in_place, original_.op_output_begin, i)) {
      if (position == kNone) continue;
      const auto s = static_cast<size_t>(inputs[static_cast<size_t>(position)]);
      if (made_at_[s] != kNone || released_by[s] != i) continue;
      const auto reader = static_cast<size_t>(last[s]);
      is_valid &= operation_of[reader] == i && is_copy[reader] == 0;
    }
  }
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(program.operation_count()));
  for (size_t s = 0; s < storages; ++s) {
    if (s < originals && released_by[s] == kNone) continue;
    rows[static_cast<size_t>(last[s])].push_back(static_cast<int32_t>(s));
  }
  for (const std::vector<int32_t>& row : rows) {
    program.releases.insert(program.releases.end(), row.begin(), row.end());
    program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
  }
}

int32_t Rewriting::PositionOf(int32_t operation) const {
  for (size_t i = operation_of.size(); i-- > 0;) {
    if (operation_of[i] == operation && is_copy[i] == 0) return static_cast<int32_t>(i);
  }
  return kNone;
}

}  // namespace coop
