// Arrays as arguments: what a call has to know of each of them, all in one pass.
//
// Purpose: a train step takes hundreds of arrays of parameters and optimizer state. Their shapes,
//   where they lie and whether they may be overwritten, asked for in Python, take longer than some
//   networks take for a tenth of their step.
// Model: the caller says how arrays are asked (functions of one array each), so nothing here knows
//   whose arrays they are. Whatever is not an array of that type in its everyday state is left to
//   the caller, by its position.
// Thread rule: under the interpreter lock. Complexity: O(arguments), Lie O(n log n) and the pool's
//   live blocks.
// Source: paper section 4 (the executor in the host framework).

#ifndef COOP_PYTHON_REPLAY_ARGUMENT_READER_H_
#define COOP_PYTHON_REPLAY_ARGUMENT_READER_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cc/python/memory/holder_count.h"

namespace coop::python {

class ArgumentReader {
 public:
  // Functions of one array, but the last but one.
  struct Accessors {
    nanobind::object aval;          // its abstract value: shape, dtype
    nanobind::object is_deleted;    // a bool
    nanobind::object is_committed;  // a bool
    nanobind::object is_ready;      // a bool: nothing is still writing it
    nanobind::object address;       // an int
    nanobind::object placement;     // an object that says where it lies
    nanobind::object lies_here;     // of a placement: whether it is the device of the call
  };

  // `type`: arrays are exactly of this type. `holders`: how to count who else holds the memory of
  // an array; nothing where nobody can.
  ArgumentReader(nanobind::object type, Accessors accessors, std::optional<HolderCount> holders);

  // Positions of what is no array, was deleted, or is not of the abstract value given for it; with
  // `committed` also where that differs.
  [[nodiscard]] std::vector<size_t> Unlike(nanobind::list values, nanobind::list avals,
                                           std::optional<bool> committed);

  // (addresses, whether any array is committed, positions left to the caller). Only values where
  // `plain` is not 0 are looked at; the address of the others is None.
  [[nodiscard]] nanobind::tuple Read(nanobind::list values, nanobind::bytes plain);

  // Positions of what was given away (True in `given`) and is not deleted.
  [[nodiscard]] std::vector<size_t> Left(nanobind::list values, nanobind::tuple given) const;

  // Where arrays lie with regard to a pool, and which of them a call may dispose of, as
  // (where, offsets, donated, others): see coop_jax/_src/run/argument_passing.py. `places`:
  // addresses or None; `given`: 1 for what the caller gives away.
  [[nodiscard]] nanobind::tuple Lie(nanobind::handle pool, nanobind::list arrays,
                                    nanobind::list places, nanobind::bytes given) const;

  // Of one value; but for the first it has to be an array, but for the second one not deleted.
  [[nodiscard]] bool IsArray(nanobind::handle x) const;
  [[nodiscard]] bool IsDeleted(nanobind::handle x) const;
  [[nodiscard]] bool IsLike(nanobind::handle x, nanobind::handle aval);
  [[nodiscard]] bool IsCommitted(nanobind::handle x) const;
  [[nodiscard]] bool IsHereAndReady(nanobind::handle x);
  // Whether nobody reads its memory but through the array itself.
  [[nodiscard]] bool IsUnshared(nanobind::handle x) const {
    return !holders_ || holders_->Of(x.ptr()) == 0;
  }
  [[nodiscard]] uint64_t AddressOf(nanobind::handle x) const;

 private:
  [[nodiscard]] bool LiesHere(nanobind::handle placement);
  [[nodiscard]] bool AreEqual(const nanobind::object& aval, nanobind::handle expected);

  nanobind::object type_;
  Accessors accessors_;
  std::optional<HolderCount> holders_;
  std::vector<nanobind::object> here_;  // placements that lie here: most arrays share a few
  // Abstract values found to be equal: to compare two is slow, and they are the same at every step.
  std::map<std::pair<PyObject*, PyObject*>, std::pair<nanobind::object, nanobind::object>> equal_;
};

void BindArgumentReader(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_REPLAY_ARGUMENT_READER_H_
