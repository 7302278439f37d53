#include "cc/baselines/dtr/simulator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cc/baselines/dtr/neighborhood.h"
#include "cc/core/base/check.h"

namespace coop {
namespace {

constexpr int64_t kMost = int64_t{1} << 62;

__extension__ typedef unsigned __int128 Wide;

size_t At(int32_t id) { return static_cast<size_t>(id); }

int Log2(Wide value) {
  const auto high = static_cast<uint64_t>(value >> 64);
  return high != 0 ? 127 - std::countl_zero(high)
                   : 63 - std::countl_zero(static_cast<uint64_t>(value));
}

// The double nearest to the quotient, as Python divides integers: ties of scores must be theirs.
double Quotient(int64_t numerator, Wide denominator) {
  if (numerator == 0) return 0;
  const Wide magnitude =
      numerator < 0 ? Wide{0} - static_cast<Wide>(numerator) : static_cast<Wide>(numerator);
  double quotient = 0;
  if (Log2(magnitude) < 53 && Log2(denominator) < 53) {
    quotient = static_cast<double>(static_cast<uint64_t>(magnitude)) /
               static_cast<double>(static_cast<uint64_t>(denominator));
  } else {
    // A denominator is below 2^70 (2^62 bytes in all would need 2^8 years): at least 55 bits of the
    // quotient, the last of them set if anything is left.
    const int shift = 126 - Log2(magnitude);
    const Wide scaled = magnitude << shift;
    Wide whole = scaled / denominator;
    if (whole * denominator != scaled) whole |= 1;
    int cut = Log2(whole) - 62;
    if (cut < 0) cut = 0;
    auto bits = static_cast<uint64_t>(whole >> cut);
    if ((Wide{bits} << cut) != whole) bits |= 1;
    quotient = std::ldexp(static_cast<double>(bits), cut - shift);
  }
  return numerator < 0 ? -quotient : quotient;
}

void Validate(const FungibleProgram& program) {
  const auto operations = program.op_cost_ns.size();
  const auto is_table = [&](const std::vector<int32_t>& begin, size_t count) {
    if (begin.size() != operations + 1 || begin.front() != 0 || At(begin.back()) != count) {
      return false;
    }
    for (size_t i = 0; i < operations; ++i) {
      if (begin[i] > begin[i + 1]) return false;
    }
    return true;
  };
  Require(is_table(program.op_arg_begin, program.op_args.size()),
          "op_arg_begin must rise from 0 to the number of op_args");
  Require(is_table(program.op_result_begin, program.result_bytes.size()),
          "op_result_begin must rise from 0 to the number of results");
  Require(program.result_alias.size() == program.result_bytes.size(),
          "result_alias must have one entry a result");
  Require(program.step_ids.size() == program.step_kinds.size(),
          "step_kinds and step_ids must have one entry a step");
  int64_t total_ns = 1;
  int64_t total_bytes = 0;
  for (size_t i = 0; i < operations; ++i) {
    const int32_t first = program.op_result_begin[i];
    const int32_t args = program.op_arg_begin[i + 1] - program.op_arg_begin[i];
    Require(first < program.op_result_begin[i + 1], "an operation must have a result");
    Require(program.op_cost_ns[i] >= 0 && program.op_cost_ns[i] <= kMost - total_ns,
            "costs must not be negative, nor their sum 2^62");
    total_ns += program.op_cost_ns[i];
    for (int32_t k = program.op_arg_begin[i]; k < program.op_arg_begin[i + 1]; ++k) {
      Require(program.op_args[At(k)] >= 0 && program.op_args[At(k)] < first,
              "an argument must be the result of an earlier operation");
    }
    for (int32_t t = first; t < program.op_result_begin[i + 1]; ++t) {
      const int64_t bytes = program.result_bytes[At(t)];
      const int32_t alias = program.result_alias[At(t)];
      Require(bytes >= 0 && bytes <= kMost - total_bytes,
              "sizes must not be negative, nor their sum 2^62");
      total_bytes += bytes;
      Require(alias >= kNone && alias < args, "an alias must be of an argument");
      Require(alias == kNone || bytes == 0, "an alias has no size of its own");
    }
  }
}

struct OutOfMemory {};
struct Thrashing {};

class Simulator {
 public:
  Simulator(const FungibleProgram& program, const FungibleOptions& options)
      : program_(program), options_(options), graph_(program, options.heuristic) {}

