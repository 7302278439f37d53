// FungibleProgram, FungibleResult and simulate_fungible in Python (see engine_bindings.h and
// cc/baselines/dtr/simulator.h).

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/baselines/dtr/simulator.h"
#include "cc/python/engine/engine_bindings.h"
#include "cc/python/support/names.h"
#include "cc/python/support/record.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

using Ints = std::vector<int32_t>;

constexpr Named<FungibleHeuristic> kHeuristics[] = {
    {FungibleHeuristic::kDtr, "dtr"},     {FungibleHeuristic::kUnionFind, "union_find"},
    {FungibleHeuristic::kLocal, "local"}, {FungibleHeuristic::kLru, "lru"},
    {FungibleHeuristic::kSize, "size"},   {FungibleHeuristic::kMsps, "msps"}};

constexpr Named<FungibleStatus> kStatuses[] = {{FungibleStatus::kOk, "ok"},
                                               {FungibleStatus::kOutOfMemory, "out_of_memory"},
                                               {FungibleStatus::kThrashing, "thrashing"}};

FungibleResult Simulate(const FungibleProgram& program, const std::string& heuristic,
                        int64_t budget_bytes, int64_t recompute_limit_ns, bool release_pinned) {
  const FungibleOptions options{ValueOf(kHeuristics, heuristic, "heuristic"), budget_bytes,
                                recompute_limit_ns, release_pinned};
  const nb::gil_scoped_release unlocked;  // the program is not changed by anybody
  return SimulateFungible(program, options);
}

}  // namespace

void BindFungible(nb::module_& module) {
  nb::class_<FungibleProgram>(module, "FungibleProgram",
                              "Operations over tensors and a schedule; ids are indices.")
      .def(
          "__init__",
          [](FungibleProgram* self, std::vector<int64_t> op_cost_ns, Ints op_arg_begin,
             Ints op_args, Ints op_result_begin, std::vector<int64_t> result_bytes,
             Ints result_alias, std::vector<uint8_t> step_kinds, Ints step_ids) {
            new (self) FungibleProgram{std::move(op_cost_ns),   std::move(op_arg_begin),
                                       std::move(op_args),      std::move(op_result_begin),
                                       std::move(result_bytes), std::move(result_alias),
                                       std::move(step_kinds),   std::move(step_ids)};
          },
          nb::kw_only(), nb::arg("op_cost_ns"), nb::arg("op_arg_begin"), nb::arg("op_args"),
          nb::arg("op_result_begin"), nb::arg("result_bytes"), nb::arg("result_alias"),
          nb::arg("step_kinds"), nb::arg("step_ids"))
      .def_prop_ro("operation_count", &FungibleProgram::operation_count)
      .def_prop_ro("tensor_count", &FungibleProgram::tensor_count);

  Record<FungibleResult>(module, "FungibleResult", "What a simulation without addresses did.")
      .Field("status",
             [](const FungibleResult& result) { return NameOf(kStatuses, result.status); })
      .Field("clock_ns", &FungibleResult::clock_ns)
      .Field("compute_ns", &FungibleResult::compute_ns)
      .Field("recompute_ns", &FungibleResult::recompute_ns)
      .Field("peak_bytes", &FungibleResult::peak_bytes)
      .Field("operations", &FungibleResult::operations)
      .Field("recomputations", &FungibleResult::recomputations)
      .Field("evictions", &FungibleResult::evictions)
      .Field("scores", &FungibleResult::scores);

  module.def("simulate_fungible", &Simulate, nb::arg("program"), nb::kw_only(),
             nb::arg("heuristic"), nb::arg("budget_bytes") = -1, nb::arg("recompute_limit_ns") = -1,
             nb::arg("release_pinned") = false);
}

}  // namespace coop::python
