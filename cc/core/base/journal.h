// Vectors that can go back.
//
// Model: while recording, every change to a JournaledVector saves what it overwrote; Rollback(mark)
// undoes everything since the mark, exactly (free lists and the order of ids included). A mark is
// only a length of the log, so marks are cheap and may be taken after every action.
// Invariant: marks are used in the reverse order of their making, within one recording.
// Thread rule: one thread at a time. Complexity: O(1) a change, O(changes) a rollback.
// Source: ours; a failed request must leave the engine unchanged.
#ifndef COOP_CORE_BASE_JOURNAL_H_
#define COOP_CORE_BASE_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coop {

template <typename T>
class JournaledVector {
 public:
  [[nodiscard]] const T& operator[](int32_t index) const {
    return values_[static_cast<size_t>(index)];
  }
  [[nodiscard]] int32_t count() const { return static_cast<int32_t>(values_.size()); }
  [[nodiscard]] bool empty() const { return values_.empty(); }

  // The reference is valid until the next Append or Pop.
  [[nodiscard]] T& Mutable(int32_t index) {
    T& value = values_[static_cast<size_t>(index)];
    if (recording_) log_.push_back({value, index, Change::kSet});
    return value;
  }
  // While nothing is recorded: as Mutable and Append, in fewer instructions.
  [[nodiscard]] T& Now(int32_t index) { return values_[static_cast<size_t>(index)]; }
  int32_t AppendNow(const T& value) {
    values_.push_back(value);
    return count() - 1;
  }
  int32_t Append(const T& value) {
    values_.push_back(value);
    if (recording_) log_.push_back({T{}, 0, Change::kAppend});
    return count() - 1;
  }
  void Pop() {
    if (recording_) log_.push_back({values_.back(), 0, Change::kPop});
    values_.pop_back();
  }
  void Clear() {
    while (!values_.empty()) Pop();
  }

  // Forgets the log and starts a new one, or stops.
  void Record(bool recording) {
    log_.clear();
    recording_ = recording;
  }
  [[nodiscard]] size_t Mark() const { return log_.size(); }
  void Rollback(size_t mark) {
    while (log_.size() > mark) {
      Entry& entry = log_.back();
      switch (entry.change) {
        case Change::kSet:
          values_[static_cast<size_t>(entry.index)] = entry.old;
          break;
        case Change::kAppend:
          values_.pop_back();
          break;
        case Change::kPop:
          values_.push_back(entry.old);
          break;
      }
      log_.pop_back();
    }
  }

 private:
  enum class Change : uint8_t { kSet, kAppend, kPop };
  struct Entry {
    T old;
    int32_t index;
    Change change;
  };

  std::vector<T> values_;
  std::vector<Entry> log_;
  bool recording_ = false;
};

}  // namespace coop

#endif  // COOP_CORE_BASE_JOURNAL_H_
