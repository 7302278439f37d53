// Fake memory: carries out the engine's actions on contents that can be checked.
//
// Purpose: the engine only talks about offsets. This model executes what it says, the way a real
// executor would, and throws as soon as a value is read that is not the right one, or memory is
// written that somebody still holds. Model: memory is a map offset -> cell {bytes, content hash}.
// Running an operation hashes the contents of its inputs *as found in memory* and writes the
// results where the engine placed them; dropping a storage frees its cell. Nothing here asks the
// engine where a storage is: places are known from the actions alone. Invariants: cells never
// overlap; a storage is held at most once; held bytes never exceed the capacity. Thread rule: one
// thread. Complexity: O(log cells) an access.

#ifndef COOP_TESTS_CORE_FAKE_MEMORY_H_
#define COOP_TESTS_CORE_FAKE_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace coop::testing {

inline constexpr int32_t kNobody = -1;

// Mixes `value` into `hash` (splitmix64 finaliser).
[[nodiscard]] inline uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t z = hash * 0x9e3779b97f4a7c15ULL + value + 0x632be59bd9b4e019ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Where the engine put one output: the fields of coop::Placement, without depending on it.
struct FakePlacement {
  int32_t storage;  // kNobody: scratch
  int64_t offset;   // -1: outside
  int32_t in_place_input;
};

class FakeMemory {
 public:
  FakeMemory(int64_t capacity_bytes, int64_t alignment_bytes)
      : capacity_bytes_(capacity_bytes), alignment_bytes_(alignment_bytes) {}

  // What `storage` must contain whenever it is held. Ids may be reused once the old one is dropped.
  void Define(int32_t storage, int64_t bytes, bool outside, uint64_t content) {
    Require(!Held(storage), "id reused while its memory is held", storage);
    if (static_cast<size_t>(storage) >= values_.size()) values_.resize(storage + 1);
    values_[storage] = Value{.content = content, .bytes = bytes, .outside = outside};
  }

  // Puts the right content of an input in its place (offset -1: outside).
  void Put(int32_t storage, int64_t offset) { Write(offset, storage, values_[storage].content); }

  // A range that must never be written (a reservation, somebody else's block). Not counted as held.
  void Block(int64_t offset, int64_t bytes) { WriteCell(offset, bytes, 0); }
  void Unblock(int64_t offset) { cells_.erase(offset); }

  // Drops the memory of a storage that must never come back.
  void Kill(int32_t storage) {
    Drop(storage);
    values_[storage].dead = true;
  }

  // Drops the memory of a storage.
  void Drop(int32_t storage) {
    Require(Held(storage), "dropped but not held", storage);
    Value& value = values_[storage];
    if (value.outside) {
      outside_bytes_ -= value.bytes;
    } else {
      held_bytes_ -= Rounded(value.bytes);
      cells_.erase(value.offset);
    }
    value.held = false;
  }

  // Runs an operation: `outputs` are all its outputs in order, of which `placements` places each.
  void Run(uint64_t seed, std::span<const int32_t> inputs, std::span<const int32_t> outputs,
           std::span<const int64_t> output_bytes, std::span<const FakePlacement> placements) {
    Require(placements.size() == outputs.size(), "one placement for each output",
            static_cast<int32_t>(placements.size()));
    uint64_t hash = seed;
    for (const int32_t input : inputs) hash = Mix(hash, Read(input));
    std::vector<int64_t> scratch;
    for (size_t k = 0; k < outputs.size(); ++k) {
      const FakePlacement& place = placements[k];
      const uint64_t content = Mix(hash, k);
      if (place.in_place_input != kNobody) {
        const int32_t input = inputs[place.in_place_input];
        Require(Held(input) && !values_[input].outside, "in place of what is not there", input);
        Require(values_[input].offset == place.offset, "in place at another offset", input);
        Require(Rounded(values_[input].bytes) == Rounded(output_bytes[k]),
                "in place of another size", input);
        Drop(input);
      }
      if (place.storage == kNobody) {
        if (place.offset < 0) continue;
        WriteCell(place.offset, output_bytes[k], content);
        scratch.push_back(place.offset);
        held_bytes_ += Rounded(output_bytes[k]);
        continue;
      }
      Require(place.storage == outputs[k], "placement of another storage", place.storage);
      Require(!Held(place.storage), "computed although it is there", place.storage);
      Write(place.offset, place.storage, content);
      Require(content == values_[place.storage].content, "computed the wrong value", place.storage);
    }
    peak_bytes_ = std::max(peak_bytes_, held_bytes_ + outside_bytes_);
    for (const int64_t offset : scratch) {
      held_bytes_ -= Rounded(cells_.at(offset).bytes);
      cells_.erase(offset);
    }
  }

