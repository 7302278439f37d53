// What a session does, for whoever records it: launches, and where each storage lies meanwhile.
//
// Model: rows in the order in which things happen. A launch comes before what its results begin; a
// storage's row says why its memory went. Ids are the session's: one that ended may be given to
// another storage.
// Invariant: a session without a log asks only whether it has one.
// Thread rule: under the interpreter lock. Complexity: O(1) a row; the user's line of a first
// launch is noted by a Python function, some 1 us.

#ifndef COOP_PYTHON_SESSION_SESSION_LOG_H_
#define COOP_PYTHON_SESSION_SESSION_LOG_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/core/base/types.h"

namespace coop::python {

enum class SessionEvent : int16_t {
  kLaunch = 0,       // id: of what is prepared; index: 1 where it had run before
  kBegin = 1,        // id: storage, index: of the launch's result
  kDropped = 2,      // id: storage
  kEvicted = 3,      // id: storage
  kOverwritten = 4,  // id: storage
  kSource = 5,       // id: storage that is there before; index: 1 where it is given up
  kRead = 6,         // id: source that the call reads; bytes: number of its shape and dtype
  kUnreserved = 7,   // nothing is reserved any more
  kReserved = 8,     // a block is
  kMoved = 9,        // id: storage, to another place
};

class SessionLog {
 public:
  // Read by NumPy as it lies here; see coop_jax/_src/report/session_timeline.py.
  struct Row {
    double seconds;  // of the steady clock, of launches
    int64_t offset;  // in the pool, -1: outside
    int64_t bytes;   // as asked
    int32_t id;
    int16_t event;
    int16_t index;
  };
  static_assert(sizeof(Row) == 32);

  // `note_source`: called at each first launch, to note where the user's code is.
  explicit SessionLog(nanobind::object note_source) : note_source_(std::move(note_source)) {}

  void Launch(nanobind::handle prepared, bool recompute) {
    const auto found = numbers_.try_emplace(prepared.ptr(), static_cast<int32_t>(numbers_.size()));
    if (found.second) prepared_.append(prepared);
    if (!recompute) note_source_();
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    rows_.push_back({now.count(), -1, 0, found.first->second,
                     static_cast<int16_t>(SessionEvent::kLaunch), recompute});
  }
  void Add(SessionEvent event, int32_t id, int64_t offset = -1, int64_t bytes = 0, int index = 0) {
    rows_.push_back(
        {0, offset, bytes, id, static_cast<int16_t>(event), static_cast<int16_t>(index)});
  }

  // The rows as bytes; what is launched, by id.
  [[nodiscard]] nanobind::bytes rows() const {
    return nanobind::bytes(rows_.data(), rows_.size() * sizeof(Row));
  }
  [[nodiscard]] const nanobind::list& prepared() const { return prepared_; }

 private:
  nanobind::object note_source_;
  std::vector<Row> rows_;
  std::unordered_map<PyObject*, int32_t> numbers_;
  nanobind::list prepared_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SESSION_SESSION_LOG_H_
