// Policy in Python (see engine_bindings.h).

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "cc/core/base/types.h"
#include "cc/python/engine/engine_bindings.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

const char* HeuristicName(Heuristic heuristic) {
  switch (heuristic) {
    case Heuristic::kDtr:
      return "dtr";
    case Heuristic::kDte:
      return "dte";
    case Heuristic::kLookahead:
      return "lookahead";
    case Heuristic::kCoop:
      break;
  }
  return "coop";
}

const char* NeighborhoodName(NeighborhoodMode mode) {
  switch (mode) {
    case NeighborhoodMode::kExact:
      return "exact";
    case NeighborhoodMode::kAncestors:
      return "ancestors";
    case NeighborhoodMode::kAwaited:
      return "awaited";
    case NeighborhoodMode::kUnionFind:
      break;
  }
  return "union_find";
}

std::optional<Policy> NamedPolicy(const std::string& heuristic) {
  for (const Policy& policy : {Policy::Coop(), Policy::Dtr(), Policy::Dte(), Policy::Lookahead()}) {
    if (heuristic == HeuristicName(policy.heuristic)) return policy;
  }
  return std::nullopt;
}

std::optional<NeighborhoodMode> NamedNeighborhood(const std::string& name) {
  for (const NeighborhoodMode mode : {NeighborhoodMode::kUnionFind, NeighborhoodMode::kExact,
                                      NeighborhoodMode::kAncestors, NeighborhoodMode::kAwaited}) {
    if (name == NeighborhoodName(mode)) return mode;
  }
  return std::nullopt;
}

Policy MakePolicy(const std::string& heuristic, const std::optional<std::string>& neighborhood,
                  std::optional<bool> sliding_window, std::optional<bool> cheap_partitioning,
                  std::optional<bool> in_place, bool evict_always, bool keep_demanded,
                  bool unheld_first, std::optional<int64_t> search_effort) {
  const std::optional<Policy> named = NamedPolicy(heuristic);
  if (!named) {
    throw std::invalid_argument("heuristic must be 'coop', 'dtr', 'dte' or 'lookahead', not '" +
                                heuristic + "'");
  }
  Policy policy = *named;
  if (neighborhood) {
    const std::optional<NeighborhoodMode> mode = NamedNeighborhood(*neighborhood);
    if (!mode) {
      throw std::invalid_argument(
          "neighborhood must be 'union_find', 'exact', 'ancestors' or 'awaited', not '" +
          *neighborhood + "'");
    }
    policy.neighborhood = *mode;
  }
  policy.sliding_window = sliding_window.value_or(policy.sliding_window);
  policy.cheap_partitioning = cheap_partitioning.value_or(policy.cheap_partitioning);
  policy.in_place = in_place.value_or(policy.in_place);
  policy.evict_always = evict_always;
  policy.keep_demanded = keep_demanded;
  policy.unheld_first = unheld_first;
  policy.search_effort = search_effort.value_or(policy.search_effort);
  if (policy.search_effort < 0) throw std::invalid_argument("search_effort must not be negative");
  return policy;
}

nb::tuple PolicyKey(const Policy& policy) {
  return nb::make_tuple(HeuristicName(policy.heuristic), NeighborhoodName(policy.neighborhood),
                        policy.sliding_window, policy.cheap_partitioning, policy.in_place,
                        policy.evict_always, policy.keep_demanded, policy.unheld_first,
                        policy.search_effort);
}

// An argument as a T, or a TypeError that says which argument is not one.
template <typename T>
T Argument(nb::handle given, const char* name, const char* kind) {
  T value;
  if (!nb::try_cast<T>(given, value)) {
    const std::string problem = std::string(name) + " must be " + kind + ", got " +
                                nb::cast<std::string>(nb::str(given.type().attr("__name__")));
    throw nb::type_error(problem.c_str());
  }
  return value;
}

using MaybeFlag = std::optional<bool>;

}  // namespace

void BindPolicy(nb::module_& module) {
  nb::class_<Policy>(module, "Policy", "Which storages are evicted, and where new ones are placed.")
      .def(
          "__init__",
          [](Policy* self, nb::handle heuristic, nb::handle neighborhood, nb::handle sliding_window,
             nb::handle cheap_partitioning, nb::handle in_place, nb::handle evict_always,
             nb::handle keep_demanded, nb::handle unheld_first, nb::handle search_effort) {
            const char* flag = "True or False";
            const char* maybe = "True, False or None";
            new (self) Policy(
                MakePolicy(Argument<std::string>(heuristic, "heuristic", "a name (str)"),
                           Argument<std::optional<std::string>>(neighborhood, "neighborhood",
                                                                "a name (str) or None"),
                           Argument<MaybeFlag>(sliding_window, "sliding_window", maybe),
                           Argument<MaybeFlag>(cheap_partitioning, "cheap_partitioning", maybe),
                           Argument<MaybeFlag>(in_place, "in_place", maybe),
                           Argument<bool>(evict_always, "evict_always", flag),
                           Argument<bool>(keep_demanded, "keep_demanded", flag),
                           Argument<bool>(unheld_first, "unheld_first", flag),
                           Argument<std::optional<int64_t>>(search_effort, "search_effort",
                                                            "a whole number of 64 bits or None")));
          },
          nb::arg("heuristic") = "coop", nb::arg("neighborhood").none() = nb::none(), nb::kw_only(),
          nb::arg("sliding_window").none() = nb::none(),
          nb::arg("cheap_partitioning").none() = nb::none(),
          nb::arg("in_place").none() = nb::none(), nb::arg("evict_always") = false,
          nb::arg("keep_demanded") = true, nb::arg("unheld_first") = true,
          nb::arg("search_effort").none() = nb::none())
      .def_prop_ro("heuristic", [](const Policy& self) { return HeuristicName(self.heuristic); })
      .def_prop_ro("neighborhood",
                   [](const Policy& self) { return NeighborhoodName(self.neighborhood); })
      .def_ro("sliding_window", &Policy::sliding_window)
      .def_ro("cheap_partitioning", &Policy::cheap_partitioning)
      .def_ro("in_place", &Policy::in_place)
      .def_ro("evict_always", &Policy::evict_always)
      .def_ro("keep_demanded", &Policy::keep_demanded)
      .def_ro("unheld_first", &Policy::unheld_first)
      .def_ro("search_effort", &Policy::search_effort)
      .def("__eq__",
           [](const Policy& self, nb::handle other) {
             return nb::isinstance<Policy>(other) && self == nb::cast<const Policy&>(other);
           })
      .def("__getstate__", PolicyKey)
      .def("__setstate__",
           [](Policy& self, const nb::tuple& key) {
             new (&self) Policy(MakePolicy(nb::cast<std::string>(key[0]),
                                           nb::cast<std::string>(key[1]), nb::cast<bool>(key[2]),
                                           nb::cast<bool>(key[3]), nb::cast<bool>(key[4]),
                                           nb::cast<bool>(key[5]), nb::cast<bool>(key[6]),
                                           nb::cast<bool>(key[7]), nb::cast<int64_t>(key[8])));
           })
      .def("__hash__", [](const Policy& self) { return PyObject_Hash(PolicyKey(self).ptr()); })
      .def("__repr__", [](const Policy& self) {
        return nb::str(
                   "Policy(heuristic={!r}, neighborhood={!r}, sliding_window={}, "
                   "cheap_partitioning={}, in_place={}, evict_always={}, keep_demanded={}, "
                   "unheld_first={}, search_effort={})")
            .format(*PolicyKey(self));
      });
}

}  // namespace coop::python
