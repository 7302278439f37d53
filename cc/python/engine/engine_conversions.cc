// Ranges of the pool as Python objects, and the clock of searches (see engine_bindings.h).

#include <nanobind/nanobind.h>

#include <chrono>
#include <vector>

#include "cc/python/engine/engine_bindings.h"

namespace nb = nanobind;

namespace coop::python {
nb::list RangeList(const std::vector<Range>& ranges) {
  nb::list list;
  for (const Range& range : ranges) list.append(nb::make_tuple(range.offset, range.bytes));
  return list;
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace coop::python
