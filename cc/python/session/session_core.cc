#include "cc/python/session/session_core.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cc/python/engine/engine_bindings.h"
#include "cc/python/support/py_objects.h"
#include "cc/python/support/scoped_context.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// NumPy's arrays without dimensions: given every time, too, but as they are now; whoever has them
// may write into them.
bool IsScalarArray(nb::handle x, nb::handle ndarray) {
  return PyObject_TypeCheck(x.ptr(), reinterpret_cast<PyTypeObject*>(ndarray.ptr())) != 0 &&
         nb::cast<int64_t>(x.attr("ndim")) == 0;
}

}  // namespace

SessionCore::SessionCore(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
                         double expensive_seconds_per_byte, nb::object pool, nb::object cells,
                         nb::object load, nb::tuple load_arguments, nb::object operand_key,
                         nb::object prepared, bool fast, bool roomy, double max_recompute)
    : PyEngine({.capacity_bytes = capacity_bytes,
                .alignment_bytes = alignment_bytes,
                .policy = policy,
                .expensive_seconds_per_byte = expensive_seconds_per_byte,
                .timer = &SteadySeconds,
                .costs_from_first_search = roomy,
                .max_recompute = max_recompute,
                .may_move = true}),
      pool_(std::move(pool)),
      cells_owner_(std::move(cells)),
      cells_(nb::cast<SlotCells&>(cells_owner_)),
      load_(std::move(load)),
      load_arguments_(std::move(load_arguments)),
      operand_key_(std::move(operand_key)),
      prepared_owner_(std::move(prepared)),
      prepared_(nb::cast<PreparedOperations&>(prepared_owner_)),
      ndarray_(nb::module_::import_("numpy").attr("ndarray")),
      fast_(fast),
      direct_(fast && !policy.evict_always),
      roomy_(roomy),
      dead_(std::make_shared<DeadList>()) {
  cells_.places.Begin();
}

// --- Running ---

nb::object SessionCore::Apply(nb::handle session, nb::handle primitive, nb::handle operands,
                              nb::handle params, nb::handle context) {
  const nb::object owner = prepared_.Find(operand_key_, primitive, operands, params, context);
  if (!owner.is_valid()) return nb::none();
  return owner.is_none() ? nb::bool_(false) : Run(session, owner, operands);
}

nb::object SessionCore::Run(nb::handle session, nb::handle owner, nb::handle operands) {
  Prepared& prepared = *nb::inst_ptr<Prepared>(owner);
  if (prepared.identity || prepared.view) {
    nb::object result = WithoutRunning(prepared, Sequence(operands)[0]);
    if (result.is_valid()) return result;
  }
  if (interrupts != nullptr && !interrupts->consumed) {
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    interrupts->Check();
  }
  if (direct_ && history_ == nullptr && !launches_are_checked) {
    nb::object results = RunDirectly(session, owner, operands);
    if (results.is_valid()) return results;
  }
  std::vector<nb::object> made = ReadOperands(session, prepared, operands);
  CollectDead();
  MakeRoom(session, prepared.slots, prepared.outside_bytes);
  specs_.assign(prepared.outputs.begin(), prepared.outputs.end());
  Prepared::Form* const overwriting =
      prepared.in_place.empty() ? nullptr : Overwriting(session, owner, operands);
  if (overwriting != nullptr) MakeRoom(session, *overwriting, prepared.outside_bytes);
  const OperationId operation = Submit(session, owner);
  recipes_[static_cast<size_t>(operation)]->overwriting = overwriting;
  made.clear();
  nb::list results;
  const bool any_outside = prepared.outside_bytes > 0;
  try {
    // Before the launch, which takes the caches that what is needed for it is in.
    AppendResults(prepared, &results);
    CarryOut(session);
  } catch (...) {
    for (const nb::handle result : results) ValueOf(result).storage = kNone;
    if (history_ != nullptr) history_->Break(&engine());
    engine().Forget(operation);
    Drain();
    DropRecipe(operation);
    throw;
  }
  if (overwriting != nullptr) {
    Consume(operands, inputs_[static_cast<size_t>(specs_[0].in_place_input)]);
  }
  for (size_t k = 0; any_outside && k < outputs_.size(); ++k) {
    if (specs_[k].outside) NoteOutside(outputs_[k], specs_[k].bytes);
  }
  Drain();
  return results;
}

void SessionCore::AppendResults(const Prepared& prepared, nb::list* results) {
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const auto index = static_cast<size_t>(outputs_[k]);
    if (made_keys_.size() <= index) made_keys_.resize(index + 1, -1);
    made_keys_[index] = prepared.out_keys[k];
    const nb::handle aval = PyTuple_GET_ITEM(prepared.out_avals.ptr(), static_cast<Py_ssize_t>(k));
    results->append(NewValue(outputs_[k], aval, prepared.out_keys[k]));
  }
}

