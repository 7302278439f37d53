// Draws random calls of the engine.
//
// Model: a random walk over everything a caller may do: operations with random inputs, several
// outputs and in-place offers, sources at fixed places or adopted, references taken and dropped,
// values brought back or made permanent, reservations, evictions, and aborts at any action. The
// same seed gives the same calls. CheckedEngine carries them out and compares.
// Thread rule: one thread.

#ifndef COOP_TESTS_CORE_SHADOW_H_
#define COOP_TESTS_CORE_SHADOW_H_

#include <cstdint>
#include <optional>
#include <random>

#include "tests/core/checked_engine.h"

namespace coop::testing {

struct ShadowOptions {
  EngineOptions engine;
  int max_held = 20;        // storages held at once, roughly
  int64_t max_bytes = 300;  // of one storage
};

class Shadow {
 public:
  Shadow(uint64_t seed, const ShadowOptions& options)
      : random_(seed), options_(options), checked_(options.engine) {}

  // One random call, checked. Throws std::logic_error when something is wrong.
  void Step();
  void Finish() { checked_.Finish(); }

  [[nodiscard]] const CheckedEngine& checked() const { return checked_; }
  [[nodiscard]] uint64_t log() const { return log_; }

 private:
  int Below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool Chance(int percent) { return Below(100) < percent; }
  StorageId AnyHeld();
  // Where to abort a transaction, for some of them.
  std::optional<size_t> AnyAbort();

  void Submit();
  void AddSource();
  void Reserve();

  std::mt19937_64 random_;  // its output is fixed by the standard, unlike the distributions'
  ShadowOptions options_;
  CheckedEngine checked_;
  uint64_t log_ = 0;
};

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_SHADOW_H_
