// EngineStats and Failure in Python (see engine_bindings.h).

#include <nanobind/nanobind.h>

#include "cc/core/base/types.h"
#include "cc/python/engine/engine_bindings.h"
#include "cc/python/support/names.h"
#include "cc/python/support/record.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr Named<FailureReason> kReasons[] = {{FailureReason::kNoFailure, "none"},
                                             {FailureReason::kNoSpace, "no_space"},
                                             {FailureReason::kThrashing, "thrashing"},
                                             {FailureReason::kLimit, "limit"}};

constexpr Named<HoldReason> kHoldReasons[] = {
    {HoldReason::kEvictable, "evictable"}, {HoldReason::kRead, "read"},
    {HoldReason::kPermanent, "permanent"}, {HoldReason::kNoRecipe, "no_recipe"},
    {HoldReason::kOutput, "output"},       {HoldReason::kReservation, "reservation"}};

nb::list HeldList(const Failure& failure) {
  nb::list list;
  for (const HeldBlock& block : failure.held) {
    list.append(nb::make_tuple(NameOf(kHoldReasons, block.reason), block.storage, block.offset,
                               block.bytes));
  }
  return list;
}

}  // namespace

void BindStats(nb::module_& module) {
  Record<EngineStats>(module, "EngineStats",
                      "Counters of an engine, or of the engine that made a plan.")
      .Field("operations", &EngineStats::operations)
      .Field("recomputations", &EngineStats::recomputations)
      .Field("evictions", &EngineStats::evictions)
      .Field("compute_seconds", &EngineStats::compute_seconds)
      .Field("recompute_seconds", &EngineStats::recompute_seconds)
      .Field("searches", &EngineStats::searches)
      .Field("search_seconds", &EngineStats::search_seconds)
      .Field("fragmentation_sum", &EngineStats::fragmentation_sum)
      .Field("fragmentation_max", &EngineStats::fragmentation_max)
      .Field("fragmentation_count", &EngineStats::fragmentation_count)
      .Field("in_use_bytes", &EngineStats::in_use_bytes)
      .Field("outside_bytes", &EngineStats::outside_bytes)
      .Field("reserved_bytes", &EngineStats::reserved_bytes)
      .Field("peak_in_use_bytes", &EngineStats::peak_in_use_bytes)
      .Field("peak_outside_bytes", &EngineStats::peak_outside_bytes)
      .Field("peak_pool_bytes", &EngineStats::peak_pool_bytes);

  Record<Failure>(module, "Failure", "Why a request failed, measured when it did.")
      .Field("reason", [](const Failure& failure) { return NameOf(kReasons, failure.reason); })
      .Field("requested_bytes", &Failure::requested_bytes)
      .Field("capacity_bytes", &Failure::capacity_bytes)
      .Field("in_use_bytes", &Failure::in_use_bytes)
      .Field("pinned_bytes", &Failure::pinned_bytes)
      .Field("largest_free_block_bytes", &Failure::largest_free_block_bytes)
      .Field("largest_window_bytes", &Failure::largest_window_bytes)
      .Field("operation", &Failure::operation)
      .Field("held", &HeldList);
}

}  // namespace coop::python
