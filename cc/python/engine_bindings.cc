#include "cc/python/engine_bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/engine.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// The module's NoSpaceError; one per process, as the module is.
PyObject* no_space_error = nullptr;

[[noreturn]] void RaiseNoSpace(const Failure& failure) {
  const char* const what = failure.reason == FailureReason::kThrashing
                               ? "recomputation did not come to an end"
                               : "no free and evictable neighbours are large enough";
  nb::object error = nb::steal(PyObject_CallFunction(no_space_error, "s", what));
  if (!error.is_valid()) nb::raise_python_error();
  error.attr("failure") = FailureDict(failure);
  PyErr_SetObject(no_space_error, error.ptr());
  nb::raise_python_error();
}

const char* StateName(StorageState state) {
  switch (state) {
    case StorageState::kUnborn:
      return "unborn";
    case StorageState::kResident:
      return "resident";
    case StorageState::kEvicted:
      return "evicted";
    case StorageState::kConsumed:
      return "consumed";
    case StorageState::kDead:
      break;
  }
  return "dead";
}

// What does not change between the calls of one compiled operation.
struct OperationSpec {
  std::vector<OutputSpec> outputs;
  double cost_seconds;
  bool recomputable;
};

OperationSpec MakeOperationSpec(const std::vector<int64_t>& output_bytes,
                                const std::vector<bool>& output_outside,
                                const std::vector<int32_t>& in_place, double cost_seconds,
                                bool recomputable) {
  if (output_outside.size() != output_bytes.size() || in_place.size() != output_bytes.size()) {
    throw std::invalid_argument(
        "output_bytes, output_outside and in_place must have one entry an output");
  }
  if (!std::isfinite(cost_seconds) || cost_seconds < 0) {
    throw std::invalid_argument("cost_seconds must be finite and >= 0");
  }
  OperationSpec spec{{}, cost_seconds, recomputable};
  for (size_t i = 0; i < output_bytes.size(); ++i) {
    if (output_bytes[i] < 0) throw std::invalid_argument("output_bytes must be >= 0");
    spec.outputs.push_back({output_bytes[i], output_outside[i], in_place[i]});
  }
  return spec;
}

// The engine and the buffers that its calls reuse.
class PyEngine {
 public:
  PyEngine(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
           double expensive_seconds_per_byte, bool timed)
      : engine_(EngineOptions{capacity_bytes, alignment_bytes, policy, expensive_seconds_per_byte,
                              timed ? &SteadySeconds : std::function<double()>()}) {}

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const Engine& engine() const { return engine_; }

