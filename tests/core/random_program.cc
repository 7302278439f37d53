#include "tests/core/random_program.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

namespace coop::testing {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // In [0, count).
  int Below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool Chance(double chance) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < chance; }

 private:
  std::mt19937_64 random_;  // its output is fixed by the standard, unlike the distributions'
};

int64_t RoundUp(int64_t bytes, int64_t alignment_bytes) {
  return (std::max<int64_t>(bytes, 1) + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

void Require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error("plan: " + what);
}

// Contents are functions of the program alone: that is what every execution has to reproduce.
std::vector<uint64_t> Contents(const Program& program) {
  std::vector<uint64_t> contents(program.storage_bytes.size());
  for (const Program::Input& input : program.inputs)
    contents[input.storage] = Mix(1, input.storage);
  for (size_t op = 0; op < program.op_cost_seconds.size(); ++op) {
    uint64_t hash = Mix(2, op);
    for (int32_t i = program.op_input_begin[op]; i < program.op_input_begin[op + 1]; ++i) {
      hash = Mix(hash, contents[program.op_inputs[i]]);
    }
    for (int32_t o = program.op_output_begin[op]; o < program.op_output_begin[op + 1]; ++o) {
      contents[program.op_outputs[o]] = Mix(hash, o - program.op_output_begin[op]);
    }
  }
  return contents;
}

std::span<const int32_t> Slice(const std::vector<int32_t>& begin, const std::vector<int32_t>& all,
                               size_t i) {
  return std::span(all).subspan(begin[i], begin[i + 1] - begin[i]);
}

}  // namespace

Program RandomProgram(uint64_t seed, const ProgramShape& shape) {
  Draw draw(seed);
  Program program;
  std::vector<int> last_use;       // operation of the last use, -1: none
  std::vector<bool> overwritable;  // computed or donated
  int64_t foreign_end = 0;
  const auto add_storage = [&](int64_t bytes, bool outside) {
    program.storage_bytes.push_back(bytes);
    program.storage_outside.push_back(outside ? 1 : 0);
    last_use.push_back(-1);
    overwritable.push_back(!outside);
    return static_cast<int32_t>(program.storage_bytes.size() - 1);
  };
  const auto draw_bytes = [&] {
    return int64_t{1} + draw.Below(static_cast<int>(shape.max_bytes));
  };

  for (int i = 0; i < shape.inputs; ++i) {
    Program::Input input{};
    const int64_t bytes = draw_bytes();
    const int where = draw.Below(3);
    input.storage = add_storage(bytes, where == 0);
    input.donated = draw.Chance(0.5);
    input.offset = -1;
    if (where == 0) {
      input.where = Program::Where::kOutside;
    } else if (where == 1) {
      input.where = Program::Where::kForeign;
      foreign_end += draw.Chance(0.3) ? shape.alignment_bytes : 0;
      input.offset = foreign_end;
      foreign_end += RoundUp(bytes, shape.alignment_bytes);
    } else {
      input.where = Program::Where::kAdopt;
    }
    overwritable[input.storage] = where != 0 && input.donated;
    program.inputs.push_back(input);
  }

  program.op_input_begin.push_back(0);
  program.op_output_begin.push_back(0);
  for (int op = 0; op < shape.operations; ++op) {
    const int known = static_cast<int>(program.storage_bytes.size());
    const int fan_in = 1 + draw.Below(shape.max_fan_in);
    for (int k = 0; k < fan_in; ++k) {
      const int recent = std::min(known, 4);
      const int storage =
          draw.Chance(shape.unused_later) ? known - 1 - draw.Below(recent) : draw.Below(known);
      program.op_inputs.push_back(storage);
      last_use[storage] = op;
    }
    program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
    const int64_t first_bytes =
        program.storage_bytes[program.op_inputs[program.op_input_begin[op]]];
    const int fan_out = draw.Chance(0.7) ? 1 : 1 + draw.Below(shape.max_fan_out);
    for (int k = 0; k < fan_out; ++k) {
      const bool outside = draw.Chance(shape.outside);
      const int64_t bytes = draw.Chance(shape.same_bytes) ? first_bytes : draw_bytes();
      const int32_t storage = add_storage(bytes, outside);
      program.op_outputs.push_back(storage);
      last_use[storage] = op;  // unused: dead as soon as it is computed
    }
    program.op_output_begin.push_back(static_cast<int32_t>(program.op_outputs.size()));
    // A few costs of zero and many ties: scores must cope.
    program.op_cost_seconds.push_back(draw.Chance(0.1) ? 0.0 : 1e-6 * (1 + draw.Below(50)));
    program.op_recomputable.push_back(draw.Chance(shape.impure) ? 0 : 1);
  }

  const int storages = static_cast<int>(program.storage_bytes.size());
  std::vector<bool> is_output(storages, false);
  for (int k = 0; k < 2 + draw.Below(4); ++k) {
    const int storage =
        draw.Chance(0.7) ? storages - 1 - draw.Below(std::min(storages, 6)) : draw.Below(storages);
    program.outputs.push_back(storage);
    is_output[storage] = true;
  }

  std::vector<std::vector<int32_t>> releases(shape.operations);
  for (int s = 0; s < storages; ++s) {
    // Of the program's outputs half are released as well: they are kept all the same.
    if (last_use[s] >= 0 && (!is_output[s] || draw.Chance(0.5))) releases[last_use[s]].push_back(s);
  }
  program.release_begin.push_back(0);
  for (const auto& list : releases) {
    program.releases.insert(program.releases.end(), list.begin(), list.end());
    program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
  }

  // In place: an input whose last use this is, of the same rounded size, each at most once.
  for (int op = 0; op < shape.operations; ++op) {
    const auto inputs = Slice(program.op_input_begin, program.op_inputs, op);
    std::set<int32_t> taken;
    for (const int32_t output : Slice(program.op_output_begin, program.op_outputs, op)) {
      int32_t in_place = -1;
      for (size_t j = 0; j < inputs.size() && in_place < 0; ++j) {
        const int32_t s = inputs[j];
        const bool fits = RoundUp(program.storage_bytes[s], shape.alignment_bytes) ==
                          RoundUp(program.storage_bytes[output], shape.alignment_bytes);
        // Now and then it is not the last use: then the planner must not take the offer.
        const bool offered = last_use[s] == op ? overwritable[s] : draw.Chance(0.1);
        if (fits && offered && !taken.contains(s) && program.storage_outside[output] == 0 &&
            draw.Chance(shape.in_place)) {
          in_place = static_cast<int32_t>(j);
          taken.insert(s);
        }
      }
      program.op_in_place.push_back(in_place);
    }
  }
  return program;
}

