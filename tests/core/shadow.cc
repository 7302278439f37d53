#include "tests/core/shadow.h"

#include <iterator>
#include <set>
#include <vector>

namespace coop::testing {

void Shadow::Step() {
  const int draw = Below(100);
  const bool full = static_cast<int>(checked_.held().size()) > options_.max_held;
  if (checked_.held().empty()) {
    draw < 50 ? AddSource() : Submit();
  } else if (full || draw < 22) {
    checked_.Release(AnyHeld());
  } else if (draw < 72) {
    Submit();
  } else if (draw < 78) {
    AddSource();
  } else if (draw < 82) {
    checked_.Retain(AnyHeld());
  } else if (draw < 84) {
    checked_.Discard(AnyHeld());
  } else if (draw < 94) {
    const StorageId storage = AnyHeld();
    checked_.Materialize(storage, AnyAbort());
  } else if (draw < 96) {
    const StorageId storage = AnyHeld();
    if (checked_.engine().StateOf(storage) == StorageState::kResident) {
      checked_.MakePermanent(storage);
    }
  } else if (draw < 97) {
    Reserve();
  } else {
    checked_.EvictAll(AnyAbort());
  }
  checked_.Check();
  log_ = Mix(Mix(log_, checked_.log()), checked_.engine().Fingerprint());
}

StorageId Shadow::AnyHeld() {
  return std::next(checked_.held().begin(), Below(static_cast<int>(checked_.held().size())))->first;
}

std::optional<size_t> Shadow::AnyAbort() {
  if (!Chance(15)) return std::nullopt;
  return Below(Chance(50) ? 3 : 12);
}

void Shadow::Submit() {
  std::vector<StorageId> inputs;
  for (int k = checked_.held().empty() ? 0 : Below(4); k > 0; --k) inputs.push_back(AnyHeld());
  std::vector<OutputSpec> specs(Chance(2) ? 0 : Chance(70) ? 1 : 1 + Below(4));
  std::set<StorageId> offered;
  for (OutputSpec& spec : specs) {
    spec.outside = Chance(6);
    spec.bytes = Chance(2) ? 0 : 1 + Below(static_cast<int>(options_.max_bytes));
    if (inputs.empty() || spec.outside || !Chance(50)) continue;
    const int j = Below(static_cast<int>(inputs.size()));
    // Some offers must be declined: of what others hold as well, or of one input for two outputs.
    if (checked_.held().at(inputs[j]).refs != 1 && !Chance(20)) continue;
    if (!offered.insert(inputs[j]).second && !Chance(20)) continue;
    spec.in_place_input = j;
    // Sometimes of another size: then it must not be done in place.
    if (Chance(90)) spec.bytes = checked_.memory().BytesOf(inputs[j]);
  }
  const double cost_seconds = Chance(10) ? 0 : 1e-6 * (1 + Below(30));
  const bool recomputable = !Chance(6);
  if (specs.size() == 1 && Chance(50) &&
      checked_.RunDirectly(inputs, specs[0], cost_seconds, recomputable, Chance(5))) {
    return;
  }
  const OperationId op = checked_.Add(inputs, specs, cost_seconds, recomputable);
  // An operation that waits keeps its inputs: they may be let go of before it runs.
  if (!inputs.empty() && offered.empty() && Chance(15)) {
    checked_.Release(inputs[0]);
    checked_.Check();
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    const int64_t failed_runs = checked_.counters().failed_runs;
    if (checked_.Run(op, AnyAbort())) {
      for (const StorageId input : offered) checked_.Release(input);
      return;
    }
    checked_.Check();
    // What was aborted before its own run may run again; what found no room would not again.
    if (checked_.counters().failed_runs != failed_runs || Chance(30)) break;
  }
  checked_.Forget(op);
}

void Shadow::AddSource() {
  const int64_t bytes = 1 + Below(static_cast<int>(options_.max_bytes));
  const int64_t alignment_bytes = options_.engine.alignment_bytes;
  const int slots = static_cast<int>(options_.engine.capacity_bytes / alignment_bytes);
  switch (Below(3)) {
    case 0: {
      const int64_t offset = Below(slots + 2) * alignment_bytes;
      checked_.AddForeign(offset, bytes, Chance(50));
      break;
    }
    case 1:
      checked_.AddAdopted(bytes);
      break;
    default:
      checked_.AddOutside(bytes);
  }
}

void Shadow::Reserve() {
  const int64_t reserved_bytes = checked_.reserved_bytes();
  // A reservation never ends: stop before it leaves no pool.
  if (reserved_bytes * 5 > options_.engine.capacity_bytes) return;
  checked_.Reserve(reserved_bytes + 1 + Below(100), AnyAbort());
}

}  // namespace coop::testing