  nb::object Submit(nb::handle inputs, const OperationSpec& spec) {
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

  // Runs again an operation whose run was aborted.
  nb::object Rerun(OperationId operation) {
    engine_.OutputsOf(operation, &outputs_);
    if (!engine_.Run(operation)) RaiseNoSpace(engine_.failure());
    return OwnRun(operation);
  }

  // What a call has let go of, for the executor to drop; None where nothing.
  nb::object TakeFreed() {
    Collect();
    if (freed_.empty()) return nb::none();
    return nb::cast(std::exchange(freed_, {}));
  }

  nb::object TakeRetired() {
    Collect();
    if (retired_.empty()) return nb::none();
    return nb::cast(std::exchange(retired_, {}));
  }

  // The last transaction's actions but the last `skipped`; None where there are none.
  [[nodiscard]] nb::object Actions(size_t skipped) const {
    const std::vector<Action>& actions = engine_.actions();
    if (actions.size() <= skipped) return nb::none();
    nb::list list;
    for (size_t i = 0; i + skipped < actions.size(); ++i) {
      const Action& action = actions[i];
      const int kind = static_cast<int>(action.kind);
      if (action.kind == ActionKind::kRun) {
        list.append(nb::make_tuple(kind, action.id, PlacementTuple(engine_.placements(), action)));
      } else {
        list.append(nb::make_tuple(kind, action.id));
      }
    }
    return list;
  }

 private:
  // The engine's lists are valid until the next storage or operation is added.
  void Collect() {
    const std::vector<StorageId>& freed = engine_.freed();
    const std::vector<OperationId>& retired = engine_.retired();
    if (freed.empty() && retired.empty()) return;
    freed_.insert(freed_.end(), freed.begin(), freed.end());
    retired_.insert(retired_.end(), retired.begin(), retired.end());
    engine_.ClearFreed();
  }

  void ReadInputs(nb::handle inputs) {
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

  void CheckStorage(long id) const {
    if (id < 0 || id > std::numeric_limits<StorageId>::max()) {
      throw std::invalid_argument("storage ids are >= 0");
    }
  }

  [[nodiscard]] nb::object OwnRun(OperationId operation) const {
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

  [[nodiscard]] const Placement& PlacementOf(const Action& action, Py_ssize_t output) const {
    return engine_.placements()[static_cast<size_t>(action.first_placement + output)];
  }

  Engine engine_;
  std::vector<StorageId> inputs_;
  std::vector<StorageId> outputs_;
  // Taken from the engine, not yet by the executor.
  std::vector<StorageId> freed_;
  std::vector<OperationId> retired_;
};

}  // namespace

void BindEngine(nb::module_& module) {
  BindPolicy(module);

  no_space_error = PyErr_NewExceptionWithDoc(
      "coop_jax._core.NoSpaceError",
      "No room for a request; nothing has changed. `failure` says what was asked for and what "
      "there was.",
      PyExc_RuntimeError, nullptr);
  module.attr("NoSpaceError") = nb::borrow(no_space_error);

  nb::class_<OperationSpec>(module, "OperationSpec", "An operation's outputs and cost; reused.")
      .def(
          "__init__",
          [](OperationSpec* self, const std::vector<int64_t>& output_bytes,
             const std::vector<bool>& output_outside, const std::vector<int32_t>& in_place,
             double cost_seconds, bool recomputable) {
            new (self) OperationSpec(MakeOperationSpec(output_bytes, output_outside, in_place,
                                                       cost_seconds, recomputable));
          },
          nb::arg("output_bytes"), nb::arg("output_outside"), nb::arg("in_place"),
          nb::arg("cost_seconds"), nb::arg("recomputable"))
      .def_ro("cost_seconds", &OperationSpec::cost_seconds)
      .def_ro("recomputable", &OperationSpec::recomputable);

  nb::class_<PyEngine> engine(module, "Engine", "The planner: placement, eviction, recomputation.");
  engine
      .def(nb::init<int64_t, int64_t, const Policy&, double, bool>(), nb::arg("capacity_bytes"),
           nb::arg("alignment_bytes"), nb::arg("policy"), nb::arg("expensive_seconds_per_byte"),
           nb::arg("timed") = false)
      .def("submit", &PyEngine::Submit, nb::arg("inputs"), nb::arg("spec"))
      .def("rerun", &PyEngine::Rerun, nb::arg("operation"))
      .def("freed", &PyEngine::TakeFreed)
      .def("retired", &PyEngine::TakeRetired)
      .def(
          "release",
          [](PyEngine& self, StorageId storage) {
            self.engine().Release(storage);
            return self.TakeFreed();
          },
          nb::arg("storage"))
      .def(
          "retain", [](PyEngine& self, StorageId storage) { self.engine().Retain(storage); },
          nb::arg("storage"))
      .def(
          "make_permanent",
          [](PyEngine& self, StorageId storage) {
            self.engine().MakePermanent(storage);
            return self.TakeFreed();
          },
          nb::arg("storage"))
      .def(
          "materialize",
          [](PyEngine& self, StorageId storage) {
            if (!self.engine().Materialize(storage)) RaiseNoSpace(self.engine().failure());
            return self.Actions(0);
          },
          nb::arg("storage"))
      .def(
          "discard",
          [](PyEngine& self, StorageId storage) { return self.engine().Discard(storage); },
          nb::arg("storage"))
      .def("evict_all",
           [](PyEngine& self) {
             self.engine().EvictAll();
             return self.Actions(0);
           })
      .def(
          "abort",
          [](PyEngine& self, size_t actions_done) { return self.engine().Abort(actions_done); },
          nb::arg("actions_done"))
      .def(
          "forget",
          [](PyEngine& self, OperationId operation) {
            self.engine().Forget(operation);
            return self.TakeFreed();
          },
          nb::arg("operation"))
      .def(
          "add_foreign",
          [](PyEngine& self, int64_t offset, int64_t bytes, bool donated) {
            return self.engine().AddForeign(offset, bytes, donated);
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::arg("donated"))
      .def(
          "add_outside",
          [](PyEngine& self, int64_t bytes) { return self.engine().AddOutside(bytes); },
          nb::arg("nbytes"))
      .def(
          "add_adopted",
          [](PyEngine& self, int64_t bytes) { return self.engine().AddAdopted(bytes); },
          nb::arg("nbytes"))
      .def(
          "reserve",
          [](PyEngine& self, int64_t bytes) -> nb::object {
            if (!self.engine().Reserve(bytes)) RaiseNoSpace(self.engine().failure());
            return self.Actions(0);
          },
          nb::arg("nbytes"))
      .def("reserved_blocks",
           [](const PyEngine& self) { return RangeList(self.engine().ReservedBlocks()); });
  engine
      .def(
          "offset_of",
          [](const PyEngine& self, StorageId storage) { return self.engine().OffsetOf(storage); },
          nb::arg("storage"))
      .def(
          "bytes_of",
          [](const PyEngine& self, StorageId storage) { return self.engine().BytesOf(storage); },
          nb::arg("storage"))
      .def(
          "refs_of",
          [](const PyEngine& self, StorageId storage) { return self.engine().RefsOf(storage); },
          nb::arg("storage"))
      .def(
          "state_of",
          [](const PyEngine& self, StorageId storage) {
            return StateName(self.engine().StateOf(storage));
          },
          nb::arg("storage"))
      .def(
          "is_permanent",
          [](const PyEngine& self, StorageId storage) {
            return self.engine().IsPermanent(storage);
          },
          nb::arg("storage"))
      .def(
          "is_evictable",
          [](const PyEngine& self, StorageId storage) {
            return self.engine().IsEvictable(storage);
          },
          nb::arg("storage"))
      .def(
          "projected_cost",
          [](const PyEngine& self, StorageId storage) {
            return self.engine().ProjectedCost(storage);
          },
          nb::arg("storage"))
      .def("failure", [](const PyEngine& self) { return FailureDict(self.engine().failure()); })
      .def("reset_peak", [](PyEngine& self) { self.engine().ResetPeak(); })
      .def("stats", [](const PyEngine& self) { return StatsDict(self.engine().stats()); })
      .def("validate", [](const PyEngine& self) { self.engine().Validate(); })
      .def("fingerprint", [](const PyEngine& self) { return self.engine().Fingerprint(); })
      .def_prop_ro("live_storages",
                   [](const PyEngine& self) { return self.engine().live_storages(); })
      .def_prop_ro("live_operations",
                   [](const PyEngine& self) { return self.engine().live_operations(); })
      .def_prop_ro("largest_free_block_bytes",
                   [](const PyEngine& self) { return self.engine().largest_free_block_bytes(); })
      .def_prop_ro("clock_seconds",
                   [](const PyEngine& self) { return self.engine().clock_seconds(); });

  BindProgram(module);
}

}  // namespace coop::python
