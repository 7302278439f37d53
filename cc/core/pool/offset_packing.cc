#include "cc/core/pool/offset_packing.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "cc/core/base/check.h"

namespace coop {
namespace {

using Order = std::vector<int32_t>;

class Packer {
 public:
  Packer(const std::vector<PackedItem>& items, int64_t capacity_bytes)
      : items_(items), capacity_bytes_(capacity_bytes) {}

  // False if there are more pairs.
  bool FindNeighbors(int64_t most_pairs);
  // Places all items in the order. Those that found no room.
  std::vector<int32_t> Place(const Order& order, const std::vector<uint8_t>& from_right);
  [[nodiscard]] const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  [[nodiscard]] const PackedItem& item(int32_t i) const { return items_[static_cast<size_t>(i)]; }
  [[nodiscard]] int64_t RoomFor(int32_t i, bool from_right);

  const std::vector<PackedItem>& items_;
  int64_t capacity_bytes_;
  std::vector<size_t> first_;                       // by item: into neighbors_; one more at the end
  std::vector<int32_t> neighbors_;                  // what is there at the same time
  std::vector<int64_t> offsets_;                    // by item; kNone: not placed
  std::vector<std::pair<int64_t, int64_t>> taken_;  // ranges, while room is looked for
};

bool Packer::FindNeighbors(int64_t most_pairs) {
  const auto count = static_cast<int32_t>(items_.size());
  Order by_begin(items_.size());
  std::iota(by_begin.begin(), by_begin.end(), 0);
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](int32_t a, int32_t b) { return item(a).begin < item(b).begin; });
  std::vector<std::pair<int32_t, int32_t>> pairs;
  Order present;
  for (const int32_t i : by_begin) {
    std::erase_if(present, [&](int32_t other) { return item(other).end <= item(i).begin; });
    if (item(i).bytes == 0 || item(i).begin >= item(i).end) continue;
    if (static_cast<int64_t>(pairs.size() + present.size()) > most_pairs) return false;
    for (const int32_t other : present) pairs.emplace_back(i, other);
    present.push_back(i);
  }
  first_.assign(static_cast<size_t>(count) + 1, 0);
  for (const auto& [a, b] : pairs) {
    ++first_[static_cast<size_t>(a) + 1];
    ++first_[static_cast<size_t>(b) + 1];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  neighbors_.resize(2 * pairs.size());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (const auto& [a, b] : pairs) {
    neighbors_[next[static_cast<size_t>(a)]++] = b;
    neighbors_[next[static_cast<size_t>(b)]++] = a;
  }
  return true;
}

int64_t Packer::RoomFor(int32_t i, bool from_right) {
  taken_.clear();
  const auto index = static_cast<size_t>(i);
  for (size_t n = first_[index]; n < first_[index + 1]; ++n) {
    const int64_t offset = offsets_[static_cast<size_t>(neighbors_[n])];
    if (offset != kNone) taken_.emplace_back(offset, offset + item(neighbors_[n]).bytes);
  }
  std::sort(taken_.begin(), taken_.end());
  const int64_t bytes = item(i).bytes;
  int64_t found = kNone;
  int64_t free_from = 0;
  for (const auto& [begin, end] : taken_) {
    if (begin - free_from >= bytes) {
      if (!from_right) return free_from;
      found = begin - bytes;
    }
    free_from = std::max(free_from, end);
  }
  if (capacity_bytes_ - free_from >= bytes) {
    return from_right ? capacity_bytes_ - bytes : free_from;
  }
  return found;
}

std::vector<int32_t> Packer::Place(const Order& order, const std::vector<uint8_t>& from_right) {
  offsets_.clear();
  for (const PackedItem& given : items_) offsets_.push_back(given.offset);
  std::vector<int32_t> failed;
  for (const int32_t i : order) {
    const auto index = static_cast<size_t>(i);
    offsets_[index] = item(i).bytes == 0 ? 0 : RoomFor(i, from_right[index] != 0);
    if (offsets_[index] == kNone) failed.push_back(i);
  }
  return failed;
}

int64_t MostBytesAtOnce(const std::vector<PackedItem>& items) {
  std::vector<std::pair<int32_t, int64_t>> changes;  // what goes at a moment makes room first
  for (const PackedItem& item : items) {
    changes.emplace_back(item.begin, item.bytes);
    changes.emplace_back(item.end, -item.bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t bytes = 0;
  int64_t most = 0;
  for (const auto& [moment, change] : changes) most = std::max(most, bytes += change);
  return most;
}

// The orders that passes begin with: what takes most bytes, what stays longest, both.
std::vector<Order> FirstOrders(const std::vector<PackedItem>& items) {
  Order free;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].offset == kNone) free.push_back(static_cast<int32_t>(i));
  }
  const auto bytes = [&](int32_t i) {
    return static_cast<double>(items[static_cast<size_t>(i)].bytes);
  };
  const auto moments = [&](int32_t i) {
    const PackedItem& item = items[static_cast<size_t>(i)];
    return static_cast<double>(item.end) - item.begin;
  };
  std::vector<Order> orders(3, free);
  const auto sort = [&](Order* order, const auto& weight) {
    std::stable_sort(order->begin(), order->end(),
                     [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
  };
  sort(&orders[0], moments);
  sort(&orders[1], [&](int32_t i) { return bytes(i) * moments(i); });
  sort(&orders[2], bytes);
  return orders;
}

}  // namespace

std::optional<std::vector<int64_t>> Pack(const std::vector<PackedItem>& items,
                                         int64_t capacity_bytes, int32_t passes,
                                         int64_t most_neighbors) {
  for (const PackedItem& item : items) {
    Require(item.bytes >= 0 && item.begin <= item.end, "an item takes bytes for some time");
    Require(
        item.offset == kNone || (item.offset >= 0 && item.offset + item.bytes <= capacity_bytes),
        "an item lies within the pool");
  }
  if (MostBytesAtOnce(items) > capacity_bytes) return std::nullopt;
  Packer packer(items, capacity_bytes);
  if (!packer.FindNeighbors(most_neighbors)) return std::nullopt;
  std::vector<Order> orders = FirstOrders(items);
  std::vector<std::vector<uint8_t>> from_right(orders.size(), std::vector<uint8_t>(items.size()));
  std::mt19937_64 generator(0);
  for (int32_t pass = 0; pass < passes; ++pass) {
    const size_t n = static_cast<size_t>(pass) % orders.size();
    const std::vector<int32_t> failed = packer.Place(orders[n], from_right[n]);
    if (failed.empty()) return packer.offsets();
    std::vector<uint8_t> is_failed(items.size(), 0);
    for (const int32_t i : failed) {
      is_failed[static_cast<size_t>(i)] = 1;
      if (generator() % 2 == 0) from_right[n][static_cast<size_t>(i)] ^= 1;
    }
    std::stable_partition(orders[n].begin(), orders[n].end(),
                          [&](int32_t i) { return is_failed[static_cast<size_t>(i)] != 0; });
  }
  return std::nullopt;
}

}  // namespace coop
