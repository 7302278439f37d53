#include "cc/python/engine/engine_bindings.h"

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

#include "cc/python/engine/action_types.h"
#include "cc/python/engine/py_engine.h"
#include "cc/python/support/names.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr Named<StorageState> kStates[] = {{StorageState::kDead, "dead"},
                                           {StorageState::kUnborn, "unborn"},
                                           {StorageState::kResident, "resident"},
                                           {StorageState::kEvicted, "evicted"},
                                           {StorageState::kConsumed, "consumed"}};

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

}  // namespace

void BindEngine(nb::module_& module) {
  BindPolicy(module);
  BindActions(module);
  BindStats(module);
  BindNoSpaceError(module);

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
            return NameOf(kStates, self.engine().StateOf(storage));
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
      .def("failure", [](const PyEngine& self) -> Failure { return self.engine().failure(); })
      .def("reset_peak", [](PyEngine& self) { self.engine().ResetPeak(); })
      .def("stats", [](const PyEngine& self) -> EngineStats { return self.engine().stats(); })
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
  BindHistory(module);
}

}  // namespace coop::python
