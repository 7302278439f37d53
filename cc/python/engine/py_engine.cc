#include "cc/python/engine/py_engine.h"

#include <nanobind/stl/vector.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/python/engine/action_types.h"
#include "cc/python/engine/engine_bindings.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// The module's NoSpaceError; one per process, as the module is.
PyObject* no_space_error = nullptr;

void CheckStorage(long id) {
  if (id < 0 || id > std::numeric_limits<StorageId>::max()) {
    throw std::invalid_argument("storage ids are >= 0");
  }
}

}  // namespace

void BindNoSpaceError(nb::module_& module) {
  no_space_error = PyErr_NewExceptionWithDoc(
      "coop_jax._core.NoSpaceError",
      "No room for a request; nothing has changed. `failure` says what was asked for and what "
      "there was.",
      PyExc_RuntimeError, nullptr);
  module.attr("NoSpaceError") = nb::borrow(no_space_error);
}

void RaiseNoSpace(const Failure& failure) {
  const char* const what = failure.reason == FailureReason::kThrashing
                               ? "recomputation did not come to an end"
                               : "no free and evictable neighbours are large enough";
  nb::object error = nb::steal(PyObject_CallFunction(no_space_error, "s", what));
  if (!error.is_valid()) nb::raise_python_error();
  error.attr("failure") = nb::cast(failure);
  PyErr_SetObject(no_space_error, error.ptr());
  nb::raise_python_error();
}

PyEngine::PyEngine(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
                   double expensive_seconds_per_byte, bool timed, bool costs_from_first_search)
    : engine_(EngineOptions{.capacity_bytes = capacity_bytes,
                            .alignment_bytes = alignment_bytes,
                            .policy = policy,
                            .expensive_seconds_per_byte = expensive_seconds_per_byte,
                            .timer = timed ? &SteadySeconds : std::function<double()>(),
                            .costs_from_first_search = costs_from_first_search}) {}

nb::object PyEngine::Submit(nb::handle inputs, const OperationSpec& spec) {
  ReadInputs(inputs);
  Collect();
  const OperationId operation =
      engine_.AddOperation(inputs_, spec.outputs, spec.cost_seconds, spec.recomputable);
  std::erase(retired_, operation);  // the id is in use again
  engine_.OutputsOf(operation, &outputs_);
  bool done = false;
  try {
    done = engine_.Run(operation);
  } catch (...) {
    engine_.Forget(operation);
    throw;
  }
  if (!done) {
    const Failure failure = engine_.failure();
    engine_.Forget(operation);
    RaiseNoSpace(failure);
  }
  return OwnRun(operation);
}

nb::object PyEngine::Rerun(OperationId operation) {
  engine_.OutputsOf(operation, &outputs_);
  if (!engine_.Run(operation)) RaiseNoSpace(engine_.failure());
  return OwnRun(operation);
}

nb::object PyEngine::TakeFreed() {
  Collect();
  if (freed_.empty()) return nb::none();
  return nb::cast(std::exchange(freed_, {}));
}

nb::object PyEngine::TakeRetired() {
  Collect();
  if (retired_.empty()) return nb::none();
  return nb::cast(std::exchange(retired_, {}));
}

nb::object PyEngine::Actions(size_t skipped) const {
  const std::vector<Action>& actions = engine_.actions();
  if (actions.size() <= skipped) return nb::none();
  return ActionList({actions.data(), actions.size() - skipped}, engine_.placements());
}

// The engine's lists are valid until the next storage or operation is added.
void PyEngine::Collect() {
  const std::vector<StorageId>& freed = engine_.freed();
  const std::vector<OperationId>& retired = engine_.retired();
  if (freed.empty() && retired.empty()) return;
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  retired_.insert(retired_.end(), retired.begin(), retired.end());
  engine_.ClearFreed();
}

void PyEngine::ReadInputs(nb::handle inputs) {
  const nb::object sequence =
      nb::steal(PySequence_Fast(inputs.ptr(), "inputs must be a sequence of storage ids"));
  if (!sequence.is_valid()) nb::raise_python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence.ptr());
  inputs_.clear();
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long id = PyLong_AsLong(PySequence_Fast_GET_ITEM(sequence.ptr(), i));
    if (id == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
    CheckStorage(id);
    inputs_.push_back(static_cast<StorageId>(id));
  }
}

nb::object PyEngine::OwnRun(OperationId operation) const {
  const Action& own = engine_.actions().back();
  const auto count = static_cast<Py_ssize_t>(outputs_.size());
  nb::object outputs = nb::steal(PyTuple_New(count));
  nb::object offsets = nb::steal(PyTuple_New(count));
  if (!outputs.is_valid() || !offsets.is_valid()) nb::raise_python_error();
  bool any_in_place = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Placement& placement = PlacementOf(own, i);
    any_in_place |= placement.in_place_input != kNone;
    PyTuple_SET_ITEM(outputs.ptr(), i, PyLong_FromLong(outputs_[static_cast<size_t>(i)]));
    PyTuple_SET_ITEM(offsets.ptr(), i, PyLong_FromLongLong(placement.offset));
  }
  nb::object in_place = nb::none();
  if (any_in_place) {
    in_place = nb::steal(PyTuple_New(count));
    if (!in_place.is_valid()) nb::raise_python_error();
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyTuple_SET_ITEM(in_place.ptr(), i, PyLong_FromLong(PlacementOf(own, i).in_place_input));
    }
  }
  return nb::make_tuple(operation, std::move(outputs), std::move(offsets), Actions(1),
                        std::move(in_place));
}

const Placement& PyEngine::PlacementOf(const Action& action, Py_ssize_t output) const {
  return engine_.placements()[static_cast<size_t>(action.first_placement + output)];
}

}  // namespace coop::python
