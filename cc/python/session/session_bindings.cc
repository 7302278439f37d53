#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/python/session/session_core.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

bool IsPermutation(std::vector<int32_t> order) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

void InitCompiledCall(CompiledCall* self, nb::object call, std::vector<int32_t> order,
                      std::vector<std::pair<int32_t, nb::object>> slots) {
  if (!IsPermutation(order)) throw std::invalid_argument("order must name each result once");
  for (const auto& [result, spec] : slots) {
    if (result < 0 || static_cast<size_t>(result) >= order.size()) {
      throw std::invalid_argument("a slot is of a result");
    }
    static_cast<void>(nb::cast<const SlotSpec&>(spec));  // raises for anything else
  }
  new (self) CompiledCall{.call = std::move(call),
                          .order = ShortList<int32_t, 2>(std::move(order)),
                          .slots = ShortList<std::pair<int32_t, nb::object>, 1>(std::move(slots))};
}

void InitPrepared(Prepared* self, nb::object executable, nb::object kernel,
                  const OperationSpec& spec, std::vector<int32_t> selection, nb::tuple out_avals,
                  std::vector<int32_t> out_keys, const std::vector<int32_t>& in_place,
                  bool identity, bool view) {
  if (out_avals.size() != out_keys.size() ||
      (!identity && spec.outputs.size() != out_keys.size())) {
    throw std::invalid_argument("spec, out_avals and out_keys must have one entry a result");
  }
  if (!in_place.empty() && out_keys.size() != 1) {
    throw std::invalid_argument("only an operation with one result is in place");
  }
  int64_t outside_bytes = 0;
  for (const OutputSpec& output : spec.outputs) {
    if (output.outside) outside_bytes += RoundUpOutside(output.bytes);
  }
  std::vector<std::pair<int32_t, Prepared::Form>> forms;
  for (const int32_t operand : in_place) {
    if (operand < 0 || static_cast<size_t>(operand) >= selection.size()) {
      throw std::invalid_argument("in_place names operands");
    }
    forms.emplace_back(operand, Prepared::Form{});
  }
  new (self) Prepared{.kernel = std::move(kernel),
                      .out_avals = std::move(out_avals),
                      .identity = identity,
                      .view = view,
                      .recomputable = spec.recomputable,
                      .cost_seconds = spec.cost_seconds,
                      .outputs = ShortList<OutputSpec, 1>(spec.outputs),
                      .selection = ShortList<int32_t, 4>(std::move(selection)),
                      .out_keys = ShortList<int32_t, 2>(std::move(out_keys)),
                      .outside_bytes = outside_bytes,
                      .slots = {.executable = std::move(executable)},
                      .in_place = std::move(forms)};
}