  FungibleResult Simulate() {
    try {
      for (size_t i = 0; i < program_.step_kinds.size(); ++i) {
        Step(static_cast<FungibleStep>(program_.step_kinds[i]), program_.step_ids[i]);
      }
    } catch (const OutOfMemory&) {
      result_.status = FungibleStatus::kOutOfMemory;
    } catch (const Thrashing&) {
      result_.status = FungibleStatus::kThrashing;
    }
    return result_;
  }

 private:
  // A tensor that is being brought in: its arguments one by one, then its operation.
  struct Frame {
    int32_t tensor = kNone;
    bool recompute = false;
    size_t next = 0;
    std::vector<int32_t> missing;
  };

  FungibleStorage& StorageOf(int32_t tensor) {
    return graph_.storage(graph_.tensor(tensor).storage);
  }

  void Step(FungibleStep kind, int32_t id) {
    if (kind == FungibleStep::kRun) {
      Require(id == next_operation_ && id < program_.operation_count(),
              "steps must run every operation once, in order");
      ++next_operation_;
      graph_.AddResults(id);
      BringIn(graph_.FirstResultOf(id), false);
      for (int32_t t = graph_.FirstResultOf(id); t < graph_.EndResultOf(id); ++t) {
        StorageOf(t).last_access_ns = result_.clock_ns;
      }
      return;
    }
    Require(id >= 0 && next_operation_ > 0 && id < graph_.EndResultOf(next_operation_ - 1),
            "a step must name a tensor that was computed before");
    FungibleStorage& storage = StorageOf(id);
    switch (kind) {
      case FungibleStep::kRetain:
        Require(storage.references > 0, "a storage without references must not be referred to");
        ++storage.references;
        return;
      case FungibleStep::kRelease:
        Require(storage.references > 0,
                "a storage must not be released more often than it is held");
        if (--storage.references > 0 || !storage.resident) return;
        if (storage.pinned && !options_.release_pinned) return;
        if (storage.pinned) {
          storage.pinned = false;
          Unlock(graph_.tensor(id).storage);
        }
        Evict(graph_.tensor(id).storage);
        return;
      case FungibleStep::kPin:
        if (!graph_.tensor(id).defined) BringIn(id, true);
        if (storage.pinned) return;
        Lock(graph_.tensor(id).storage);
        storage.pinned = true;
        return;
      case FungibleStep::kRun:
        break;
    }
    Require(false, "a step must be a run, retain, release or pin");
  }

  // Iterative: chains of missing arguments are as deep as the program is long.
  void BringIn(int32_t tensor, bool recompute) {
    Enter(tensor, recompute);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.next < frame.missing.size()) {
        const int32_t arg = frame.missing[frame.next];
        // It may have come back beside a sibling.
        if (!graph_.tensor(arg).defined) {
          Enter(arg, true);
          continue;
        }
        Lock(graph_.tensor(arg).storage);
        ++frame.next;
        continue;
      }
      const int32_t operation = graph_.tensor(frame.tensor).operation;
      Compute(frame.tensor, operation, frame.recompute);
      for (const int32_t arg : graph_.ArgsOf(operation)) Unlock(graph_.tensor(arg).storage);
      frames_.pop_back();
      if (options_.recompute_limit_ns >= 0 && result_.recompute_ns > options_.recompute_limit_ns) {
        throw Thrashing();
      }
    }
  }

  void Enter(int32_t tensor, bool recompute) {
    Frame frame;
    frame.tensor = tensor;
    frame.recompute = recompute;
    const auto args = graph_.ArgsOf(graph_.tensor(tensor).operation);
    for (const int32_t arg : args) StorageOf(arg).last_access_ns = result_.clock_ns;
    for (const int32_t arg : args) {
      if (!graph_.tensor(arg).defined) frame.missing.push_back(arg);
    }
    for (const int32_t arg : args) {
      if (graph_.tensor(arg).defined) Lock(graph_.tensor(arg).storage);
    }
    frames_.push_back(std::move(frame));
  }

  void Compute(int32_t asked, int32_t operation, bool recompute) {
    const int32_t first = graph_.FirstResultOf(operation);
    const int32_t end = graph_.EndResultOf(operation);
    int64_t bytes = 0;
    for (int32_t t = first; t < end; ++t) bytes += program_.result_bytes[At(t)];
    MakeRoom(bytes);
    const int64_t cost_ns = program_.op_cost_ns[At(operation)];
    result_.clock_ns += cost_ns;
    (recompute ? result_.recompute_ns : result_.compute_ns) += cost_ns;
    ++(recompute ? result_.recomputations : result_.operations);
    in_use_bytes_ += bytes;
    result_.peak_bytes = std::max(result_.peak_bytes, in_use_bytes_);
    computed_.clear();
    const auto make = [&](int32_t t) {
      if (graph_.tensor(t).defined) {  // made twice: the second copy goes again
        in_use_bytes_ -= program_.result_bytes[At(t)];
        return;
      }
      graph_.tensor(t).defined = true;
      FungibleStorage& storage = StorageOf(t);
      if (!storage.resident) computed_.push_back(graph_.tensor(t).storage);
      storage.resident = true;
    };
    for (int32_t t = first; t < end; ++t) {
      if (t != asked) make(t);
    }
    make(asked);
    for (const int32_t s : computed_) AddToPool(s);
    graph_.OnComputed(computed_);
  }

