#include "cc/python/replay/plan_replay.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/core/base/types.h"
#include "cc/python/memory/pool_bindings.h"
#include "cc/python/support/py_objects.h"
#include "cc/python/support/scoped_context.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

void SetItem(PyObject* list, int32_t index, nb::object item) {
  PyList_SetItem(list, index, item.release().ptr());
}

}  // namespace

Replay::Replay(nb::object pool, nb::object load, nb::tuple load_arguments, nb::object reader,
               nb::object wait, bool ordered)
    : pool_(std::move(pool)),
      load_(std::move(load)),
      load_arguments_(std::move(load_arguments)),
      reader_object_(std::move(reader)),
      reader_(nb::cast<ArgumentReader&>(reader_object_)),
      wait_(std::move(wait)),
      ordered_(ordered) {
  static_cast<void>(MemoryOf(pool_));  // raises for anything else
}

int32_t Replay::AddCell(int64_t offset, nb::object spec) {
  static_cast<void>(nb::cast<const SlotSpec&>(spec));
  cells_.push_back({.offset = offset, .spec = std::move(spec), .array = {}});
  return static_cast<int32_t>(cells_.size()) - 1;
}

void Replay::CheckValue(int32_t value) {
  if (value < 0) throw std::invalid_argument("values are numbered from 0");
  value_count_ = std::max(value_count_, value + 1);
}

void Replay::AddLaunch(Launch launch) {
  const auto check_cell = [&](int32_t cell, bool may_be_none) {
    if (may_be_none && cell == kNone) return;
    if (cell < 0 || static_cast<size_t>(cell) >= cells_.size()) {
      throw std::invalid_argument("no cell has this number");
    }
  };
  for (const int32_t cell : launch.slots) check_cell(cell, false);
  for (const int32_t value : launch.operands) CheckValue(value);
  for (const int32_t value : launch.gone) CheckValue(value);
  for (const auto& [value, cell] : launch.results) {
    if (value != kNone) CheckValue(value);
    check_cell(cell, true);
  }
  if (launch.slots.size() + launch.overwritten.size() > launch.results.size()) {
    throw std::invalid_argument("a slot is of a result");
  }
  instructions_.push_back(
      {.kind = Kind::kLaunch, .ready = false, .index = static_cast<int32_t>(launches_.size())});
  launches_.push_back(std::move(launch));
}

void Replay::AddView(int32_t value, int32_t cell) {
  CheckValue(value);
  if (cell < 0 || static_cast<size_t>(cell) >= cells_.size()) {
    throw std::invalid_argument("no cell has this number");
  }
  instructions_.push_back({.kind = Kind::kView, .index = value, .cell = cell});
}

void Replay::AddForget(std::vector<std::pair<int32_t, int32_t>> values) {
  for (const auto& [value, cell] : values) {
    CheckValue(value);
    if (cell != kNone && (cell < 0 || static_cast<size_t>(cell) >= cells_.size())) {
      throw std::invalid_argument("no cell has this number");
    }
  }
  instructions_.push_back({.kind = Kind::kForget, .index = static_cast<int32_t>(forgets_.size())});
  forgets_.push_back(std::move(values));
}

void Replay::AddOther() { instructions_.push_back({.kind = Kind::kOther, .ready = false}); }

void Replay::MakeReady(size_t instruction) {
  if (instruction >= instructions_.size() || instructions_[instruction].kind != Kind::kLaunch) {
    throw std::invalid_argument("no launch has this number");
  }
  instructions_[instruction].ready = true;
}

nb::object Replay::Import(const Cell& cell, bool write) {
  const nb::object capsule = MakeCapsule(
      MemoryOf(pool_).NewUncounted(cell.offset, *nb::inst_ptr<SlotSpec>(cell.spec), write));
  PyObject* load[8];
  const size_t extra = std::min<size_t>(load_arguments_.size(), 7);
  load[0] = capsule.ptr();
  for (size_t i = 0; i < extra; ++i) {
    load[i + 1] = PyTuple_GET_ITEM(load_arguments_.ptr(), static_cast<Py_ssize_t>(i));
  }
  return Steal(PyObject_Vectorcall(load_.ptr(), load, extra + 1, nullptr));
}

