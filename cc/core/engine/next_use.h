// What the front end knows ahead: when it will read what, and what is worth how much to it.
//
// Model: time is the program's: the cost of the operations that the front end has asked for, each
// counted once. It says how far the program is, and for a storage at what time it will be read
// next. Nobody has to say anything; a storage of which nothing was said is unknown. The score of a
// storage is multiplied by its worth, 1 if nothing was said: what a search over plans varies.
// Invariant: what is said holds until something else is said; of a new storage nothing was said.
// (Dead ones keep it, so that a transaction that is undone has nothing to restore.)
// What is treasured is not of the future: it stays so when that is taken back.
// Thread rule: one thread at a time. Complexity: O(1).
// Source: ours. The paper's policies know no future and take staleness for it.
#ifndef COOP_CORE_ENGINE_NEXT_USE_H_
#define COOP_CORE_ENGINE_NEXT_USE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cc/core/base/check.h"
#include "cc/core/base/types.h"

namespace coop {

class Upcoming {
 public:
  static constexpr double kUnknown = -1;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  void SetNow(double seconds) { now_seconds_ = seconds; }
  void SetNextRead(StorageId storage, double at_seconds) {
    const auto index = static_cast<size_t>(storage);
    if (index >= at_seconds_.size()) at_seconds_.resize(index + 1, kUnknown);
    at_seconds_[index] = at_seconds;
  }
  // The id is that of a new storage.
  void Forget(StorageId storage) {
    const auto index = static_cast<size_t>(storage);
    if (index < at_seconds_.size()) at_seconds_[index] = kUnknown;
    if (index < worth_.size()) worth_[index] = 1;
    if (index < treasured_.size()) treasured_[index] = 0;
  }
  // Of all storages: nothing was said.
  void Clear() {
    now_seconds_ = 0;
    at_seconds_.clear();
    worth_.clear();
  }
  void SetWorth(StorageId storage, double factor) {
    const auto index = static_cast<size_t>(storage);
    if (index >= worth_.size()) worth_.resize(index + 1, 1);
    worth_[index] = factor;
  }
  [[nodiscard]] double Worth(StorageId storage) const {
    const auto index = static_cast<size_t>(storage);
    return index < worth_.size() ? worth_[index] : 1;
  }
  void Treasure(StorageId storage) {
    const auto index = static_cast<size_t>(storage);
    if (index >= treasured_.size()) treasured_.resize(index + 1, 0);
    treasured_[index] = 1;
  }
  [[nodiscard]] bool any_treasured() const { return !treasured_.empty(); }
  [[nodiscard]] bool IsTreasured(StorageId storage) const {
    const auto index = static_cast<size_t>(storage);
    return index < treasured_.size() && treasured_[index] != 0;
  }
  // Until it is read next, of the program's time; kUnknown if nothing was said.
  [[nodiscard]] double SecondsUntilRead(StorageId storage) const {
    const auto index = static_cast<size_t>(storage);
    if (index >= at_seconds_.size() || at_seconds_[index] < 0) return kUnknown;
    return at_seconds_[index] > now_seconds_ ? at_seconds_[index] - now_seconds_ : 0;
  }
  [[nodiscard]] bool IsReadNever(StorageId storage) const {
    return SecondsUntilRead(storage) == kNever;
  }
  [[nodiscard]] uint64_t Fingerprint(uint64_t hash) const {
    for (const double at : at_seconds_) hash = HashValues(hash, Bits(at));
    for (const double factor : worth_) hash = HashValues(hash, Bits(factor));
    for (const uint8_t treasured : treasured_) hash = HashValues(hash, uint64_t{treasured});
    return HashValues(hash, Bits(now_seconds_));
  }

 private:
  double now_seconds_ = 0;
  std::vector<double> at_seconds_;  // by storage
  std::vector<double> worth_;       // by storage; short, or empty, where nothing was said
  std::vector<uint8_t> treasured_;  // likewise
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_NEXT_USE_H_