void CheckPlan(const Program& program, const PlanOptions& options, const Plan& plan) {
  Require(plan.feasible, "not feasible");
  const int64_t capacity_bytes = options.engine.capacity_bytes;
  FakeMemory memory(capacity_bytes, options.engine.alignment_bytes);
  const std::vector<uint64_t> contents = Contents(program);
  for (size_t s = 0; s < contents.size(); ++s) {
    memory.Define(static_cast<int32_t>(s), program.storage_bytes[s],
                  program.storage_outside[s] != 0, contents[s]);
  }
  int64_t blocked_bytes = 0;
  for (const auto& [offset, bytes] : options.foreign) {
    memory.Block(offset, bytes);
    blocked_bytes += memory.Rounded(bytes);
  }
  int64_t reserved_bytes = 0;
  for (const auto& [offset, bytes] : plan.reserved) {
    memory.Block(offset, bytes);
    reserved_bytes += bytes;
  }
  Require(reserved_bytes >= options.reserve_bytes, "reservation is too small");

  Require(plan.input_offsets.size() == program.inputs.size(), "an offset for each input");
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Program::Input& input = program.inputs[i];
    if (input.where == Program::Where::kForeign) {
      Require(plan.input_offsets[i] == input.offset, "a foreign input moved");
    }
    memory.Put(input.storage, plan.input_offsets[i]);
  }

  // Around checkpoints what only later operations read may wait for them, but for what is impure.
  const size_t operations = program.op_cost_seconds.size();
  std::vector<bool> has_run(operations, false);
  size_t next_operation = 0;
  int64_t recomputations = 0;
  int64_t evictions = 0;
  double compute_seconds = 0;
  double recompute_seconds = 0;
  for (size_t a = 0; a < plan.actions.size(); ++a) {
    const Action& action = plan.actions[a];
    if (action.kind == ActionKind::kEvict) {
      ++evictions;
      memory.Drop(action.id);
    } else if (action.kind == ActionKind::kDrop) {
      memory.Kill(action.id);
    } else {
      const auto op = static_cast<size_t>(action.id);
      if (action.recompute) {
        Require(has_run[op], "recomputed before it ran");
        Require(program.op_recomputable[op] != 0, "an impure operation was replayed");
        ++recomputations;
        recompute_seconds += program.op_cost_seconds[op];
      } else {
        Require(!has_run[op], "an operation ran twice for the first time");
        has_run[op] = true;
        const bool waited = op < next_operation;
        Require(!waited || program.op_recomputable[op] != 0, "an impure operation waited");
        for (; !waited && next_operation < op; ++next_operation) {
          Require(!options.checkpoints.empty() || has_run[next_operation],
                  "operations out of order");
        }
        if (!waited) next_operation = op + 1;
        compute_seconds += program.op_cost_seconds[op];
      }
      const auto outputs = Slice(program.op_output_begin, program.op_outputs, op);
      std::vector<int64_t> bytes;
      for (const int32_t output : outputs) bytes.push_back(program.storage_bytes[output]);
      std::vector<FakePlacement> placements;
      for (int32_t p = 0; p < action.placement_count; ++p) {
        const Placement& place = plan.placements[action.first_placement + p];
        placements.push_back({place.storage, place.offset, place.in_place_input});
        Require(place.in_place_input == kNone || options.engine.policy.in_place,
                "in place though switched off");
      }
      memory.Run(Mix(2, op), Slice(program.op_input_begin, program.op_inputs, op), outputs, bytes,
                 placements);
    }
    Require(memory.held_bytes() + blocked_bytes + reserved_bytes <= capacity_bytes,
            "over the capacity");
  }
  Require(std::find(has_run.begin(), has_run.end(), false) == has_run.end(),
          "not every operation ran");
  Require(memory.peak_bytes() + blocked_bytes + reserved_bytes <= plan.peak_bytes,
          "the stated peak is too low");

  std::set<int32_t> expected(program.outputs.begin(), program.outputs.end());
  const std::set<int32_t> released(program.releases.begin(), program.releases.end());
  for (const Program::Input& input : program.inputs) {
    if (!input.donated || !released.contains(input.storage)) expected.insert(input.storage);
  }
  for (const int32_t storage : expected) memory.Read(storage);
  for (const int32_t storage : memory.AllHeld()) {
    Require(expected.contains(storage), "left behind: storage " + std::to_string(storage));
  }
  Require(plan.stats.operations == static_cast<int64_t>(operations), "operations miscounted");
  Require(plan.stats.evictions <= evictions, "evictions miscounted");
  Require(plan.stats.recomputations == recomputations, "recomputations miscounted");
  Require(std::abs(plan.stats.compute_seconds - compute_seconds) <= 1e-9 + 1e-9 * compute_seconds,
          "compute seconds miscounted");
  Require(
      std::abs(plan.stats.recompute_seconds - recompute_seconds) <= 1e-9 + 1e-9 * recompute_seconds,
      "recompute seconds miscounted");

  // The stated places of the results.
  std::vector<int64_t> offsets;
  for (const int32_t storage : program.outputs) offsets.push_back(memory.OffsetOf(storage));
  Require(offsets == plan.output_offsets, "outputs are not where the plan says");
}

int64_t TotalRoundedBytes(const Program& program, int64_t alignment_bytes) {
  int64_t total = 0;
  for (size_t s = 0; s < program.storage_bytes.size(); ++s) {
    total += RoundUp(program.storage_bytes[s], alignment_bytes);
  }
  return total;
}

int64_t LowerBoundBytes(const Program& program, int64_t alignment_bytes) {
  int64_t bound = 0;
  for (size_t op = 0; op < program.op_cost_seconds.size(); ++op) {
    const auto inputs = Slice(program.op_input_begin, program.op_inputs, op);
    const std::set<int32_t> distinct(inputs.begin(), inputs.end());
    int64_t bytes = 0;
    for (const int32_t s : distinct) {
      if (program.storage_outside[s] == 0)
        bytes += RoundUp(program.storage_bytes[s], alignment_bytes);
    }
    for (int32_t o = program.op_output_begin[op]; o < program.op_output_begin[op + 1]; ++o) {
      const int32_t s = program.op_outputs[o];
      if (program.storage_outside[s] == 0 && program.op_in_place[o] < 0) {
        bytes += RoundUp(program.storage_bytes[s], alignment_bytes);
      }
    }
    bound = std::max(bound, bytes);
  }
  return bound;
}

}  // namespace coop::testing
