// What a session holds: values, the array of each resident storage, views of it, what lies outside.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/python/memory/pool_bindings.h"
#include "cc/python/session/session_core.h"

namespace nb = nanobind;

namespace coop::python {
nb::object SessionCore::NewValue(StorageId storage, nb::handle aval, int32_t key) {
  return MakeValue({.dead = dead_, .storage = storage, .key = key, .aval = nb::borrow(aval)});
}

nb::object SessionCore::Alias(StorageId storage, nb::handle aval, int32_t key) {
  engine().Retain(storage);
  return NewValue(storage, aval, key);
}

SessionCore::Held& SessionCore::HeldOf(StorageId storage) {
  if (held_.size() <= static_cast<size_t>(storage)) held_.resize(static_cast<size_t>(storage) + 1);
  return held_[static_cast<size_t>(storage)];
}

void SessionCore::Put(StorageId storage, nb::object array, int32_t key, int64_t offset) {
  Held& held = HeldOf(storage);
  held.array = std::move(array);
  held.key = key;
  held.offset = offset;
  held.place = -1;
}

void SessionCore::PutSource(StorageId storage, nb::object array, int32_t key, int64_t offset) {
  Put(storage, std::move(array), key, offset);
  if (log_ != nullptr) log_->Add(SessionEvent::kRead, storage, offset, key);
}

bool SessionCore::Holds(StorageId storage) const {
  return static_cast<size_t>(storage) < held_.size() &&
         held_[static_cast<size_t>(storage)].array.is_valid();
}

int32_t SessionCore::KeyOf(StorageId storage) const {
  const auto index = static_cast<size_t>(storage);
  if (Holds(storage)) return held_[index].key;
  return index < made_keys_.size() ? made_keys_[index] : -1;
}

nb::dict SessionCore::Makers() {
  nb::dict makers;
  std::vector<StorageId> outputs;
  for (size_t n = 0; n < recipes_.size(); ++n) {
    if (recipes_[n] == nullptr) continue;
    engine().OutputsOf(static_cast<OperationId>(n), &outputs);
    for (const StorageId output : outputs) {
      if (output != kNone) makers[nb::int_(output)] = recipes_[n]->owner;
    }
  }
  return makers;
}

nb::list SessionCore::Recomputed() const {
  nb::list found;
  for (const auto& [key, counted] : recomputed_) {
    found.append(nb::make_tuple(counted.first, counted.second));
  }
  return found;
}

nb::object SessionCore::ArrayOf(nb::handle session, StorageId storage, int32_t key) {
  if (!Holds(storage)) throw std::logic_error("invariant: what an operation reads is held");
  const Held& held = held_[static_cast<size_t>(storage)];
  if (held.key == key) return held.array;
  for (const View& view : views_[storage]) {
    if (view.key == key) return view.array;
  }
  View view = MakeView(session, storage, key);
  held_[static_cast<size_t>(storage)].viewed = true;
  return views_[storage].emplace_back(std::move(view)).array;
}

SessionCore::View SessionCore::MakeView(nb::handle session, StorageId storage, int32_t key) {
  Held& held = held_[static_cast<size_t>(storage)];
  nb::object& spec = cells_.ViewSpec(held.key, key);
  if (!spec.is_valid()) spec = session.attr("_on_view")(held.array, key);
  if (spec.is_none()) return {key, held.array, -1};
  if (held.offset < 0) {  // given from outside; the engine may be ahead of what is carried out
    const auto address = nb::cast<uint64_t>(held.array.attr("unsafe_buffer_pointer")());
    held.offset = MemoryOf(pool_).OffsetOf(address);
  }
  const int64_t offset = held.offset;
  if (!fast_) return {key, Import(offset, spec, /*write=*/false), -1};
  nb::object kept = cells_.Take(offset, key);
  if (!kept.is_valid()) kept = Import(offset, spec, /*write=*/false);
  return {key, std::move(kept), offset};
}

void SessionCore::Keep(nb::object* array, int32_t key, int64_t place) {
  if (place < 0 || !array->is_valid() || Py_REFCNT(array->ptr()) != 1) return;
  cells_.Keep(place, key, std::move(*array));
}

void SessionCore::DropViews(StorageId storage) {
  const auto found = views_.find(storage);
  if (found == views_.end()) return;
  std::vector<View> views = std::move(found->second);
  views_.erase(found);
  for (View& view : views) Keep(&view.array, view.key, view.place);
}

void SessionCore::NoteOutside(StorageId storage, int64_t bytes) {
  Held& held = HeldOf(storage);
  if (held.outside_bytes >= 0) return;
  held.outside_bytes = RoundUpOutside(bytes);
  outside_bytes += held.outside_bytes;
  peak_outside_bytes = std::max(peak_outside_bytes, outside_bytes);
}

bool SessionCore::IsOutside(StorageId storage) const {
  return static_cast<size_t>(storage) < held_.size() &&
         held_[static_cast<size_t>(storage)].outside_bytes >= 0;
}

void SessionCore::Drop(StorageId storage, SessionEvent why) {
  if (log_ != nullptr) log_->Add(why, storage);
  if (static_cast<size_t>(storage) >= held_.size()) return;
  if (held_[static_cast<size_t>(storage)].viewed) DropViews(storage);
  Held& held = held_[static_cast<size_t>(storage)];
  Keep(&held.array, held.key, held.place);
  const nb::object array = std::move(held.array);
  if (held.outside_bytes >= 0) outside_bytes -= held.outside_bytes;
  held = Held{};
  if (donated_.empty() || donated_.erase(storage) == 0 || !array.is_valid()) return;
  NoteConsumed();
  PoolMemory& memory = MemoryOf(pool_);
  memory.Reclaim(memory.OffsetOf(nb::cast<uint64_t>(array.attr("unsafe_buffer_pointer")())));
  array.attr("delete")();
}

void SessionCore::NoteConsumed() {
  if (interrupts != nullptr) interrupts->consumed = true;
}

void SessionCore::Move(nb::handle session, StorageId storage, int64_t offset) {
  if (!Holds(storage)) throw std::logic_error("invariant: what is moved is held");
  const int32_t key = held_[static_cast<size_t>(storage)].key;
  nb::object moved =
      session.attr("_on_move")(held_[static_cast<size_t>(storage)].array, key, offset);
  if (held_[static_cast<size_t>(storage)].viewed) DropViews(storage);
  Held& held = held_[static_cast<size_t>(storage)];
  Keep(&held.array, held.key, held.place);
  held.viewed = false;
  Put(storage, std::move(moved), key, offset);
  if (log_ != nullptr) log_->Add(SessionEvent::kMoved, storage, offset);
}

void SessionCore::Overwrite(StorageId storage, int64_t offset) {
  if (donated_.erase(storage) != 0) {  // the array is gone already
    NoteConsumed();
    MemoryOf(pool_).Reclaim(offset);
  }
  HeldOf(storage).place = -1;  // the operation consumed its array
  Drop(storage, SessionEvent::kOverwritten);
}

StorageId SessionCore::AddForeign(int64_t offset, int64_t bytes, bool donated) {
  const StorageId storage = engine().AddForeign(offset, bytes, donated);
  if (history_ != nullptr) history_->NewSource(storage, donated);
  if (log_ != nullptr) log_->Add(SessionEvent::kSource, storage, offset, bytes, donated ? 1 : 0);
  return storage;
}

StorageId SessionCore::AddOutside(int64_t bytes) {
  const StorageId storage = engine().AddOutside(bytes);
  if (history_ != nullptr) history_->NewSource(storage, false);
  if (log_ != nullptr) log_->Add(SessionEvent::kSource, storage, -1, bytes);
  return storage;
}

void SessionCore::MakePermanent(StorageId storage) {
  if (history_ != nullptr) history_->Taken(storage);
  engine().MakePermanent(storage);
  Drain();
}

void SessionCore::Record(History* history, bool follow) {
  history_ = history;
  history->Begin(follow);
}

void SessionCore::Clear() {
  history_ = nullptr;
  log_ = nullptr;
  while (!views_.empty()) DropViews(views_.begin()->first);
  for (Held& held : held_) Keep(&held.array, held.key, held.place);
  held_.clear();
  recipes_.clear();
  spare_recipes_.clear();
  donated_.clear();
  recomputed_.clear();
  annotate_.reset();
  dead_->clear();
}

}  // namespace coop::python
