#include "cc/core/planner/min_cut_keep_set.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/core/planner/max_flow.h"

namespace coop {
namespace {

// All seconds of a program are so many units: finer than the differences that break ties.
constexpr double kUnits = static_cast<double>(int64_t{1} << 50);
// The last operation is so much dearer than it is.
constexpr double kTieBreak = 1e-3;
constexpr int kBisections = 40;
// Prices this close together are one: closer than those of the layers of a deep network.
constexpr double kClosePrices = 1 + 1e-6;

// A program by storages.
struct Lives {
  std::vector<int64_t> pool_bytes;  // 0 for what lies outside
  std::vector<int32_t> made_at;     // kNone: an input
  // The last operation that reads it; operation_count(): the end; kNone: no part of the program.
  std::vector<int32_t> until;
};

Lives LivesOf(const Program& program) {
  Lives lives;
  const size_t storages = program.storage_bytes.size();
  const int32_t end = program.operation_count();
  lives.pool_bytes = program.storage_bytes;
  lives.made_at.assign(storages, kNone);
  lives.until.assign(storages, kNone);
  for (const Program::Input& input : program.inputs) {
    const auto s = static_cast<size_t>(input.storage);
    lives.until[s] = end;
    if (input.where == Program::Where::kOutside) lives.pool_bytes[s] = 0;
  }
  for (int32_t i = 0; i < end; ++i) {
    for (const int32_t storage : Row(program.op_outputs, program.op_output_begin, i)) {
      const auto s = static_cast<size_t>(storage);
      lives.made_at[s] = i;
      lives.until[s] = end;
      if (program.storage_outside[s] != 0) lives.pool_bytes[s] = 0;
    }
    for (const int32_t storage : Row(program.releases, program.release_begin, i)) {
      lives.until[static_cast<size_t>(storage)] = i;
    }
  }
  for (const Program::Input& input : program.inputs) {
    if (!input.donated) lives.until[static_cast<size_t>(input.storage)] = end;
  }
  for (const int32_t storage : program.outputs) lives.until[static_cast<size_t>(storage)] = end;
  return lives;
}

// Bytes of inputs that the outputs of an operation may take the place of.
int64_t OverwrittenBytes(const Program& program, const Lives& lives, int32_t operation) {
  const auto inputs = Row(program.op_inputs, program.op_input_begin, operation);
  int64_t bytes = 0;
  for (const int32_t position : Row(program.op_in_place, program.op_output_begin, operation)) {
    if (position == kNone) continue;
    const auto input = static_cast<size_t>(inputs[static_cast<size_t>(position)]);
    if (lives.until[input] == operation) bytes += lives.pool_bytes[input];
  }
  return bytes;
}

// The cheapest sets for one price of memory each.
class Pricing {
 public:
  // With `may_wait` operations that nothing needs before the moment run after it for the first
  // time.
  Pricing(const Program& program, const Lives& lives, int32_t moment,
          const std::vector<uint8_t>& anyway, bool may_wait);

  // Of the pool, when nothing that could be kept is.
  [[nodiscard]] int64_t needed_bytes() const { return needed_bytes_; }
  // What is kept if a byte costs so many units (of kUnits for the whole program). The less, the
  // more is kept; 0 is for free.
  const std::vector<uint8_t>& KeptAt(double price);
  [[nodiscard]] int64_t BytesOf(const std::vector<uint8_t>& kept) const;
  // From which price on nothing is kept that can be made again.
  [[nodiscard]] double HighestPrice() const { return kUnits * (1 + kTieBreak); }
  // The lowest price at which it fits; the highest if it never does.
  template <typename Fits>
  [[nodiscard]] double LowestPrice(const Fits& fits) const;
  [[nodiscard]] Keeping Describe(const std::vector<uint8_t>& kept) const;

 private:
  static constexpr int32_t kSource = 0;
  static constexpr int32_t kSink = 1;

