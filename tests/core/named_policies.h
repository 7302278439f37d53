// The policies that every contract is checked against: the presets, Coop with each switch
// turned off alone, the exact neighbourhoods, and the forced-eviction mode.

#ifndef COOP_TESTS_CORE_NAMED_POLICIES_H_
#define COOP_TESTS_CORE_NAMED_POLICIES_H_

#include <ostream>
#include <vector>

#include "cc/core/base/types.h"

namespace coop::testing {

struct NamedPolicy {
  const char* name;
  Policy policy;
};

inline std::ostream& operator<<(std::ostream& out, const NamedPolicy& named) {
  return out << named.name;
}

[[nodiscard]] inline std::vector<NamedPolicy> AllPolicies() {
  std::vector<NamedPolicy> all = {
      {"Coop", Policy::Coop()}, {"Dtr", Policy::Dtr()}, {"Dte", Policy::Dte()}};
  const auto variant = [&all](const char* name, Policy policy, auto change) {
    change(policy);
    all.push_back({name, policy});
  };
  variant("CoopNoWindow", Policy::Coop(), [](Policy& p) { p.sliding_window = false; });
  variant("CoopNoPartitioning", Policy::Coop(), [](Policy& p) { p.cheap_partitioning = false; });
  variant("CoopNoInPlace", Policy::Coop(), [](Policy& p) { p.in_place = false; });
  variant("CoopExact", Policy::Coop(),
          [](Policy& p) { p.neighborhood = NeighborhoodMode::kExact; });
  variant("DteExact", Policy::Dte(), [](Policy& p) { p.neighborhood = NeighborhoodMode::kExact; });
  const auto published = [](Policy& p) { p.keep_demanded = p.unheld_first = false; };
  variant("CoopPublished", Policy::Coop(), published);
  variant("DtrPublished", Policy::Dtr(), published);
  all.push_back({"Lookahead", Policy::Lookahead()});
  variant("LookaheadAwaited", Policy::Lookahead(),
          [](Policy& p) { p.neighborhood = NeighborhoodMode::kAwaited; });
  variant("LookaheadNoWindow", Policy::Lookahead(), [](Policy& p) { p.sliding_window = false; });
  variant("CoopForced", Policy::Coop(), [](Policy& p) { p.evict_always = true; });
  variant("DtrForced", Policy::Dtr(), [](Policy& p) { p.evict_always = true; });
  return all;
}

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_NAMED_POLICIES_H_