size_t Replay::Run(nb::list values, size_t begin, Interrupts& interrupts, nb::handle misplaced,
                   nb::handle annotate) {
  if (values.size() < static_cast<size_t>(value_count_)) {
    throw std::invalid_argument("the list must have an item for each value");
  }
  if (begin == 0) obeyed = true;
  awaited_.reset();  // of a run that raised
  size_t number = begin;
  for (; number < instructions_.size() && instructions_[number].ready; ++number) {
    const Instruction& instruction = instructions_[number];
    switch (instruction.kind) {
      case Kind::kLaunch: {
        // Signals are seen between instructions, as between those of Python.
        if (PyErr_CheckSignals() != 0) {
          if (!interrupts.consumed) nb::raise_python_error();
          interrupts.Hold();
        }
        if (!interrupts.consumed) interrupts.Check();
        const ScopedContext annotated(annotate.is_none() ? nb::object() : annotate(number));
        RunLaunch(launches_[static_cast<size_t>(instruction.index)], values.ptr(), number,
                  &interrupts, misplaced);
        break;
      }
      case Kind::kView:
        SetItem(values.ptr(), instruction.index,
                Import(cells_[static_cast<size_t>(instruction.cell)], /*write=*/false));
        break;
      case Kind::kForget:
        for (const auto& [value, cell] : forgets_[static_cast<size_t>(instruction.index)]) {
          PyObject* const array = PyList_GET_ITEM(values.ptr(), value);
          if (cell != kNone && array != Py_None) {
            cells_[static_cast<size_t>(cell)].array = nb::borrow(array);
          }
          SetItem(values.ptr(), value, nb::none());
        }
        break;
      case Kind::kOther:
        break;
    }
  }
  const auto since = std::chrono::steady_clock::now();
  Finish();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - since;
  compute_seconds += seconds.count();
  return number;
}

void Replay::TimeLaunches() {
  begun_.assign(instructions_.size(), std::numeric_limits<double>::quiet_NaN());
}

std::vector<double> Replay::TakeLaunchSeconds() {
  return std::exchange(begun_, std::vector<double>());
}

void Replay::Finish() {
  if (awaited_.is_valid()) wait_(std::exchange(awaited_, nb::object()));
}

std::vector<nb::object> Replay::ArgumentsOf(const Launch& launch, PyObject* values,
                                            const PoolMemory& memory) {
  std::vector<nb::object> arguments;
  arguments.reserve(launch.slots.size() + launch.operands.size());
  for (const int32_t c : launch.slots) {
    Cell& cell = cells_[static_cast<size_t>(c)];
    if (cell.array.is_valid() && !reader_.IsDeleted(cell.array)) {
      memory.CheckUnheld(cell.offset, nb::inst_ptr<SlotSpec>(cell.spec)->bytes);
      arguments.push_back(std::move(cell.array));
      cell.array = nb::object();
    } else {
      arguments.push_back(Import(cell, /*write=*/true));
    }
  }
  for (const int32_t value : launch.operands) {
    arguments.push_back(nb::borrow(PyList_GET_ITEM(values, value)));
  }
  return arguments;
}