nb::object SessionCore::WithoutRunning(const Prepared& prepared, nb::handle first) {
  if (!IsValue(first)) return {};
  const Value& value = ValueOf(first);
  if (!prepared.identity && IsOutside(value.storage)) return {};
  const nb::handle aval = PyTuple_GET_ITEM(prepared.out_avals.ptr(), 0);
  nb::list results;
  if (prepared.identity && value.aval.is(aval)) {
    results.append(first);
  } else {
    results.append(Alias(value.storage, aval, prepared.out_keys[0]));
  }
  return results;
}

std::vector<nb::object> SessionCore::ReadOperands(nb::handle session, const Prepared& prepared,
                                                  nb::handle operands) {
  const Sequence given(operands);
  std::vector<nb::object> made;
  refs_.clear();
  inputs_.clear();
  for (const int32_t position : prepared.selection) {
    const nb::handle x = given[static_cast<size_t>(position)];
    nb::handle value = x;
    if (!IsValue(x) && !IsNumber(x)) {
      nb::object own = prepared_.scalars().Has(x)   ? prepared_.scalars().CopyOf(x)
                       : IsScalarArray(x, ndarray_) ? x.attr("copy")()
                                                    : session.attr("_on_operand")(x);
      if (!own.is_none()) value = made.emplace_back(std::move(own));
    }
    if (IsValue(value)) {
      const Value& operand = ValueOf(value);
      refs_.push_back({operand.storage, operand.key, {}});
      inputs_.push_back(operand.storage);
    } else {
      refs_.push_back({kNone, -1, nb::borrow(value)});
    }
  }
  return made;
}

OperationId SessionCore::Submit(nb::handle session, nb::handle owner) {
  Prepared& prepared = *nb::inst_ptr<Prepared>(owner);
  const auto what = reinterpret_cast<uintptr_t>(&prepared);
  if (history_ != nullptr) history_->Expect(&engine(), what, inputs_, &specs_);
  const OperationId operation =
      engine().AddOperation(inputs_, specs_, prepared.cost_seconds, prepared.recomputable);
  engine().OutputsOf(operation, &outputs_);
  // What is recorded was planned without.
  if (treasures && (history_ == nullptr || !history_->follows()) && ComesOfTreasure()) {
    for (const StorageId output : outputs_) engine().Treasure(output);
  }
  if (history_ != nullptr) {
    history_->Added(&engine(), what, inputs_, outputs_, specs_, prepared.cost_seconds,
                    prepared.recomputable);
  }
  bool fits = false;
  incoming_bytes_ = prepared.outside_bytes;
  try {
    fits = Ask([&] { return engine().Run(operation); });
  } catch (...) {
    if (history_ != nullptr) history_->Break(&engine());
    engine().Forget(operation);
    Drain();
    throw;
  }
  if (!fits) {
    if (history_ != nullptr) history_->Break(&engine());
    const Failure failure = engine().failure();
    engine().Forget(operation);
    Drain();
    session.attr("_on_no_space")(owner, nb::cast(failure));
    throw std::logic_error("invariant: _on_no_space raises");
  }
  KeepRecipe(owner, operation);
  return operation;
}

bool SessionCore::ComesOfTreasure() const {
  return std::any_of(inputs_.begin(), inputs_.end(),
                     [&](StorageId input) { return engine().IsTreasured(input); });
}

void SessionCore::KeepRecipe(nb::handle owner, OperationId operation) {
  std::unique_ptr<Recipe> recipe;
  if (spare_recipes_.empty()) {
    recipe = std::make_unique<Recipe>();
  } else {
    recipe = std::move(spare_recipes_.back());
    spare_recipes_.pop_back();
  }
  recipe->prepared = nb::inst_ptr<Prepared>(owner);
  recipe->owner = nb::borrow(owner);
  recipe->refs.swap(refs_);
  recipe->outputs = outputs_;
  const auto index = static_cast<size_t>(operation);
  if (recipes_.size() <= index) recipes_.resize(index + 1);
  recipes_[index] = std::move(recipe);
}

void SessionCore::DropRecipe(OperationId operation) {
  if (static_cast<size_t>(operation) >= recipes_.size()) return;
  std::unique_ptr<Recipe> recipe = std::move(recipes_[static_cast<size_t>(operation)]);
  if (recipe == nullptr) return;
  recipe->owner.reset();
  recipe->refs.clear();
  recipe->outputs.clear();
  spare_recipes_.push_back(std::move(recipe));
}

void SessionCore::MakeRoom(nb::handle session, Prepared::Form& form, int64_t incoming) {
  if (form.call == nullptr) {
    // An output that XLA declines to place counts as workspace from its first launch on.
    form.workspace_bytes = nb::cast<int64_t>(form.executable.attr("workspace_bytes"));
    const nb::object obedient = form.executable.attr("obedient_call");
    if (!obedient.is_none()) form.call = nb::inst_ptr<CompiledCall>(obedient);
  }
  if (form.workspace_bytes > workspace_bytes ||
      outside_bytes + incoming + workspace_bytes > reserved_bytes) {
    session.attr("_on_room_needed")(form.workspace_bytes, incoming);
  }
}

