// Policy in Python (see engine_bindings.h).

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "cc/core/base/types.h"
#include "cc/python/engine/engine_bindings.h"
#include "cc/python/support/names.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr Named<Heuristic> kHeuristics[] = {{Heuristic::kCoop, "coop"},
                                            {Heuristic::kDtr, "dtr"},
                                            {Heuristic::kDte, "dte"},
                                            {Heuristic::kLookahead, "lookahead"}};

constexpr Named<NeighborhoodMode> kNeighborhoods[] = {{NeighborhoodMode::kUnionFind, "union_find"},
                                                      {NeighborhoodMode::kExact, "exact"},
                                                      {NeighborhoodMode::kAncestors, "ancestors"},
                                                      {NeighborhoodMode::kAwaited, "awaited"}};

// The policy of a heuristic, as the paper or this package defines it.
Policy PolicyOf(Heuristic heuristic) {
  switch (heuristic) {
    case Heuristic::kDtr:
      return Policy::Dtr();
    case Heuristic::kDte:
      return Policy::Dte();
    case Heuristic::kLookahead:
      return Policy::Lookahead();
    case Heuristic::kCoop:
      break;
  }
  return Policy::Coop();
}

Policy MakePolicy(const std::string& heuristic, const std::optional<std::string>& neighborhood,
                  std::optional<bool> sliding_window, std::optional<bool> cheap_partitioning,
                  std::optional<bool> in_place, bool evict_always, bool keep_demanded,
                  bool unheld_first, std::optional<int64_t> search_effort) {
  Policy policy = PolicyOf(ValueOf(kHeuristics, heuristic, "heuristic"));
  if (neighborhood) policy.neighborhood = ValueOf(kNeighborhoods, *neighborhood, "neighborhood");
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
  return nb::make_tuple(NameOf(kHeuristics, policy.heuristic),
                        NameOf(kNeighborhoods, policy.neighborhood), policy.sliding_window,
                        policy.cheap_partitioning, policy.in_place, policy.evict_always,
                        policy.keep_demanded, policy.unheld_first, policy.search_effort);
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
      .def_prop_ro("heuristic",
                   [](const Policy& self) { return NameOf(kHeuristics, self.heuristic); })
      .def_prop_ro("neighborhood",
                   [](const Policy& self) { return NameOf(kNeighborhoods, self.neighborhood); })
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
