#include "cc/python/session_core.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cc/python/engine_bindings.h"
#include "cc/python/objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// Python's, JAX's literals, which derive from them, included: given as they are every time. Others
// are recognised in Python.
bool IsNumber(nb::handle x) { return PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr()); }

// NumPy's arrays without dimensions, JAX's literals included: given every time, too, but as they
// are now; whoever has them may write into them.
bool IsScalarArray(nb::handle x, nb::handle ndarray) {
  return PyObject_TypeCheck(x.ptr(), reinterpret_cast<PyTypeObject*>(ndarray.ptr())) != 0 &&
         nb::cast<int64_t>(x.attr("ndim")) == 0;
}

}  // namespace

SessionCore::SessionCore(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
                         double expensive_seconds_per_byte, nb::object pool, nb::object cells,
                         nb::object load, nb::tuple load_arguments, nb::object operand_key,
                         nb::dict prepared, bool fast)
    : PyEngine(capacity_bytes, alignment_bytes, policy, expensive_seconds_per_byte, true),
      pool_(std::move(pool)),
      cells_owner_(std::move(cells)),
      cells_(nb::cast<SlotCells&>(cells_owner_)),
      load_(std::move(load)),
      load_arguments_(std::move(load_arguments)),
      operand_key_(std::move(operand_key)),
      prepared_(std::move(prepared)),
      ndarray_(nb::module_::import_("numpy").attr("ndarray")),
      fast_(fast),
      dead_(std::make_shared<DeadList>()) {}

// --- Running ---

nb::object OperationKey(nb::handle operand_key, nb::handle primitive, nb::handle operands,
                        nb::handle params, nb::handle context) {
  const Sequence given(operands);
  const size_t count = given.size();
  const nb::object keys = Steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  bool repeated = false;
  for (size_t i = 0; i < count; ++i) {
    const nb::handle x = given[i];
    nb::object key = IsValue(x) ? Steal(PyLong_FromLong(nb::inst_ptr<Value>(x)->key))
                                : nb::steal(PyObject_CallOneArg(operand_key.ptr(), x.ptr()));
    if (!key.is_valid()) nb::raise_python_error();
    PyTuple_SET_ITEM(keys.ptr(), static_cast<Py_ssize_t>(i), key.release().ptr());
    for (size_t j = 0; j < i && !repeated; ++j) repeated = given[j].is(x);
  }
  nb::object positions = nb::none();  // where each operand is first seen, if any is repeated
  if (repeated) {
    positions = Steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t i = 0; i < count; ++i) {
      size_t first = 0;
      while (!given[first].is(given[i])) ++first;
      PyTuple_SET_ITEM(positions.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromSize_t(first));
    }
  }
  const nb::object items = Steal(PyTuple_New(2 * PyDict_GET_SIZE(params.ptr())));
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t place = 0, next = 0;
  while (PyDict_Next(params.ptr(), &place, &name, &value)) {
    PyTuple_SET_ITEM(items.ptr(), next++, Py_NewRef(name));
    PyTuple_SET_ITEM(items.ptr(), next++, Py_NewRef(value));
  }
  return Steal(
      PyTuple_Pack(5, primitive.ptr(), items.ptr(), keys.ptr(), positions.ptr(), context.ptr()));
}

nb::object SessionCore::Apply(nb::handle session, nb::handle primitive, nb::handle operands,
                              nb::handle params) {
  const nb::object key = OperationKey(operand_key_, primitive, operands, params, nb::none());
  PyObject* const found = PyDict_GetItemWithError(prepared_.ptr(), key.ptr());
  if (found == nullptr) {
    if (PyErr_Occurred() == nullptr) return nb::none();
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
    PyErr_Clear();  // a parameter without hash: the session has another way
    return nb::none();
  }
  if (found == Py_None) return nb::none();
  const nb::object owner = nb::borrow(found);  // the cache may be emptied meanwhile
  return Run(session, owner, operands);
}