void SessionCore::CarryOut(nb::handle session) {
  // Copied: the engine's lists are those of its last transaction, and a launch may run anything.
  actions_ = engine().actions();
  placements_ = engine().placements();
  size_t done = 0;
  try {
    for (; done < actions_.size(); ++done) {
      const Action& action = actions_[done];
      if (action.kind == ActionKind::kRun) {
        Recipe& recipe = *recipes_[static_cast<size_t>(action.id)];
        if (log_ != nullptr) log_->Launch(recipe.owner, action.recompute);
        if (action.recompute) {
          auto& [owner, count] = recomputed_[recipe.owner.ptr()];
          if (count++ == 0) owner = recipe.owner;
        }
        const ScopedContext annotated(
            annotate_.is_valid() && action.recompute ? annotate_(recipe.owner, 0) : nb::object());
        Launch(session, recipe, placements_.data() + action.first_placement, action.recompute);
      } else if (action.kind == ActionKind::kMove) {
        Move(session, action.id, placements_[static_cast<size_t>(action.first_placement)].offset);
      } else {
        const bool evicts = action.kind == ActionKind::kEvict;
        const ScopedContext annotated(annotate_.is_valid() && evicts
                                          ? annotate_(nb::none(), engine().BytesOf(action.id))
                                          : nb::object());
        Drop(action.id, evicts ? SessionEvent::kEvicted : SessionEvent::kDropped);
      }
    }
  } catch (...) {
    const size_t counted = engine().Abort(done);
    for (; done < counted; ++done) Drop(actions_[done].id);
    throw;
  }
}

void SessionCore::Bring(nb::handle session, StorageId storage) {
  if (history_ != nullptr) {
    CollectDead();
    history_->Read(&engine(), storage);
  }
  if (Holds(storage)) return;
  CollectDead();
  incoming_bytes_ = 0;
  if (!Ask([&] { return engine().Materialize(storage); })) {
    if (history_ != nullptr) history_->Break(&engine());
    session.attr("_on_no_space")(nb::none(), nb::cast(engine().failure()));
    throw std::logic_error("invariant: _on_no_space raises");
  }
  try {
    CarryOut(session);
  } catch (...) {
    if (history_ != nullptr) history_->Break(&engine());
    Drain();
    throw;
  }
  Drain();
}

bool SessionCore::ReserveRoom(nb::handle session, int64_t bytes) {
  if (!engine().Reserve(bytes)) return false;
  CarryOut(session);
  Drain();
  reserved_bytes = bytes;
  LogReserved();
  return true;
}

void SessionCore::LogReserved() {
  if (log_ == nullptr) return;
  log_->Add(SessionEvent::kUnreserved, kNone);
  for (const Range& block : engine().ReservedBlocks()) {
    log_->Add(SessionEvent::kReserved, kNone, block.offset, block.bytes);
  }
}

bool SessionCore::GiveUp() {
  if (history_ == nullptr || !history_->GiveUp(&engine())) return false;
  ReleaseDue();
  return true;
}

bool SessionCore::GiveBackRoom() {
  // What was beside the pool at its peak stays reserved: the peak is what a budget has to hold.
  const int64_t needed =
      std::max(peak_outside_bytes, outside_bytes + incoming_bytes_) + workspace_bytes;
  if (roomy_ || reserved_bytes - needed < engine().options().alignment_bytes) return false;
  engine().Unreserve();
  if (!engine().Reserve(needed)) throw std::logic_error("invariant: there was more room before");
  reserved_bytes = needed;
  LogReserved();
  return true;
}

void SessionCore::Hint(StorageId storage) {
  if (++HeldOf(storage).hints < engine().RefsOf(storage)) return;  // a view of it may be read
  CollectDead();
  if (history_ != nullptr) history_->Discarded(storage);
  if (engine().Discard(storage)) Drain();
}

void SessionCore::ReleaseDue() {
  if (history_ == nullptr || !history_->HasDue()) return;
  for (const StorageId storage : history_->TakeDue()) engine().Release(storage);
  Drain();
}

void SessionCore::CollectDead() {
  ReleaseDue();
  if (dead_->empty()) return;
  collected_.clear();
  collected_.swap(*dead_);
  for (const StorageId storage : collected_) Release(storage);
  Drain();
}

void SessionCore::Release(StorageId storage) {
  const bool last = engine().RefsOf(storage) == 1;
  if (last && history_ != nullptr && history_->Released(storage)) return;
  engine().Release(storage);
}

void SessionCore::Drain() {
  if (engine().freed().empty() && engine().retired().empty()) return;
  gone_storages_ = engine().freed();
  gone_operations_ = engine().retired();
  engine().ClearFreed();
  for (const StorageId storage : gone_storages_) Drop(storage);
  for (const OperationId operation : gone_operations_) DropRecipe(operation);
}

}  // namespace coop::python
