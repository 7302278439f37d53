// An engine as Python sees it: the buffers that its calls reuse, its answers as tuples.
//
// Invariants: a call that raises has changed nothing. What calls free is collected until it is
// taken. Thread rule: under the interpreter lock. Source: paper section 3 (see
// cc/core/engine/engine.h).

#ifndef COOP_PYTHON_ENGINE_PY_ENGINE_H_
#define COOP_PYTHON_ENGINE_PY_ENGINE_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/engine/engine.h"

namespace coop::python {

// What does not change between the calls of one compiled operation.
struct OperationSpec {
  std::vector<OutputSpec> outputs;
  double cost_seconds;
  bool recomputable;
};

// Adds NoSpaceError to the module.
void BindNoSpaceError(nanobind::module_& module);
[[noreturn]] void RaiseNoSpace(const Failure& failure);

class PyEngine {
 public:
  PyEngine(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
           double expensive_seconds_per_byte, bool timed, bool costs_from_first_search = false);

  explicit PyEngine(const EngineOptions& options) : engine_(options) {}

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const Engine& engine() const { return engine_; }

  // Adds an operation and runs it: (operation, outputs, offsets, actions before it, in place).
  nanobind::object Submit(nanobind::handle inputs, const OperationSpec& spec);
  // Runs again an operation whose run was aborted.
  nanobind::object Rerun(OperationId operation);
  // What a call has let go of, for the executor to drop; None where nothing.
  nanobind::object TakeFreed();
  nanobind::object TakeRetired();
  // The last transaction's actions but the last `skipped`; None where there are none.
  [[nodiscard]] nanobind::object Actions(size_t skipped) const;

 private:
  void Collect();
  void ReadInputs(nanobind::handle inputs);
  [[nodiscard]] nanobind::object OwnRun(OperationId operation) const;
  [[nodiscard]] const Placement& PlacementOf(const Action& action, Py_ssize_t output) const;

  Engine engine_;
  std::vector<StorageId> inputs_;
  std::vector<StorageId> outputs_;
  // Taken from the engine, not yet by the executor.
  std::vector<StorageId> freed_;
  std::vector<OperationId> retired_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_ENGINE_PY_ENGINE_H_