  [[nodiscard]] int32_t NodeOfOperation(int32_t operation) const { return 2 + operation; }
  [[nodiscard]] bool IsChoice(int32_t storage) const {
    return node_[static_cast<size_t>(storage)] != kNone;
  }
  [[nodiscard]] bool IsKeptAnyway(int32_t storage) const {
    return !anyway_.empty() && anyway_[static_cast<size_t>(storage)] != 0;
  }
  // By operation before the moment: whether something before it reads what the operation makes.
  [[nodiscard]] std::vector<uint8_t> NeededBefore() const;
  [[nodiscard]] bool IsReadLater(int32_t storage) const {
    return lives_.until[static_cast<size_t>(storage)] > moment_;
  }

  const Program& program_;
  const Lives& lives_;
  std::vector<uint8_t> anyway_;  // by storage, or empty
  int32_t moment_;
  int64_t needed_bytes_ = 0;
  std::vector<int32_t> choices_;  // storages that are kept or not
  std::vector<int32_t> node_;     // by storage; kNone: no choice
  std::vector<int32_t> edge_;     // by choice: the one that is cut if it is kept
  FlowNetwork network_;           // of price 0
  std::map<double, std::vector<uint8_t>> known_;
};

Pricing::Pricing(const Program& program, const Lives& lives, int32_t moment,
                 const std::vector<uint8_t>& anyway, bool may_wait)
    : program_(program), lives_(lives), anyway_(anyway), moment_(moment), network_(0) {
  const size_t storages = program.storage_bytes.size();
  std::vector<uint8_t> here(storages, 0);
  for (const auto list : {Row(program.op_inputs, program.op_input_begin, moment),
                          Row(program.op_outputs, program.op_output_begin, moment)}) {
    for (const int32_t storage : list) here[static_cast<size_t>(storage)] = 1;
  }
  needed_bytes_ = -OverwrittenBytes(program, lives, moment);
  node_.assign(storages, kNone);
  int32_t nodes = NodeOfOperation(moment);
  for (size_t s = 0; s < storages; ++s) {
    const bool made_before = lives.made_at[s] != kNone && lives.made_at[s] < moment;
    if (here[s] != 0 || (lives.made_at[s] == kNone && lives.until[s] > moment)) {
      needed_bytes_ += lives.pool_bytes[s];
    } else if (made_before) {
      choices_.push_back(static_cast<int32_t>(s));
      node_[s] = nodes++;
    }
  }
  network_ = FlowNetwork(nodes);
  const double total = std::accumulate(program.op_cost_seconds.begin(),
                                       program.op_cost_seconds.begin() + moment, 1e-30);
  for (const int32_t storage : choices_) {
    const int32_t node = node_[static_cast<size_t>(storage)];
    const int32_t maker = lives.made_at[static_cast<size_t>(storage)];
    // What cannot be made again is kept wherever it is needed.
    const bool repeatable = program.op_recomputable[static_cast<size_t>(maker)] != 0;
    edge_.push_back(network_.AddEdge(node, repeatable ? NodeOfOperation(maker) : kSink, 0));
    if (IsReadLater(storage)) network_.AddEdge(kSource, node, FlowNetwork::kUnbounded);
  }
  const std::vector<uint8_t> needed = may_wait ? NeededBefore() : std::vector<uint8_t>();
  for (int32_t i = 0; i < moment; ++i) {
    const auto row = static_cast<size_t>(i);
    const double tie_break = 1 + kTieBreak * i / moment;
    double units = program.op_cost_seconds[row] / total * kUnits * tie_break;
    if (may_wait && needed[row] == 0) units = 0;
    network_.AddEdge(
        NodeOfOperation(i), kSink,
        program.op_recomputable[row] != 0 ? static_cast<int64_t>(units) : FlowNetwork::kUnbounded);
    for (const int32_t storage : Row(program.op_inputs, program.op_input_begin, i)) {
      if (!IsChoice(storage)) continue;
      network_.AddEdge(NodeOfOperation(i), node_[static_cast<size_t>(storage)],
                       FlowNetwork::kUnbounded);
    }
  }
}

std::vector<uint8_t> Pricing::NeededBefore() const {
  std::vector<uint8_t> is_read(node_.size(), 0);
  std::vector<uint8_t> needed(static_cast<size_t>(moment_) + 1, 0);
  needed.back() = 1;
  const int32_t end = program_.operation_count();
  for (int32_t i = moment_; i >= 0; --i) {
    const auto row = static_cast<size_t>(i);
    if (program_.op_recomputable[row] == 0) needed[row] = 1;
    for (const int32_t s : Row(program_.op_outputs, program_.op_output_begin, i)) {
      const auto storage = static_cast<size_t>(s);
      const bool stays = lives_.pool_bytes[storage] == 0 || lives_.until[storage] == end;
      if (is_read[storage] != 0 || stays || IsKeptAnyway(s)) needed[row] = 1;
    }
    if (needed[row] == 0) continue;
    for (const int32_t s : Row(program_.op_inputs, program_.op_input_begin, i)) {
      is_read[static_cast<size_t>(s)] = 1;
    }
  }
  return needed;
}

template <typename Fits>
double Pricing::LowestPrice(const Fits& fits) const {
  if (fits(0.0)) return 0;
  // On a scale of ratios: what a byte is worth differs by orders of magnitude.
  double low = 1;
  double high = HighestPrice();
  for (int k = 0; k < kBisections && low * kClosePrices < high; ++k) {
    const double middle = std::sqrt(low * high);
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

const std::vector<uint8_t>& Pricing::KeptAt(double price) {
  const auto found = known_.find(price);
  if (found != known_.end()) return found->second;
  FlowNetwork network = network_;
  for (size_t k = 0; k < choices_.size(); ++k) {
    const bool is_free = IsKeptAnyway(choices_[k]);
    const int64_t bytes = is_free ? 0 : lives_.pool_bytes[static_cast<size_t>(choices_[k])];
    // More than everything costs is as good as unbounded; more might overflow.
    const double units = std::min(price * static_cast<double>(bytes), 4 * kUnits);
    network.SetCapacity(edge_[k], static_cast<int64_t>(units));
  }
  network.Maximize(kSource, kSink);
  std::vector<uint8_t> kept(node_.size(), 0);
  for (const int32_t storage : choices_) {
    const auto s = static_cast<size_t>(storage);
    // Needed, as itself or for what runs again, and its operation does not.
    kept[s] =
        IsKeptAnyway(storage) || (network.IsOnSourceSide(node_[s]) &&
                                  !network.IsOnSourceSide(NodeOfOperation(lives_.made_at[s])));
  }
  return known_.emplace(price, std::move(kept)).first->second;
}

int64_t Pricing::BytesOf(const std::vector<uint8_t>& kept) const {
  int64_t bytes = 0;
  for (const int32_t storage : choices_) {
    const auto s = static_cast<size_t>(storage);
    if (kept[s] != 0) bytes += lives_.pool_bytes[s];
  }
  return bytes;
}

Keeping Pricing::Describe(const std::vector<uint8_t>& kept) const {
  Keeping keeping;
  keeping.kept = kept;
  keeping.kept_bytes = BytesOf(kept);
  keeping.held_for.assign(kept.size(), kNone);
  // At which operation each storage that is not kept, or what is made of it again, is read first.
  std::vector<int32_t> read_at(kept.size(), kNone);
  const int32_t end = program_.operation_count();
  for (const int32_t storage : choices_) {
    if (IsReadLater(storage)) read_at[static_cast<size_t>(storage)] = end - 1;  // as a result
  }
  for (int32_t i = end - 1; i > moment_; --i) {
    for (const int32_t storage : Row(program_.op_inputs, program_.op_input_begin, i)) {
      if (IsChoice(storage)) read_at[static_cast<size_t>(storage)] = i;
    }
  }
  for (int32_t i = moment_ - 1; i >= 0; --i) {
    int32_t last = kNone;
    for (const int32_t storage : Row(program_.op_outputs, program_.op_output_begin, i)) {
      const auto s = static_cast<size_t>(storage);
      if (IsChoice(storage) && kept[s] == 0) last = std::max(last, read_at[s]);
    }
    if (last == kNone) continue;
    keeping.recompute_seconds += program_.op_cost_seconds[static_cast<size_t>(i)];
    for (const int32_t storage : Row(program_.op_inputs, program_.op_input_begin, i)) {
      const auto s = static_cast<size_t>(storage);
      if (!IsChoice(storage)) continue;
      if (kept[s] != 0) keeping.held_for[s] = std::max(keeping.held_for[s], last);
      read_at[s] = std::max(read_at[s], last);
    }
  }
  return keeping;
}

// The operation while which most bytes are alive in the pool, and those bytes.
std::pair<int32_t, int64_t> Fullest(const Program& program) {
  const Lives lives = LivesOf(program);
  const int32_t operations = program.operation_count();
  std::vector<int64_t> change(static_cast<size_t>(operations) + 2, 0);
  for (size_t s = 0; s < lives.made_at.size(); ++s) {
    if (lives.until[s] == kNone) continue;
    change[static_cast<size_t>(std::max(lives.made_at[s], 0))] += lives.pool_bytes[s];
    change[static_cast<size_t>(lives.until[s]) + 1] -= lives.pool_bytes[s];
  }
  std::pair<int32_t, int64_t> fullest{0, 0};
  int64_t bytes = 0;
  for (int32_t i = 0; i < operations; ++i) {
    bytes += change[static_cast<size_t>(i)];
    const int64_t now = bytes - OverwrittenBytes(program, lives, i);
    if (now > fullest.second) fullest = {i, now};
  }
  return fullest;
}

}  // namespace

int32_t FullestMoment(const Program& program) { return Fullest(program).first; }

int64_t FullestBytes(const Program& program) { return Fullest(program).second; }

std::vector<Keeping> CheapestToKeep(const Program& program, int32_t moment,
                                    const std::vector<int64_t>& pool_bytes) {
  Require(moment >= 0 && moment < program.operation_count(), "a moment must be an operation");
  const Lives lives = LivesOf(program);
  Pricing pricing(program, lives, moment, {}, /*may_wait=*/false);
  std::vector<Keeping> keepings;
  for (const int64_t bytes : pool_bytes) {
    const int64_t room = bytes - pricing.needed_bytes();
    keepings.push_back(pricing.Describe(pricing.KeptAt(pricing.LowestPrice(
        [&](double price) { return pricing.BytesOf(pricing.KeptAt(price)) <= room; }))));
  }
  return keepings;
}

std::vector<std::vector<uint8_t>> CheapestWithin(
    const Program& program, int32_t moment, int64_t pool_bytes, const std::vector<double>& shares,
    const std::vector<uint8_t>& anyway,
    const std::function<int64_t(const std::vector<uint8_t>&)>& bytes_with) {
  Require(moment >= 0 && moment < program.operation_count(), "a moment must be an operation");
  Require(anyway.empty() || anyway.size() == program.storage_bytes.size(),
          "anyway must be empty or parallel to storage_bytes");
  const Lives lives = LivesOf(program);
  Pricing pricing(program, lives, moment, anyway, /*may_wait=*/true);
  const double price = pricing.LowestPrice(
      [&](double price) { return bytes_with(pricing.KeptAt(price)) <= pool_bytes; });
  const int64_t most = pricing.BytesOf(pricing.KeptAt(price));
  const int64_t least = pricing.BytesOf(pricing.KeptAt(pricing.HighestPrice()));
  std::vector<std::vector<uint8_t>> all = {pricing.KeptAt(price)};
  for (const double share : shares) {
    const int64_t bytes = least + static_cast<int64_t>(share * static_cast<double>(most - least));
    all.push_back(pricing.KeptAt(pricing.LowestPrice(
        [&](double other) { return pricing.BytesOf(pricing.KeptAt(other)) <= bytes; })));
  }
  return all;
}

}  // namespace coop
