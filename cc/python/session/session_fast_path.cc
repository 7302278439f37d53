// The short way of nearly every operation: compiled and seen to obey, its operands in memory, room
// for its one result.
//
// Purpose: the launch before has taken the caches, so every line of code and of data that an
//   operation touches here is waited for. This way has code of its own, short and in one piece;
//   whatever is not of every day goes the general way (session_core.cc, session_launch.cc), before
//   anything has changed.
// Invariant: results, books and errors are those of the general way.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "cc/python/session/session_core.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {

nb::object SessionCore::RunDirectly(nb::handle session, nb::handle owner, nb::handle operands) {
  Prepared& prepared = *nb::inst_ptr<Prepared>(owner);
  const Prepared::Form& form = prepared.slots;
  if (form.call == nullptr || prepared.outputs.size() != 1 ||
      form.workspace_bytes > workspace_bytes) {
    return {};
  }
  CollectDead();
  if (outside_bytes + prepared.outside_bytes + workspace_bytes > reserved_bytes ||
      !ReadDirectly(session, prepared, operands)) {
    return {};
  }
  OutputSpec spec = *prepared.outputs.begin();
  if (roomy_) spec.place = cells_.places.Next(&prepared);
  Engine::DirectRun run;
  if (!engine().RunDirectly(inputs_, spec, prepared.cost_seconds, prepared.recomputable, &run)) {
    return {};
  }
  if (roomy_) cells_.places.Went(&prepared, run.offset);
  if (treasures && ComesOfTreasure()) engine().Treasure(run.output);
  outputs_.assign(1, run.output);
  if (run.operation != kNone) KeepRecipe(owner, run.operation);
  nb::list results;
  nb::object made;
  try {
    if (log_ != nullptr) log_->Launch(owner, /*recompute=*/false);
    AppendResults(prepared, &results);
    made = LaunchDirectly(prepared, run.offset);
  } catch (...) {
    for (const nb::handle result : results) ValueOf(result).storage = kNone;
    engine().TakeBack(run);
    Drain();
    throw;
  }
  Put(run.output, std::move(made), prepared.out_keys[0], run.offset);
  if (log_ != nullptr) log_->Add(SessionEvent::kBegin, run.output, run.offset, spec.bytes);
  if (spec.outside) {
    NoteOutside(run.output, spec.bytes);
  } else {
    HeldOf(run.output).place = run.offset;
  }
  return results;
}

bool SessionCore::ReadDirectly(nb::handle session, const Prepared& prepared, nb::handle operands) {
  const Sequence given(operands);
  refs_.clear();
  inputs_.clear();
  pointers_.assign(prepared.slots.call->slots.size(), nullptr);
  for (const int32_t position : prepared.selection) {
    const nb::handle x = given[static_cast<size_t>(position)];
    if (!IsValue(x)) {
      if (prepared_.scalars().Has(x)) {
        refs_.push_back({kNone, -1, prepared_.scalars().CopyOf(x)});
        pointers_.push_back(refs_.back().scalar.ptr());
        continue;
      }
      if (!IsNumber(x)) return false;
      refs_.push_back({kNone, -1, nb::borrow(x)});
      pointers_.push_back(x.ptr());
      continue;
    }
    const Value& value = ValueOf(x);
    // Nobody else has it: it may be overwritten.
    if (Py_REFCNT(x.ptr()) == 1 && !prepared.in_place.empty()) return false;
    if (!Holds(value.storage)) return false;
    refs_.push_back({value.storage, value.key, {}});
    inputs_.push_back(value.storage);
    const Held& held = held_[static_cast<size_t>(value.storage)];
    // What it is, or a view of it, is held for as long as the storage is there.
    pointers_.push_back(held.key == value.key ? held.array.ptr()
                                              : ArrayOf(session, value.storage, value.key).ptr());
  }
  return true;
}

nb::object SessionCore::LaunchDirectly(const Prepared& prepared, int64_t offset) {
  const CompiledCall& call = *prepared.slots.call;
  const auto begin = std::chrono::steady_clock::now();
  nb::object slot;
  if (call.slots.size() > 0) {
    slot = SlotAt(offset, prepared.out_keys[0], call.slots[0].second);
    pointers_[0] = slot.ptr();
  }
  const nb::object results =
      Steal(PyObject_Vectorcall(call.call.ptr(), pointers_.data(), pointers_.size(), nullptr));
  slot.reset();  // JAX's array that was donated goes here
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  compute_seconds += seconds.count();
  const Sequence arrays(results);
  if (arrays.size() != 1) throw std::logic_error("invariant: a launch returns every result");
  return nb::borrow(arrays[0]);
}

}  // namespace coop::python
