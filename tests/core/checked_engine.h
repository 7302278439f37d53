// An engine whose every decision is carried out on fake memory and compared with it.
//
// Model: knows what every storage must contain (a hash of its recipe and of its inputs' contents)
// and which references are held. After every call Check() compares: the engine and the memory agree
// on what is resident and where, nothing is lost that cannot be recomputed, the byte counters are
// those of the memory. A wrong decision of the engine surfaces as a std::logic_error that names it.
// Thread rule: one thread. Complexity: O(storages) a check.

#ifndef COOP_TESTS_CORE_CHECKED_ENGINE_H_
#define COOP_TESTS_CORE_CHECKED_ENGINE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cc/core/engine/engine.h"
#include "tests/core/fake_memory.h"

namespace coop::testing {

// Throws std::logic_error naming `what` and `id`.
void Require(bool condition, const std::string& what, int32_t id = kNone);

class CheckedEngine {
 public:
  explicit CheckedEngine(const EngineOptions& options);

  // A storage that is held, with what decides what may happen to it.
  struct Known {
    int refs = 1;
    bool source = false;
    bool donated = false;
    bool outside = false;
    bool permanent = false;
    bool recomputable = true;
  };
  struct Recipe {
    uint64_t seed = 0;
    double cost_seconds = 0;
    bool recomputable = true;
    std::vector<StorageId> inputs;
    std::vector<StorageId> outputs;
    std::vector<OutputSpec> specs;
  };
  struct Counters {
    int64_t runs = 0, failed_runs = 0, aborts = 0, aborted_runs = 0;
    int64_t recomputations = 0, evictions = 0, drops = 0, scratch = 0;
    int64_t direct = 0, taken_back = 0;
    int64_t in_place = 0, in_place_sources = 0, materialized = 0, reservations = 0;
  };

  // Adds an operation and defines what its outputs must contain.
  OperationId Add(std::span<const StorageId> inputs, std::span<const OutputSpec> specs,
                  double cost_seconds, bool recomputable = true);
  // Runs it. With `abort_at` only so many of its actions are carried out and the rest is aborted.
  // True: its outputs are there and held. A refusal must have changed nothing.
  bool Run(OperationId operation, std::optional<size_t> abort_at = std::nullopt);
  void Forget(OperationId operation);
  // Add, Run, and the release of inputs that were offered for in-place use (once each). Forgets the
  // operation where it is refused.
  std::optional<std::vector<StorageId>> Submit(std::span<const StorageId> inputs,
                                               std::span<const OutputSpec> specs,
                                               double cost_seconds, bool recomputable = true);

  // The short way, and perhaps back. False where it has to go the general way, with the state
  // unchanged.
  bool RunDirectly(std::span<const StorageId> inputs, const OutputSpec& spec, double cost_seconds,
                   bool recomputable, bool take_back);

  // False where refused, with the state unchanged (for a foreign block: exactly where not free).
  std::optional<StorageId> AddForeign(int64_t offset, int64_t bytes, bool donated);
  std::optional<StorageId> AddAdopted(int64_t bytes);
  StorageId AddOutside(int64_t bytes);

  bool Materialize(StorageId storage, std::optional<size_t> abort_at = std::nullopt);
  bool Reserve(int64_t bytes, std::optional<size_t> abort_at = std::nullopt);
  void EvictAll(std::optional<size_t> abort_at = std::nullopt);
  void MakePermanent(StorageId storage);
  void Retain(StorageId storage);
  void Release(StorageId storage);
  bool Discard(StorageId storage);

  // Validates the engine and compares it with the memory.
  void Check() const;
  // Brings each held storage back and lets go of it; the engine must be empty in the end.
  void Finish();

  [[nodiscard]] const Engine& engine() const { return engine_; }
  [[nodiscard]] const FakeMemory& memory() const { return memory_; }
  [[nodiscard]] const std::map<StorageId, Known>& held() const { return held_; }
  // Of the operations that may still run.
  [[nodiscard]] const std::map<OperationId, Recipe>& recipes() const { return recipes_; }
  [[nodiscard]] const Counters& counters() const { return counters_; }
  [[nodiscard]] int64_t reserved_bytes() const;
  // Hash of every decision so far.
  [[nodiscard]] uint64_t log() const { return log_; }

 private:
  void Hold(StorageId storage, const Known& known, int64_t bytes, int64_t offset);
  // Carries out the last transaction, or its beginning and Abort. Whether `own` ran first.
  bool Execute(OperationId own, std::optional<size_t> abort_at);
  void ExecuteRun(const Action& action, std::span<const Placement> placements, bool is_own);
  void TakeFreedAndRetired();
  void BlockReservations();

  EngineOptions options_;
  Engine engine_;
  FakeMemory memory_;
  std::map<StorageId, Known> held_;
  std::map<OperationId, Recipe> recipes_;
  std::vector<Range> reserved_;
  StorageId max_storage_ = kNone;
  uint64_t next_seed_ = 1;
  uint64_t log_ = 0;
  Counters counters_;
};

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_CHECKED_ENGINE_H_