void Replay::RunLaunch(const Launch& launch, PyObject* values, size_t number,
                       Interrupts* interrupts, nb::handle misplaced) {
  const auto begin = std::chrono::steady_clock::now();
  if (!begun_.empty()) {
    begun_[number] = std::chrono::duration<double>(begin.time_since_epoch()).count();
  }
  PoolMemory& memory = MemoryOf(pool_);
  for (const auto& [offset, bytes] : launch.emptied) memory.Discard(offset, bytes);
  std::vector<nb::object> arguments = ArgumentsOf(launch, values, memory);
  std::vector<PyObject*> pointers;
  pointers.reserve(arguments.size());
  for (const nb::object& argument : arguments) pointers.push_back(argument.ptr());
  std::optional<UncachedAllocation> uncached;
  if (!launch.emptied.empty()) uncached.emplace();  // the pool takes those pages again
  nb::object results =
      Steal(PyObject_Vectorcall(launch.call.ptr(), pointers.data(), pointers.size(), nullptr));
  arguments.clear();
  uncached.reset();
  if (!wait_.is_none()) {
    if (const Sequence found(results); found.size() > 0) {
      awaited_ = nb::borrow(found[found.size() - 1]);
      if (!ordered_) Finish();
    }
  }
  if (launch.consumes_input) {
    interrupts->consumed = true;
    // The user's memory may be shared with what XLA does not write over: that is looked at.
    const Sequence found(results);
    bool placed = true;
    for (size_t i = 0; i < launch.overwritten.size(); ++i) {
      const uint64_t address = reader_.AddressOf(found[launch.slots.size() + i]);
      placed &= memory.OffsetOf(address) == launch.overwritten[i];
    }
    if (!placed) {
      obeyed = false;
      results = misplaced(number, results);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  (launch.recompute ? recompute_seconds : compute_seconds) += seconds.count();
  for (const int32_t value : launch.gone) SetItem(values, value, nb::none());
  for (const int64_t offset : launch.reclaimed) memory.Reclaim(offset);
  const Sequence made(results);
  if (made.size() != launch.results.size()) throw std::logic_error("a result is missing");
  for (size_t i = 0; i < made.size(); ++i) {
    const auto& [value, cell] = launch.results[i];
    if (value != kNone) {
      SetItem(values, value, nb::borrow(made[i]));
    } else if (cell != kNone) {
      cells_[static_cast<size_t>(cell)].array = nb::borrow(made[i]);
    }
  }
}

void BindReplay(nb::module_& module) {
  nb::class_<Replay>(module, "Replay", "A plan's instructions, carried out again and again.")
      .def(nb::init<nb::object, nb::object, nb::tuple, nb::object, nb::object, bool>(),
           nb::arg("pool"), nb::arg("load"), nb::arg("load_arguments"), nb::arg("reader"),
           nb::arg("wait") = nb::none(), nb::arg("ordered") = false)
      .def("add_cell", &Replay::AddCell, nb::arg("offset"), nb::arg("spec"))
      .def(
          "add_launch",
          [](Replay& self, nb::object call, std::vector<int32_t> slots,
             std::vector<int32_t> operands, std::vector<std::pair<int32_t, int32_t>> results,
             std::vector<int64_t> overwritten, std::vector<int32_t> gone, bool recompute,
             bool consumes_input, std::vector<int64_t> reclaimed,
             std::vector<std::pair<int64_t, int64_t>> emptied) {
            self.AddLaunch({.call = std::move(call),
                            .slots = std::move(slots),
                            .operands = std::move(operands),
                            .results = std::move(results),
                            .overwritten = std::move(overwritten),
                            .reclaimed = std::move(reclaimed),
                            .emptied = std::move(emptied),
                            .gone = std::move(gone),
                            .recompute = recompute,
                            .consumes_input = consumes_input});
          },
          nb::arg("call"), nb::arg("slots"), nb::arg("operands"), nb::arg("results"),
          nb::arg("overwritten"), nb::arg("gone"), nb::arg("recompute"), nb::arg("consumes_input"),
          nb::arg("reclaimed"), nb::arg("emptied"))
      .def("add_view", &Replay::AddView, nb::arg("value"), nb::arg("cell"))
      .def("add_forget", &Replay::AddForget, nb::arg("values"))
      .def("add_other", &Replay::AddOther)
      .def("make_ready", &Replay::MakeReady, nb::arg("instruction"))
      .def("run", &Replay::Run, nb::arg("values"), nb::arg("begin"), nb::arg("interrupts"),
           nb::arg("misplaced"), nb::arg("annotate") = nb::none())
      .def("time_launches", &Replay::TimeLaunches)
      .def("take_launch_seconds", &Replay::TakeLaunchSeconds)
      .def_rw("compute_seconds", &Replay::compute_seconds)
      .def_rw("recompute_seconds", &Replay::recompute_seconds)
      .def_rw("obeyed", &Replay::obeyed);
}

}  // namespace coop::python
