// Calls recognised: whether one finds everything as an earlier one did.
//
// Purpose: the steps of a training loop find their arguments where the last step left them, and are
//   carried out as the last one was. To say that it is so takes less than to say how it is.
// Model: a state is where the arguments lie with regard to the pool, which of them the call may
//   dispose of, and what else the pool holds: what plans are made for (see
//   coop_jax/_src/planning/pool_state.py). Recognize says which of the states that were added is
//   there. It never guesses: what is not an ordinary array of the expected kind, or not plainly
//   there, is in none of them, and the caller looks closer. Most arguments are what the last call
//   returned, or were given to it, too: of the same object only what may have changed is asked
//   again.
// Invariant: what a state's call returns in one place is alike each time.
// Thread rule: under the interpreter lock. Complexity: O(arguments + the pool's live blocks).
// Source: paper section 4 (the executor in the host framework).

#ifndef COOP_PYTHON_REPLAY_CALL_RECOGNIZER_H_
#define COOP_PYTHON_REPLAY_CALL_RECOGNIZER_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cc/python/memory/pool_memory.h"
#include "cc/python/replay/argument_reader.h"

namespace coop::python {

class CallRecognizer {
 public:
  // `reader`: an ArgumentReader. `avals`: the abstract value of each argument. `disposable`: 1 for
  // what the caller gives away, and what lies in the pool. `committed`: whether any argument was
  // put on its device explicitly.
  CallRecognizer(nanobind::object reader, nanobind::object pool, nanobind::list avals,
                 nanobind::bytes disposable, bool committed);

  // Remembers a state, as ArgumentReader::Lie says it; false if it cannot be recognised: inputs
  // that have to be moved, or are shared though they were given away.
  bool Add(nanobind::tuple where, nanobind::tuple offsets, nanobind::tuple donated,
           nanobind::tuple others);

  // The number of the state that is there, in the order of Add; -1 if it is none of them.
  [[nodiscard]] int64_t Recognize(nanobind::list arrays);

  // What the caller gets of the call that was carried out for a state: most likely arguments soon.
  void Returned(int64_t state, nanobind::list values);

 private:
  // What was found of an argument, and does not change.
  struct Found {
    int64_t offset = 0;
    bool committed = false;
  };
  struct Source {
    int64_t result = -1;  // of the state's call; -1: of none
    Found found;
  };
  struct State {
    std::vector<int64_t> offsets;              // of each argument, kOutside for none
    std::vector<PoolMemory::Expected> blocks;  // what the pool holds, in address order
    std::vector<Source> sources;               // of each argument of a call that followed
    bool followed = false;
  };
  // An argument that was seen before.
  struct Seen {
    nanobind::object reference;  // weak
    Found found;
  };

  // Whether the argument is as expected but for where it lies; what was found of it then.
  [[nodiscard]] bool Look(size_t i, nanobind::handle x, Found& found);
  // What is known of the very object; null if it is none of those that are known.
  [[nodiscard]] const Found* Known(size_t i, nanobind::handle x) const;
  // Remembers what Look found.
  void Learn(size_t i, nanobind::handle x, const Found& found);

  nanobind::object reader_object_;
  nanobind::object pool_object_;
  ArgumentReader& reader_;
  PoolMemory& memory_;
  std::vector<nanobind::object> avals_;
  std::vector<bool> disposable_;
  bool committed_;
  bool any_committed_ = false;  // of the arguments looked at
  std::deque<State> states_;
  std::vector<int64_t> offsets_;            // of the arguments looked at
  std::vector<Seen> seen_;                  // by argument
  std::vector<nanobind::object> returned_;  // weak references to results of the last call
  State* returned_by_ = nullptr;
};

void BindCallRecognizer(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_REPLAY_CALL_RECOGNIZER_H_