  void MakeRoom(int64_t bytes) {
    if (options_.budget_bytes < 0) return;
    while (in_use_bytes_ + bytes > options_.budget_bytes) {
      const int32_t cheapest = Cheapest();
      if (cheapest == kNone) throw OutOfMemory();
      Evict(cheapest);
      ++result_.evictions;
    }
  }

  int32_t Cheapest() {
    int32_t cheapest = kNone;
    double least = std::numeric_limits<double>::infinity();
    for (int32_t s = pool_first_; s != kNone; s = graph_.storage(s).pool_after) {
      const double score = Score(s);
      ++result_.scores;
      if (score <= least) {
        least = score;
        cheapest = s;
      }
      if (score == 0) break;
    }
    return cheapest;
  }

  double Score(int32_t s) {
    const FungibleStorage& storage = graph_.storage(s);
    const auto over = [](int64_t cost, Wide by) {
      return by == 0 ? std::numeric_limits<double>::infinity() : Quotient(cost, by);
    };
    const auto bytes = static_cast<Wide>(storage.bytes);
    switch (options_.heuristic) {
      case FungibleHeuristic::kLru:
        return static_cast<double>(storage.last_access_ns);
      case FungibleHeuristic::kSize:
        return over(1, bytes);
      case FungibleHeuristic::kMsps:
        return over(storage.cost_ns + graph_.CostAround(s), bytes);
      default:
        return over(storage.cost_ns + graph_.CostAround(s),
                    bytes * static_cast<Wide>(result_.clock_ns - storage.last_access_ns));
    }
  }

  void Evict(int32_t s) {
    FungibleStorage& storage = graph_.storage(s);
    Check(storage.resident && storage.locks == 0, "what is evicted is resident and not locked");
    storage.resident = false;
    in_use_bytes_ -= storage.bytes;
    TakeFromPool(s);
    for (const int32_t t : storage.tensors) graph_.tensor(t).defined = false;
    graph_.OnEvicted(s);
  }

  void Lock(int32_t s) {
    FungibleStorage& storage = graph_.storage(s);
    Check(storage.resident, "what is locked is resident");
    if (storage.locks++ == 0) TakeFromPool(s);
  }

  void Unlock(int32_t s) {
    FungibleStorage& storage = graph_.storage(s);
    Check(storage.locks > 0, "what is unlocked was locked");
    if (--storage.locks == 0) AddToPool(s);
  }

  void AddToPool(int32_t s) {
    FungibleStorage& storage = graph_.storage(s);
    Check(!storage.in_pool && storage.locks == 0, "the pool holds what is not locked, once");
    storage.in_pool = true;
    storage.pool_before = pool_last_;
    storage.pool_after = kNone;
    (pool_last_ == kNone ? pool_first_ : graph_.storage(pool_last_).pool_after) = s;
    pool_last_ = s;
  }

  void TakeFromPool(int32_t s) {
    FungibleStorage& storage = graph_.storage(s);
    Check(storage.in_pool, "what leaves the pool is in it");
    storage.in_pool = false;
    const int32_t before = storage.pool_before;
    const int32_t after = storage.pool_after;
    (before == kNone ? pool_first_ : graph_.storage(before).pool_after) = after;
    (after == kNone ? pool_last_ : graph_.storage(after).pool_before) = before;
  }

  const FungibleProgram& program_;
  const FungibleOptions& options_;
  FungibleGraph graph_;
  FungibleResult result_;
  std::vector<Frame> frames_;
  std::vector<int32_t> computed_;
  int64_t in_use_bytes_ = 0;
  int32_t next_operation_ = 0;
  int32_t pool_first_ = kNone;
  int32_t pool_last_ = kNone;
};

}  // namespace

FungibleResult SimulateFungible(const FungibleProgram& program, const FungibleOptions& options) {
  Validate(program);
  return Simulator(program, options).Simulate();
}

}  // namespace coop
