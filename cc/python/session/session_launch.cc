// How a session launches: in place where an operand dies, past Python where a call obeys.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/python/memory/pool_bindings.h"
#include "cc/python/session/session_core.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

struct LetGo {
  explicit LetGo(std::vector<nb::object>& held) : objects(held) {}
  LetGo(const LetGo&) = delete;
  LetGo& operator=(const LetGo&) = delete;
  ~LetGo() { objects.clear(); }
  std::vector<nb::object>& objects;
};

}  // namespace

Prepared::Form* SessionCore::Overwriting(nb::handle session, nb::handle owner,
                                         nb::handle operands) {
  if (!engine().options().policy.in_place || !PyList_CheckExact(operands.ptr())) return nullptr;
  Prepared& prepared = *nb::inst_ptr<Prepared>(owner);
  int32_t input = -1;
  for (size_t n = 0; n < refs_.size(); ++n) {
    const Ref& ref = refs_[n];
    if (ref.storage == kNone) continue;
    ++input;
    const auto form = std::find_if(prepared.in_place.begin(), prepared.in_place.end(),
                                   [&](const auto& f) { return f.first == static_cast<int>(n); });
    if (form == prepared.in_place.end()) continue;
    PyObject* const x = PyList_GET_ITEM(operands.ptr(), prepared.selection[n]);
    if (!IsValue(x) || Py_REFCNT(x) != 1 || engine().RefsOf(ref.storage) != 1) continue;
    if (IsOutside(ref.storage) || std::count(inputs_.begin(), inputs_.end(), ref.storage) != 1) {
      continue;
    }
    // Its array, or the one that it comes back as, must be of the result's shape.
    if (KeyOf(ref.storage) != ref.key) continue;
    if (!form->second.executable.is_valid()) {
      form->second.executable = session.attr("_on_in_place")(owner, n);
    }
    specs_[0].in_place_input = input;
    return &form->second;
  }
  return nullptr;
}

void SessionCore::Consume(nb::handle operands, StorageId storage) {
  const Sequence given(operands);
  for (size_t i = 0; i < given.size(); ++i) {
    if (!IsValue(given[i]) || ValueOf(given[i]).storage != storage) continue;
    ValueOf(given[i]).storage = kNone;
    Release(storage);
    return;
  }
}

void SessionCore::Launch(nb::handle session, Recipe& recipe, const Placement* placements,
                         bool recompute) {
  Prepared& prepared = *recipe.prepared;
  const size_t count = recipe.outputs.size();
  StorageId overwritten = kNone;  // at most one: only operations with one result are in place
  for (size_t k = 0; k < count; ++k) {
    int32_t input = placements[k].in_place_input;
    if (input == kNone) continue;
    for (const Ref& ref : recipe.refs) {
      if (ref.storage != kNone && input-- == 0) overwritten = ref.storage;
    }
  }
  const Prepared::Form& form = overwritten == kNone ? prepared.slots : *recipe.overwriting;
  // The caller's memory may be shared with what XLA does not write over: that is looked at.
  const bool given = overwritten != kNone && donated_.count(overwritten) != 0;
  const bool fast = fast_ && form.call != nullptr && !given && !launches_are_checked;
  const LetGo let_go{arguments_};
  arguments_.resize(fast ? form.call->slots.size() : 0);
  for (const Ref& ref : recipe.refs) {
    arguments_.push_back(ref.storage == kNone ? ref.scalar
                                              : ArrayOf(session, ref.storage, ref.key));
  }
  // Before the launch, as all that is cheap then: it takes the caches. Results come by number from
  // the session, and in the executable's order from the call itself.
  landings_.clear();
  for (size_t i = 0; i < count; ++i) {
    const size_t k = fast ? static_cast<size_t>(form.call->order[i]) : i;
    // A recomputation may make only some of its outputs anew: the others are scratch, or, outside
    // the pool, still there.
    StorageId storage = recompute ? placements[k].storage : recipe.outputs[k];
    if (storage != kNone && recompute && placements[k].offset < 0 && Holds(storage)) {
      storage = kNone;
    }
    landings_.push_back({storage, prepared.out_keys[k], placements[k].offset});
  }
  nb::object results;
  if (fast) {
    results = LaunchFast(prepared, *form.call, placements, recompute);
  } else {
    nb::list places, arrays;
    for (size_t k = 0; k < count; ++k) {
      places.append(nb::make_tuple(recipe.outputs[k], placements[k].storage, placements[k].offset,
                                   placements[k].in_place_input));
    }
    for (nb::object& operand : arguments_) arrays.append(std::move(operand));
    arguments_.clear();
    results =
        session.attr("_on_launch")(recipe.owner, form.executable, places, arrays, recompute, given);
  }
  if (overwritten != kNone) Overwrite(overwritten, placements[0].offset);
  const Sequence arrays(results);
  if (arrays.size() != count) throw std::logic_error("invariant: a launch returns every result");
  for (size_t i = 0; i < count; ++i) {
    const auto& [storage, key, place] = landings_[i];
    if (storage == kNone) continue;
    const int64_t offset = fast ? place : -1;
    Put(storage, nb::borrow(arrays[i]), key, offset);
    HeldOf(storage).place = offset;
    if (log_ != nullptr) LogBegin(storage, prepared, fast ? form.call->order[i] : i, place);
  }
}

void SessionCore::LogBegin(StorageId storage, const Prepared& prepared, size_t result,
                           int64_t offset) {
  const int64_t bytes = (prepared.outputs.begin() + result)->bytes;
  log_->Add(SessionEvent::kBegin, storage, offset, bytes, static_cast<int>(result));
}

nb::object SessionCore::SlotAt(int64_t offset, int32_t key, nb::handle spec) {
  nb::object kept = cells_.Take(offset, key);
  return kept.is_valid() ? kept : Import(offset, spec, /*write=*/true);
}

nb::object SessionCore::Import(int64_t offset, nb::handle spec, bool write) {
  const nb::object capsule =
      MakeCapsule(MemoryOf(pool_).NewUncounted(offset, *nb::inst_ptr<SlotSpec>(spec), write));
  PyObject* load[8] = {capsule.ptr()};
  const size_t extra = std::min<size_t>(load_arguments_.size(), 7);
  for (size_t i = 0; i < extra; ++i) {
    load[i + 1] = PyTuple_GET_ITEM(load_arguments_.ptr(), static_cast<Py_ssize_t>(i));
  }
  return Steal(PyObject_Vectorcall(load_.ptr(), load, extra + 1, nullptr));
}

nb::object SessionCore::LaunchFast(const Prepared& prepared, const CompiledCall& call,
                                   const Placement* placements, bool recompute) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < call.slots.size(); ++i) {
    const auto& [result, spec] = call.slots[i];
    const auto number = static_cast<size_t>(result);
    arguments_[i] = SlotAt(placements[result].offset, prepared.out_keys[number], spec);
  }
  pointers_.clear();
  for (const nb::object& argument : arguments_) pointers_.push_back(argument.ptr());
  nb::object results =
      Steal(PyObject_Vectorcall(call.call.ptr(), pointers_.data(), pointers_.size(), nullptr));
  arguments_.clear();  // JAX's arrays that were donated go here
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  (recompute ? recompute_seconds : compute_seconds) += seconds.count();
  return results;
}

}  // namespace coop::python
