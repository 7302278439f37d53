#include "cc/core/planner/call_history.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cc/core/base/check.h"

namespace coop {
namespace {

constexpr uint64_t kReading = 0;

CallRecord Nothing() {
  CallRecord record;
  Program& program = record.program;
  program.op_input_begin = program.op_output_begin = {0};
  program.release_begin = program.discard_begin = program.kept_begin = {0};
  return record;
}

int32_t Count(const auto& values) { return static_cast<int32_t>(values.size()); }

}  // namespace

bool operator==(const CallRecord& a, const CallRecord& b) {
  // When references go and where sources lie may differ: what is done is the same.
  return a.what == b.what && a.made_by == b.made_by && a.program.op_inputs == b.program.op_inputs &&
         a.program.op_input_begin == b.program.op_input_begin &&
         a.program.storage_bytes == b.program.storage_bytes;
}

void History::Begin(bool follow) {
  now_ = Nothing();
  numbers_.clear();
  donated_.clear();
  held_.clear();
  agrees_ = !empty();
  follows_ = follow && agrees_;
  gave_up_ = broken_ = false;
}

void History::NewSource(StorageId storage, bool donated) {
  SetNumber(storage, kNone);
  const auto index = static_cast<size_t>(storage);
  if (donated_.size() <= index) donated_.resize(index + 1, 0);
  donated_[index] = donated ? 1 : 0;
}

int32_t History::Known(StorageId storage) const {
  const auto index = static_cast<size_t>(storage);
  return index < numbers_.size() ? numbers_[index] : kNone;
}

void History::SetNumber(StorageId storage, int32_t number) {
  const auto index = static_cast<size_t>(storage);
  if (numbers_.size() <= index) numbers_.resize(index + 1, kNone);
  numbers_[index] = number;
}

int32_t History::NumberOf(const Engine& engine, StorageId storage) {
  const int32_t known = Known(storage);
  if (known != kNone) return known;
  Program& program = now_.program;
  const int32_t number = program.storage_count();
  SetNumber(storage, number);
  const int64_t offset = engine.OffsetOf(storage);
  const auto index = static_cast<size_t>(storage);
  const int64_t bytes = engine.BytesOf(storage);
  program.storage_bytes.push_back(offset < 0 ? RoundUpOutside(bytes) : bytes);
  program.storage_outside.push_back(offset < 0 ? 1 : 0);
  program.inputs.push_back(
      {.storage = number,
       .where = offset < 0 ? Program::Where::kOutside : Program::Where::kForeign,
       .offset = offset,
       .donated = index < donated_.size() && donated_[index] != 0});
  now_.made_by.push_back(kNone);
  return number;
}

bool History::Matches(const Engine& engine, uint64_t what, std::span<const StorageId> inputs) {
  const size_t row = now_.what.size();
  if (row >= record_.what.size() || record_.what[row] != what) return false;
  const auto first = static_cast<size_t>(record_.program.op_input_begin[row]);
  const auto last = static_cast<size_t>(record_.program.op_input_begin[row + 1]);
  if (last - first != inputs.size()) return false;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (NumberOf(engine, inputs[k]) != record_.program.op_inputs[first + k]) return false;
  }
  return true;
}

void History::Expect(Engine* engine, uint64_t what, std::span<const StorageId> inputs,
                     std::vector<OutputSpec>* outputs) {
  if (!agrees_ || broken_) return;
  if (!Matches(*engine, what, inputs)) {
    Leave(engine);
    agrees_ = false;
    return;
  }
  if (!follows_ || (sides_.empty() && places_.empty())) return;
  const size_t row = now_.what.size();
  const auto first = static_cast<size_t>(record_.program.op_output_begin[row]);
  const auto count = static_cast<size_t>(record_.program.op_output_begin[row + 1]) - first;
  for (size_t k = 0; k < count && k < outputs->size(); ++k) {
    const auto number = static_cast<size_t>(record_.program.op_outputs[first + k]);
    if (!sides_.empty()) (*outputs)[k].side = sides_[number];
    if (!places_.empty()) (*outputs)[k].place = places_[number];
  }
}

void History::Added(Engine* engine, uint64_t what, std::span<const StorageId> inputs,
                    std::span<const StorageId> outputs, std::span<const OutputSpec> specs,
                    double cost_seconds, bool recomputable) {
  if (broken_) return;
  Program& program = now_.program;
  for (const StorageId input : inputs) program.op_inputs.push_back(NumberOf(*engine, input));
  for (size_t k = 0; k < outputs.size(); ++k) {
    const int32_t number = program.storage_count();
    SetNumber(outputs[k], number);
    program.op_outputs.push_back(number);
    program.storage_bytes.push_back(specs[k].outside ? RoundUpOutside(specs[k].bytes)
                                                     : specs[k].bytes);
    program.storage_outside.push_back(specs[k].outside ? 1 : 0);
    program.op_in_place.push_back(specs[k].in_place_input);
    now_.made_by.push_back(Count(now_.what));
  }
  program.op_cost_seconds.push_back(cost_seconds);
  program.op_recomputable.push_back(recomputable ? 1 : 0);
  program.op_is_read.push_back(what == kReading ? 1 : 0);
  program.op_input_begin.push_back(Count(program.op_inputs));
  program.op_output_begin.push_back(Count(program.op_outputs));
  program.release_begin.push_back(Count(program.releases));
  program.discard_begin.push_back(Count(program.discards));
  program.kept_begin.push_back(Count(program.kept));
  if (follows_) Tell(engine, inputs, outputs);
  now_.what.push_back(what);
}

