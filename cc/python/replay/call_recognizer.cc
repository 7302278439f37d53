#include "cc/python/replay/call_recognizer.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cc/core/planner/plan.h"
#include "cc/python/memory/pool_bindings.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr int64_t kOutside = -1;

nb::object WeakReference(nb::handle x) { return Steal(PyWeakref_NewRef(x.ptr(), nullptr)); }

bool RefersTo(const nb::object& reference, nb::handle x) {
  if (!reference.is_valid()) return false;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* target = nullptr;
  if (PyWeakref_GetRef(reference.ptr(), &target) < 0) nb::raise_python_error();
  const nb::object held = nb::steal(target);
  return held.is(x);
#else
  return PyWeakref_GetObject(reference.ptr()) == x.ptr();
#endif
}

}  // namespace

CallRecognizer::CallRecognizer(nb::object reader, nb::object pool, nb::list avals,
                               nb::bytes disposable, bool committed)
    : reader_object_(std::move(reader)),
      pool_object_(std::move(pool)),
      reader_(nb::cast<ArgumentReader&>(reader_object_)),
      memory_(MemoryOf(pool_object_)),
      committed_(committed) {
  const std::string_view flags(disposable.c_str(), disposable.size());
  if (flags.size() != avals.size())
    throw std::invalid_argument("one flag for each value is needed");
  for (size_t i = 0; i < avals.size(); ++i) {
    avals_.push_back(nb::borrow(avals[i]));
    disposable_.push_back(flags[i] != 0);
  }
  offsets_.resize(avals_.size());
  seen_.resize(avals_.size());
}

bool CallRecognizer::Add(nb::tuple where, nb::tuple offsets, nb::tuple donated, nb::tuple others) {
  const size_t count = avals_.size();
  if (where.size() != count || offsets.size() != count || donated.size() != count) {
    throw std::invalid_argument("a state says something of each argument");
  }
  State state;
  for (size_t i = 0; i < count; ++i) {
    const auto lies = static_cast<Program::Where>(nb::cast<int64_t>(where[i]));
    const bool foreign = lies == Program::Where::kForeign;
    if (lies == Program::Where::kAdopt || nb::cast<bool>(donated[i]) != disposable_[i] ||
        (disposable_[i] && !foreign)) {
      return false;
    }
    const int64_t offset = foreign ? nb::cast<int64_t>(offsets[i]) : kOutside;
    state.offsets.push_back(offset);
    if (foreign) state.blocks.push_back({.offset = offset, .bytes = 0, .alone = disposable_[i]});
  }
  for (const nb::handle other : others) {
    const auto block = nb::cast<nb::tuple>(other);
    state.blocks.push_back({.offset = nb::cast<int64_t>(block[0]),
                            .bytes = nb::cast<int64_t>(block[1]),
                            .alone = false});
  }
  std::sort(state.blocks.begin(), state.blocks.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  states_.push_back(std::move(state));
  return true;
}

bool CallRecognizer::Look(size_t i, nb::handle x, Found& found) {
  if (!reader_.IsArray(x) || reader_.IsDeleted(x) || !reader_.IsLike(x, avals_[i])) return false;
  found = {memory_.OffsetOf(reader_.AddressOf(x)), reader_.IsCommitted(x)};
  // What lies in the pool lies on its device, and whatever made it is done.
  if (found.offset == kOutside) return reader_.IsHereAndReady(x);
  return !disposable_[i] || reader_.IsUnshared(x);
}

const CallRecognizer::Found* CallRecognizer::Known(size_t i, nb::handle x) const {
  if (RefersTo(seen_[i].reference, x)) return &seen_[i].found;
  if (returned_by_ == nullptr || returned_by_->sources.empty()) return nullptr;
  const Source& source = returned_by_->sources[i];
  const bool same =
      source.result >= 0 && RefersTo(returned_[static_cast<size_t>(source.result)], x);
  return same ? &source.found : nullptr;
}

void CallRecognizer::Learn(size_t i, nb::handle x, const Found& found) {
  if (returned_by_ != nullptr && !returned_by_->followed) {
    for (size_t j = 0; j < returned_.size(); ++j) {
      if (!RefersTo(returned_[j], x)) continue;
      returned_by_->sources.resize(avals_.size());
      returned_by_->sources[i] = {static_cast<int64_t>(j), found};
      return;
    }
  }
  seen_[i] = {WeakReference(x), found};
}

void CallRecognizer::Returned(int64_t state, nb::list values) {
  State& by = states_.at(static_cast<size_t>(state));
  returned_.assign(values.size(), {});
  returned_by_ = &by;
  if (!by.followed) {
    for (size_t j = 0; j < values.size(); ++j) {
      if (reader_.IsArray(values[j])) returned_[j] = WeakReference(values[j]);
    }
    return;
  }
  for (const Source& source : by.sources) {
    if (source.result < 0) continue;
    const auto j = static_cast<size_t>(source.result);
    returned_[j] = WeakReference(values[j]);
  }
}

int64_t CallRecognizer::Recognize(nb::list arrays) {
  if (arrays.size() != avals_.size()) return -1;
  any_committed_ = false;
  for (size_t i = 0; i < avals_.size(); ++i) {
    const nb::handle x = arrays[i];
    Found found;
    if (const Found* const known = Known(i, x)) {
      found = *known;
      const bool gone = reader_.IsDeleted(x);
      if (gone || (disposable_[i] && found.offset != kOutside && !reader_.IsUnshared(x))) return -1;
    } else if (Look(i, x, found)) {
      Learn(i, x, found);
    } else {
      return -1;
    }
    any_committed_ = any_committed_ || found.committed;
    offsets_[i] = found.offset;
  }
  if (returned_by_ != nullptr) returned_by_->followed = true;
  if (any_committed_ != committed_) return -1;
  for (size_t s = 0; s < states_.size(); ++s) {
    if (states_[s].offsets == offsets_ && memory_.Holds(states_[s].blocks)) {
      return static_cast<int64_t>(s);
    }
  }
  return -1;
}

void BindCallRecognizer(nb::module_& module) {
  nb::class_<CallRecognizer>(module, "CallRecognizer",
                             "Tells whether a call finds everything as an earlier one did.")
      .def(nb::init<nb::object, nb::object, nb::list, nb::bytes, bool>(), nb::arg("reader"),
           nb::arg("pool"), nb::arg("avals"), nb::arg("disposable"), nb::arg("committed"))
      .def("add", &CallRecognizer::Add, nb::arg("where"), nb::arg("offsets"), nb::arg("donated"),
           nb::arg("others"))
      .def("returned", &CallRecognizer::Returned, nb::arg("state"), nb::arg("values"))
      .def("recognize", &CallRecognizer::Recognize, nb::arg("arrays"));
}

}  // namespace coop::python