nb::object SessionCore::Run(nb::handle session, nb::handle owner, nb::handle operands) {
  Prepared& prepared = *nb::inst_ptr<Prepared>(owner);
  if (prepared.identity || prepared.view) {
    nb::object result = WithoutRunning(prepared, Sequence(operands)[0]);
    if (result.is_valid()) return result;
  }
  if (interruptible && !consumed) session.attr("_on_step")();
  std::vector<nb::object> made = ReadOperands(session, prepared, operands);
  CollectDead();
  MakeRoom(session, prepared.slots, prepared.outside_bytes);
  specs_ = prepared.spec.outputs;
  Prepared::Form* const overwriting =
      prepared.in_place.empty() ? nullptr : Overwriting(session, owner, operands);
  if (overwriting != nullptr) MakeRoom(session, *overwriting, prepared.outside_bytes);
  const OperationId operation = Submit(session, owner);
  recipes_[static_cast<size_t>(operation)]->overwriting = overwriting;
  made.clear();
  try {
    CarryOut(session);
  } catch (...) {
    if (history_ != nullptr) history_->Break(&engine());
    engine().Forget(operation);
    Drain();
    recipes_[static_cast<size_t>(operation)].reset();
    throw;
  }
  const Sequence avals(prepared.out_avals);
  nb::list results;
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const OutputSpec& output = prepared.spec.outputs[k];
    const int32_t taken = specs_[k].in_place_input;
    if (taken != kNone) Consume(operands, inputs_[static_cast<size_t>(taken)]);
    if (output.outside) NoteOutside(outputs_[k], output.bytes);
    const auto index = static_cast<size_t>(outputs_[k]);
    if (made_keys_.size() <= index) made_keys_.resize(index + 1, -1);
    made_keys_[index] = prepared.out_keys[k];
    results.append(NewValue(outputs_[k], avals[k], prepared.out_keys[k]));
  }
  Drain();
  return results;
}

nb::object SessionCore::WithoutRunning(const Prepared& prepared, nb::handle first) {
  if (!IsValue(first)) return {};
  const Value& value = *nb::inst_ptr<Value>(first);
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
      nb::object own =
          IsScalarArray(x, ndarray_) ? x.attr("copy")() : session.attr("_on_operand")(x);
      if (!own.is_none()) value = made.emplace_back(std::move(own));
    }
    if (IsValue(value)) {
      const Value& operand = *nb::inst_ptr<Value>(value);
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
  const OperationId operation = engine().AddOperation(inputs_, specs_, prepared.spec.cost_seconds,
                                                      prepared.spec.recomputable);
  engine().OutputsOf(operation, &outputs_);
  if (history_ != nullptr) {
    history_->Added(&engine(), what, inputs_, outputs_, specs_, prepared.spec.cost_seconds,
                    prepared.spec.recomputable);
  }
  bool fits = false;
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
    session.attr("_on_no_space")(owner, FailureDict(failure));
    throw std::logic_error("invariant: _on_no_space raises");
  }
  auto recipe = std::make_unique<Recipe>();
  recipe->prepared = &prepared;
  recipe->owner = nb::borrow(owner);
  recipe->refs.swap(refs_);
  recipe->outputs = outputs_;
  const auto index = static_cast<size_t>(operation);
  if (recipes_.size() <= index) recipes_.resize(index + 1);
  recipes_[index] = std::move(recipe);
  return operation;
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
        Launch(session, *recipes_[static_cast<size_t>(action.id)],
               placements_.data() + action.first_placement, action.recompute);
      } else {
        Drop(action.id);
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
  if (!Ask([&] { return engine().Materialize(storage); })) {
    if (history_ != nullptr) history_->Break(&engine());
    session.attr("_on_no_space")(nb::none(), FailureDict(engine().failure()));
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
  return true;
}

void SessionCore::Hint(StorageId storage) {
  if (++HeldOf(storage).hints < engine().RefsOf(storage)) return;  // a view of it may be read
  CollectDead();
  if (history_ != nullptr) history_->Discarded(storage);
  if (engine().Discard(storage)) Drain();
}

void SessionCore::CollectDead() {
  if (history_ != nullptr && history_->HasDue()) {
    for (const StorageId storage : history_->TakeDue()) engine().Release(storage);
    Drain();
  }
  if (dead_->empty()) return;
  const DeadList dead = std::exchange(*dead_, {});
  for (const StorageId storage : dead) Release(storage);
  Drain();
}

void SessionCore::Release(StorageId storage) {
  const bool last = engine().RefsOf(storage) == 1;
  if (last && history_ != nullptr && history_->Released(storage)) return;
  engine().Release(storage);
}

void SessionCore::Drain() {
  if (engine().freed().empty() && engine().retired().empty()) return;
  const std::vector<StorageId> freed = engine().freed();
  const std::vector<OperationId> retired = engine().retired();
  engine().ClearFreed();
  for (const StorageId storage : freed) Drop(storage);
  for (const OperationId operation : retired) {
    if (static_cast<size_t>(operation) < recipes_.size()) {
      recipes_[static_cast<size_t>(operation)].reset();
    }
  }
}

}  // namespace coop::python