  // Checks that the storage is held with the right content.
  uint64_t Read(int32_t storage) const {
    Require(Held(storage), "read but not held", storage);
    const Value& value = values_[storage];
    if (!value.outside) {
      const auto cell = cells_.find(value.offset);
      Require(cell != cells_.end() && cell->second.content == value.content, "wrong content",
              storage);
    }
    return value.content;
  }

  [[nodiscard]] bool Held(int32_t storage) const {
    return storage >= 0 && static_cast<size_t>(storage) < values_.size() && values_[storage].held;
  }
  [[nodiscard]] int64_t OffsetOf(int32_t storage) const {
    return values_[storage].outside ? -1 : values_[storage].offset;
  }
  [[nodiscard]] uint64_t ContentOf(int32_t storage) const { return values_[storage].content; }
  [[nodiscard]] int64_t BytesOf(int32_t storage) const { return values_[storage].bytes; }
  // True when [offset, offset + bytes) touches nothing that is held.
  [[nodiscard]] bool Free(int64_t offset, int64_t bytes) const {
    if (offset < 0 || offset + Rounded(bytes) > capacity_bytes_) return false;
    auto next = cells_.lower_bound(offset);
    if (next != cells_.end() && next->first < offset + Rounded(bytes)) return false;
    if (next == cells_.begin()) return true;
    --next;
    return next->first + Rounded(next->second.bytes) <= offset;
  }
  [[nodiscard]] std::vector<int32_t> AllHeld() const {
    std::vector<int32_t> held;
    for (size_t s = 0; s < values_.size(); ++s) {
      if (values_[s].held) held.push_back(static_cast<int32_t>(s));
    }
    return held;
  }
  [[nodiscard]] int64_t held_bytes() const { return held_bytes_; }
  [[nodiscard]] int64_t outside_bytes() const { return outside_bytes_; }
  [[nodiscard]] int64_t peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] int64_t Rounded(int64_t bytes) const {
    return (std::max<int64_t>(bytes, 1) + alignment_bytes_ - 1) / alignment_bytes_ *
           alignment_bytes_;
  }

 private:
  struct Cell {
    int64_t bytes;
    uint64_t content;
  };
  struct Value {
    uint64_t content = 0;
    int64_t bytes = 0;
    int64_t offset = -1;
    bool outside = false;
    bool held = false;
    bool dead = false;
  };

  static void Require(bool condition, const char* what, int32_t id) {
    if (!condition)
      throw std::logic_error(std::string("fake memory: ") + what + " (" + std::to_string(id) + ")");
  }

  void Write(int64_t offset, int32_t storage, uint64_t content) {
    Value& value = values_[storage];
    Require(!value.held, "written although it is held", storage);
    Require(!value.dead, "came back although it was said to be dead", storage);
    if (value.outside) {
      Require(offset == -1, "an outside value has no offset", storage);
      outside_bytes_ += value.bytes;
    } else {
      WriteCell(offset, value.bytes, content);
      held_bytes_ += Rounded(value.bytes);
    }
    value.offset = offset;
    value.held = true;
    peak_bytes_ = std::max(peak_bytes_, held_bytes_ + outside_bytes_);
  }

  void WriteCell(int64_t offset, int64_t bytes, uint64_t content) {
    Require(offset >= 0 && offset % alignment_bytes_ == 0, "bad offset",
            static_cast<int32_t>(offset));
    Require(offset + Rounded(bytes) <= capacity_bytes_, "past the end of the pool",
            static_cast<int32_t>(offset));
    Require(Free(offset, bytes), "written over memory that is held, at",
            static_cast<int32_t>(offset));
    cells_[offset] = Cell{.bytes = bytes, .content = content};
  }

  int64_t capacity_bytes_;
  int64_t alignment_bytes_;
  std::map<int64_t, Cell> cells_;
  std::vector<Value> values_;
  int64_t held_bytes_ = 0;
  int64_t outside_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_FAKE_MEMORY_H_
