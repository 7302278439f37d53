#include "cc/python/engine/action_types.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace coop::python {
namespace {

struct Run {
  OperationId operation = kNone;
  bool recompute = false;
  std::vector<Placement> placements;
  friend bool operator==(const Run&, const Run&) = default;
};

struct Evict {
  StorageId storage = kNone;
  friend bool operator==(const Evict&, const Evict&) = default;
};

struct Drop {
  StorageId storage = kNone;
  friend bool operator==(const Drop&, const Drop&) = default;
};

nb::object PlacementTuple(const Run& run) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(run.placements.size())));
  if (!tuple.is_valid()) nb::raise_python_error();
  for (size_t i = 0; i < run.placements.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                     nb::cast(run.placements[i]).release().ptr());
  }
  return tuple;
}

nb::tuple Fields(const Placement& p) {
  return nb::make_tuple(p.storage, p.offset, p.in_place_input);
}
nb::tuple Fields(const Run& run) {
  return nb::make_tuple(run.operation, run.recompute, PlacementTuple(run));
}
nb::tuple Fields(const Evict& evict) { return nb::make_tuple(evict.storage); }
nb::tuple Fields(const Drop& drop) { return nb::make_tuple(drop.storage); }

// What makes a class one of values. `form` is its representation, a format of its fields.
template <typename T>
void AddValueMethods(nb::class_<T>& type, const char* form) {
  type.def("__eq__",
           [](const T& self, nb::handle other) -> nb::object {
             if (!nb::isinstance<T>(other)) return nb::borrow(Py_NotImplemented);
             return nb::bool_(self == nb::cast<const T&>(other));
           })
      .def("__hash__",
           [](const T& self) {
             const Py_hash_t hash = PyObject_Hash(Fields(self).ptr());
             if (hash == -1) nb::raise_python_error();
             return hash;
           })
      .def("__repr__", [form](const T& self) { return nb::str(form).format(*Fields(self)); })
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(self.type(), Fields(nb::cast<const T&>(self)));
      });
}

}  // namespace

void BindActions(nb::module_& module) {
  nb::class_<Placement> placement(module, "Placement",
                                  "Where an output of a run lies.\n\n"
                                  "Attributes:\n"
                                  "  storage: the storage, -1 for scratch (free again after the "
                                  "run).\n"
                                  "  offset: its place in the pool in bytes, -1 for outside.\n"
                                  "  in_place_input: position of the input whose block it takes "
                                  "over, -1 for none.");
  placement
      .def(
          "__init__",
          [](Placement* self, StorageId storage, int64_t offset, int32_t in_place_input) {
            new (self) Placement{storage, offset, in_place_input};
          },
          nb::arg("storage"), nb::arg("offset"), nb::arg("in_place_input") = kNone)
      .def_ro("storage", &Placement::storage)
      .def_ro("offset", &Placement::offset)
      .def_ro("in_place_input", &Placement::in_place_input);
  placement.attr("__match_args__") = nb::make_tuple("storage", "offset", "in_place_input");
  AddValueMethods(placement, "Placement(storage={}, offset={}, in_place_input={})");

  nb::class_<Run> run(module, "Run",
                      "Run an operation.\n\n"
                      "Attributes:\n"
                      "  operation: its index in the program.\n"
                      "  recompute: whether it has run before.\n"
                      "  placements: a `Placement` for each output, in order.");
  run.def(
         "__init__",
         [](Run* self, OperationId operation, bool recompute, std::vector<Placement> placements) {
           new (self) Run{operation, recompute, std::move(placements)};
         },
         nb::arg("operation"), nb::arg("recompute"), nb::arg("placements"))
      .def_ro("operation", &Run::operation)
      .def_ro("recompute", &Run::recompute)
      .def_prop_ro("placements", &PlacementTuple);
  run.attr("__match_args__") = nb::make_tuple("operation", "recompute", "placements");
  AddValueMethods(run, "Run(operation={}, recompute={}, placements={})");

  nb::class_<Evict> evict(module, "Evict",
                          "Drop the memory of a storage, which may be computed again.\n\n"
                          "Attributes:\n"
                          "  storage: its index in the program.");
  evict
      .def(
          "__init__", [](Evict* self, StorageId storage) { new (self) Evict{storage}; },
          nb::arg("storage"))
      .def_ro("storage", &Evict::storage);
  evict.attr("__match_args__") = nb::make_tuple("storage");
  AddValueMethods(evict, "Evict(storage={})");

  nb::class_<Drop> drop(module, "Drop",
                        "Drop the memory of a storage that nothing reads any more.\n\n"
                        "Attributes:\n"
                        "  storage: its index in the program.");
  drop.def(
          "__init__", [](Drop* self, StorageId storage) { new (self) Drop{storage}; },
          nb::arg("storage"))
      .def_ro("storage", &Drop::storage);
  drop.attr("__match_args__") = nb::make_tuple("storage");
  AddValueMethods(drop, "Drop(storage={})");
}

nb::list ActionList(std::span<const Action> actions, std::span<const Placement> placements) {
  nb::list list;
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::kRun: {
        const auto placed = placements.subspan(static_cast<size_t>(action.first_placement),
                                               static_cast<size_t>(action.placement_count));
        list.append(nb::cast(Run{action.id, action.recompute, {placed.begin(), placed.end()}}));
        break;
      }
      case ActionKind::kEvict:
        list.append(nb::cast(Evict{action.id}));
        break;
      case ActionKind::kDrop:
        list.append(nb::cast(Drop{action.id}));
        break;
      case ActionKind::kMove:
        throw std::logic_error("invariant: only sessions move storages");
    }
  }
  return list;
}

}  // namespace coop::python