// SessionCore.apply(session, primitive, operands, params, context=None). By hand: nanobind's way
// from Python to a method is longer than what this one does.
PyObject* Apply(PyObject* self, PyObject* const* arguments, Py_ssize_t count) noexcept {
  if (count != 4 && count != 5) {
    PyErr_SetString(PyExc_TypeError,
                    "apply takes a session, a primitive, operands, params and perhaps a context");
    return nullptr;
  }
  try {
    return nb::inst_ptr<SessionCore>(self)
        ->Apply(arguments[0], arguments[1], arguments[2], arguments[3],
                count == 5 ? arguments[4] : Py_None)
        .release()
        .ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

void BindSession(nb::module_& module) {
  BindValue(module);

  nb::class_<CompiledCall>(module, "CompiledCall", "A compiled function that obeys.")
      .def("__init__", &InitCompiledCall, nb::arg("call"), nb::arg("order"), nb::arg("slots"));

  nb::class_<Prepared>(module, "Prepared", "What a primitive on operands of given shapes is.")
      .def("__init__", &InitPrepared, nb::arg("executable").none(), nb::arg("kernel").none(),
           nb::arg("spec"), nb::arg("selection"), nb::arg("out_avals"), nb::arg("out_keys"),
           nb::arg("in_place") = std::vector<int32_t>(), nb::arg("identity") = false,
           nb::arg("view") = false)
      .def_prop_ro("executable", [](const Prepared& self) { return self.slots.executable; })
      .def_ro("kernel", &Prepared::kernel)
      .def_ro("out_avals", &Prepared::out_avals)
      .def_prop_ro("selection", [](const Prepared& self) {
        return std::vector<int32_t>(self.selection.begin(), self.selection.end());
      });

  nb::class_<SlotCells>(module, "SlotCells", "Arrays to be donated to what is written next.")
      .def(nb::init<>())
      .def("__len__", &SlotCells::size);

  module.def(
      "check_launches", [](bool checked) { launches_are_checked = checked; }, nb::arg("checked"),
      "Has launches of this thread's sessions go through Python, or not.");

  nb::class_<SessionLog>(module, "SessionLog", "What a session does, for whoever records it.")
      .def(nb::init<nb::object>(), nb::arg("note_source"))
      .def_prop_ro("rows", &SessionLog::rows)
      .def_prop_ro("prepared", &SessionLog::prepared);

  static std::array<PyMethodDef, 2> methods{{
      {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Apply)), METH_FASTCALL,
       nullptr},
      {nullptr, nullptr, 0, nullptr},
  }};
  static std::array<PyType_Slot, 2> slots{{{Py_tp_methods, methods.data()}, {0, nullptr}}};
  nb::class_<SessionCore, PyEngine>(module, "SessionCore",
                                    "An engine and what a session holds; runs operations.",
                                    nb::type_slots(slots.data()))
      .def(nb::init<int64_t, int64_t, const Policy&, double, nb::object, nb::object, nb::object,
                    nb::tuple, nb::object, nb::object, bool, bool, double>(),
           nb::arg("capacity_bytes"), nb::arg("alignment_bytes"), nb::arg("policy"),
           nb::arg("expensive_seconds_per_byte"), nb::arg("pool"), nb::arg("cells"),
           nb::arg("load"), nb::arg("load_arguments"), nb::arg("operand_key"), nb::arg("prepared"),
           nb::arg("fast"), nb::arg("roomy"), nb::arg("max_recompute"))
      .def("run", &SessionCore::Run, nb::arg("session"), nb::arg("prepared"), nb::arg("operands"))
      .def("bring", &SessionCore::Bring, nb::arg("session"), nb::arg("storage"))
      .def("reserve_room", &SessionCore::ReserveRoom, nb::arg("session"), nb::arg("nbytes"))
      .def("give_up", &SessionCore::GiveUp)
      .def("hint", &SessionCore::Hint, nb::arg("storage"))
      .def("collect", &SessionCore::CollectDead)
      .def("make_permanent", &SessionCore::MakePermanent, nb::arg("storage"))
      .def("add_foreign", &SessionCore::AddForeign, nb::arg("offset"), nb::arg("nbytes"),
           nb::arg("donated"))
      .def("add_outside", &SessionCore::AddOutside, nb::arg("nbytes"))
      .def("record", &SessionCore::Record, nb::arg("history"), nb::arg("follow"),
           nb::keep_alive<1, 2>())
      .def("new_value", &SessionCore::NewValue, nb::arg("storage"), nb::arg("aval").none(),
           nb::arg("key"))
      .def("alias", &SessionCore::Alias, nb::arg("storage"), nb::arg("aval"), nb::arg("key"))
      .def("log", &SessionCore::Log, nb::arg("log"), nb::keep_alive<1, 2>())
      .def("put", &SessionCore::PutSource, nb::arg("storage"), nb::arg("array"), nb::arg("key"),
           nb::arg("offset") = -1)
      .def("holds", &SessionCore::Holds, nb::arg("storage"))
      .def("array_of", &SessionCore::ArrayOf, nb::arg("session"), nb::arg("storage"),
           nb::arg("key"))
      .def("note_outside", &SessionCore::NoteOutside, nb::arg("storage"), nb::arg("nbytes"))
      .def("is_outside", &SessionCore::IsOutside, nb::arg("storage"))
      .def("annotate", &SessionCore::Annotate, nb::arg("make"))
      .def("recomputed", &SessionCore::Recomputed)
      .def("makers", &SessionCore::Makers)
      .def("key_of", &SessionCore::KeyOf, nb::arg("storage"))
      .def("donate", &SessionCore::Donate, nb::arg("storage"))
      .def("is_donated", &SessionCore::IsDonated, nb::arg("storage"))
      .def("clear", &SessionCore::Clear)
      .def_ro("outside_bytes", &SessionCore::outside_bytes)
      .def_ro("peak_outside_bytes", &SessionCore::peak_outside_bytes)
      .def_rw("workspace_bytes", &SessionCore::workspace_bytes)
      .def_rw("reserved_bytes", &SessionCore::reserved_bytes)
      .def_ro("compute_seconds", &SessionCore::compute_seconds)
      .def_ro("recompute_seconds", &SessionCore::recompute_seconds)
      .def_rw("treasures", &SessionCore::treasures)
      .def(
          "treasure", [](SessionCore& self, StorageId storage) { self.engine().Treasure(storage); },
          nb::arg("storage"))
      .def(
          "interrupt_by",
          [](SessionCore& self, Interrupts& interrupts) { self.interrupts = &interrupts; },
          nb::arg("interrupts"), nb::keep_alive<1, 2>());
}

}  // namespace coop::python
