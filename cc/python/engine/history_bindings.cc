// History in Python: what a session records, and what is made of it between calls.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/core/planner/call_history.h"
#include "cc/python/engine/engine_bindings.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// Storages of the pool by what makes them: equal operations, and which of their outputs.
std::vector<std::vector<int32_t>> Kinds(const History& history) {
  const CallRecord& record = history.record();
  std::map<std::pair<uint64_t, int32_t>, size_t> known;
  std::vector<std::vector<int32_t>> kinds;
  for (size_t storage = 0; storage < record.made_by.size(); ++storage) {
    const int32_t operation = record.made_by[storage];
    if (operation == kNone || record.program.storage_outside[storage] != 0) continue;
    const auto row = static_cast<size_t>(operation);
    const auto number = static_cast<int32_t>(storage);
    const int32_t first =
        record.program.op_outputs[static_cast<size_t>(record.program.op_output_begin[row])];
    const auto [found, is_new] =
        known.try_emplace({record.what[row], number - first}, kinds.size());
    if (is_new) kinds.emplace_back();
    kinds[found->second].push_back(number);
  }
  return kinds;
}

// Storages that operations make before the given one, and that it or a later one reads.
std::vector<int32_t> AliveAt(const History& history, int32_t operation) {
  const CallRecord& record = history.record();
  const Program& program = record.program;
  if (operation < 0 || operation >= program.operation_count()) {
    throw std::invalid_argument("no such operation");
  }
  std::vector<uint8_t> read(record.made_by.size(), 0);
  const auto first = static_cast<size_t>(program.op_input_begin[static_cast<size_t>(operation)]);
  for (size_t k = first; k < program.op_inputs.size(); ++k) {
    read[static_cast<size_t>(program.op_inputs[k])] = 1;
  }
  std::vector<int32_t> alive;
  for (size_t storage = 0; storage < read.size(); ++storage) {
    const int32_t made_by = record.made_by[storage];
    if (made_by == kNone || made_by >= operation || read[storage] == 0) continue;
    alive.push_back(static_cast<int32_t>(storage));
  }
  return alive;
}

// Storages whose place an output of an operation takes.
std::vector<int32_t> Overwritten(const History& history) {
  const Program& program = history.record().program;
  std::vector<int32_t> overwritten;
  for (size_t row = 0; row + 1 < program.op_output_begin.size(); ++row) {
    const int32_t first = program.op_input_begin[row];
    for (int32_t k = program.op_output_begin[row]; k < program.op_output_begin[row + 1]; ++k) {
      const int32_t position = program.op_in_place[static_cast<size_t>(k)];
      if (position == kNone) continue;
      overwritten.push_back(program.op_inputs[static_cast<size_t>(first + position)]);
    }
  }
  return overwritten;
}

std::vector<int32_t> InputWhere(const History& history) {
  std::vector<int32_t> where;
  for (const Program::Input& input : history.record().program.inputs) {
    where.push_back(static_cast<int32_t>(input.where));
  }
  return where;
}

std::vector<int64_t> InputOffsets(const History& history) {
  std::vector<int64_t> offsets;
  for (const Program::Input& input : history.record().program.inputs) {
    offsets.push_back(input.offset);
  }
  return offsets;
}

}  // namespace

void BindHistory(nb::module_& module) {
  nb::class_<History>(module, "History", "What a function did in its last call.")
      .def(nb::init<>())
      .def("finish", &History::Finish)
      .def(
          "advise",
          [](History& self, std::vector<double> worth, const std::vector<int32_t>& sides,
             std::vector<int64_t> places, std::vector<int32_t> held_for) {
            self.Advise(std::move(worth), SideHints(sides), std::move(places), std::move(held_for));
          },
          nb::arg("worth"), nb::arg("sides"), nb::arg("places"), nb::arg("held_for"))
      .def_prop_ro("gave_up", &History::gave_up)
      .def_prop_ro("repetitions", &History::repetitions)
      .def_prop_ro("program", [](const History& self) { return self.record().program; })
      .def_prop_ro("storage_count",
                   [](const History& self) { return self.record().program.storage_count(); })
      .def_prop_ro("storage_bytes",
                   [](const History& self) { return self.record().program.storage_bytes; })
      .def_prop_ro("made_by", [](const History& self) { return self.record().made_by; })
      .def("alive_at", &AliveAt, nb::arg("operation"))
      .def_prop_ro("outputs", [](const History& self) { return self.record().program.outputs; })
      .def_prop_ro("overwritten", &Overwritten)
      .def_prop_ro("input_where", &InputWhere)
      .def_prop_ro("input_offsets", &InputOffsets)
      .def_prop_ro("kinds", &Kinds);
}

}  // namespace coop::python