void History::Tell(Engine* engine, std::span<const StorageId> inputs,
                   std::span<const StorageId> outputs) {
  const size_t row = now_.what.size();
  const Program& program = record_.program;
  engine->SetNow(reads_.begins_at[row]);
  const auto input = static_cast<size_t>(program.op_input_begin[row]);
  for (size_t k = 0; k < inputs.size(); ++k) {
    engine->SetNextRead(inputs[k], reads_.input_again[input + k]);
  }
  const auto output = static_cast<size_t>(program.op_output_begin[row]);
  const auto count = static_cast<size_t>(program.op_output_begin[row + 1]) - output;
  for (size_t k = 0; k < count && k < outputs.size(); ++k) {
    engine->SetNextRead(outputs[k], reads_.output_first[output + k]);
    if (worth_.empty()) continue;
    engine->SetWorth(outputs[k], worth_[static_cast<size_t>(program.op_outputs[output + k])]);
  }
}

void History::Read(Engine* engine, StorageId storage) {
  const std::span<const StorageId> inputs(&storage, 1);
  std::vector<OutputSpec> none;
  Expect(engine, kReading, inputs, &none);
  Added(engine, kReading, inputs, {}, {}, 0, true);
}

bool History::Released(StorageId storage) {
  const int32_t number = Known(storage);
  SetNumber(storage, kNone);  // the id is free for another
  // Nothing to say of what no operation named; a source that is not donated stays to the end.
  if (number == kNone || now_.what.empty()) return false;
  now_.program.releases.push_back(number);
  now_.program.release_begin.back() = Count(now_.program.releases);
  if (!follows_ || held_for_.empty()) return false;
  const int32_t until = held_for_[static_cast<size_t>(number)];
  if (until < Rows()) return false;
  held_until_ = held_.empty() ? until : std::min(held_until_, until);
  held_.emplace_back(until, storage);
  return true;
}

std::vector<StorageId> History::TakeDue() {
  std::vector<StorageId> due;
  std::vector<std::pair<int32_t, StorageId>> rest;
  for (const auto& [until, storage] : held_) {
    if (follows_ && until >= Rows()) {
      held_until_ = rest.empty() ? until : std::min(held_until_, until);
      rest.emplace_back(until, storage);
    } else {
      due.push_back(storage);
    }
  }
  held_ = std::move(rest);
  return due;
}

void History::Discarded(StorageId storage) {
  const int32_t number = Known(storage);
  if (number == kNone || now_.what.empty()) return;
  now_.program.discards.push_back(number);
  now_.program.discard_begin.back() = Count(now_.program.discards);
}

void History::Taken(StorageId storage) {
  const int32_t number = Known(storage);
  if (number == kNone || now_.what.empty()) return;
  now_.program.outputs.push_back(number);
  now_.program.kept.push_back(number);
  now_.program.kept_begin.back() = Count(now_.program.kept);
}

bool History::Leave(Engine* engine) {
  if (!std::exchange(follows_, false)) return false;
  engine->ForgetFuture();
  return true;
}

bool History::GiveUp(Engine* engine) {
  if (!Leave(engine)) return false;
  gave_up_ = true;
  return true;
}

void History::Break(Engine* engine) {
  Leave(engine);
  broken_ = true;
}

bool History::Finish() {
  if (broken_) return false;
  const bool same = agrees_ && now_ == record_;
  repetitions_ = same ? repetitions_ + 1 : 0;
  if (!same) {
    worth_.clear();
    sides_.clear();
    places_.clear();
    held_for_.clear();
  }
  record_ = std::exchange(now_, Nothing());
  reads_ = FindReads(record_.program, held_for_);
  follows_ = false;
  return true;
}

void History::Advise(std::vector<double> worth, std::vector<SideHint> sides,
                     std::vector<int64_t> places, std::vector<int32_t> held_for) {
  const size_t count = record_.program.storage_bytes.size();
  Require((worth.empty() || worth.size() == count) && (sides.empty() || sides.size() == count) &&
              (places.empty() || places.size() == count) &&
              (held_for.empty() || held_for.size() == count),
          "advice is for each storage of the record, or for none");
  for (const int32_t operation : held_for) {
    Require(operation >= kNone && operation < record_.program.operation_count(),
            "held_for must name operations");
  }
  worth_ = std::move(worth);
  sides_ = std::move(sides);
  places_ = std::move(places);
  held_for_ = std::move(held_for);
  reads_ = FindReads(record_.program, held_for_);
}

}  // namespace coop
