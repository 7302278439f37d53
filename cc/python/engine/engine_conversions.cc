// Engine records as Python objects (see engine_bindings.h).

#include <nanobind/nanobind.h>

#include <chrono>
#include <vector>

#include "cc/python/engine/engine_bindings.h"
#include "cc/python/support/names.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr Named<FailureReason> kReasons[] = {{FailureReason::kNoFailure, "none"},
                                             {FailureReason::kNoSpace, "no_space"},
                                             {FailureReason::kThrashing, "thrashing"},
                                             {FailureReason::kLimit, "limit"}};

}  // namespace

nb::dict FailureDict(const Failure& failure) {
  nb::dict dict;
  dict["reason"] = NameOf(kReasons, failure.reason);
  dict["requested_bytes"] = failure.requested_bytes;
  dict["capacity_bytes"] = failure.capacity_bytes;
  dict["in_use_bytes"] = failure.in_use_bytes;
  dict["pinned_bytes"] = failure.pinned_bytes;
  dict["largest_free_block_bytes"] = failure.largest_free_block_bytes;
  dict["largest_window_bytes"] = failure.largest_window_bytes;
  dict["operation"] = failure.operation;
  return dict;
}

nb::dict StatsDict(const Stats& stats) {
  nb::dict dict;
  dict["operations"] = stats.operations;
  dict["recomputations"] = stats.recomputations;
  dict["evictions"] = stats.evictions;
  dict["compute_seconds"] = stats.compute_seconds;
  dict["recompute_seconds"] = stats.recompute_seconds;
  dict["searches"] = stats.searches;
  dict["search_seconds"] = stats.search_seconds;
  dict["fragmentation_sum"] = stats.fragmentation_sum;
  dict["fragmentation_max"] = stats.fragmentation_max;
  dict["fragmentation_count"] = stats.fragmentation_count;
  dict["in_use_bytes"] = stats.in_use_bytes;
  dict["outside_bytes"] = stats.outside_bytes;
  dict["reserved_bytes"] = stats.reserved_bytes;
  dict["peak_in_use_bytes"] = stats.peak_in_use_bytes;
  dict["peak_outside_bytes"] = stats.peak_outside_bytes;
  dict["peak_pool_bytes"] = stats.peak_pool_bytes;
  return dict;
}

nb::list RangeList(const std::vector<Range>& ranges) {
  nb::list list;
  for (const Range& range : ranges) list.append(nb::make_tuple(range.offset, range.bytes));
  return list;
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace coop::python
