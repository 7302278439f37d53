// What an operation is looked up by, and a short way to what was looked up before.
//
// Purpose: to hash and compare an operation's key through Python's protocols takes longer than to
//   ask the engine where its results go.
// Model. The full key is a tuple: (primitive, parameters, keys of the operands, which of them are
//   the same, context). PreparedOperations has what is prepared in a dict by full key, and knows
//   some of it by OperationWords: the same as numbers, where an object stands for itself by its
//   address, and tuples, integers and floats for what they hold.
// Invariants: equal words have equal keys, as an entry keeps its key, and so the objects at these
//   addresses, alive. The converse does not hold: equal objects at other addresses are looked up by
//   full key.
// Thread rule: under the interpreter lock. Complexity: linear in the parameters; when very many are
//   known by words, these all go.
// Source: ours.

#ifndef COOP_PYTHON_OPERATION_KEY_H_
#define COOP_PYTHON_OPERATION_KEY_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/python/scalar_arrays.h"

namespace coop::python {

// `operand_key` answers for operands that are no Values: a hashable.
[[nodiscard]] nanobind::object OperationKey(nanobind::handle operand_key,
                                            nanobind::handle primitive, nanobind::handle operands,
                                            nanobind::handle params, nanobind::handle context);

class OperationWords {
 public:
  void Add(uint64_t word) {
    if (count_ < kMost) words_[count_] = word;
    ++count_;
  }
  // The object has to live as long as these words are compared with others.
  void AddObject(nanobind::handle x);
  // As AddObject, of an object that nobody else keeps.
  void AddOwned(nanobind::object x) {
    AddObject(x);
    owned_.push_back(std::move(x));
  }
  [[nodiscard]] std::vector<nanobind::object> TakeOwned() { return std::move(owned_); }
  [[nodiscard]] bool fit() const { return count_ <= kMost; }  // whether they are all here
  [[nodiscard]] uint64_t Hash() const;
  [[nodiscard]] const uint64_t* begin() const { return words_.data(); }
  [[nodiscard]] const uint64_t* end() const { return words_.data() + count_; }

 private:
  static constexpr size_t kMost = 4096;  // a tree of hundreds of arrays
  std::array<uint64_t, kMost> words_;
  size_t count_ = 0;
  std::vector<nanobind::object> owned_;
};

class PreparedOperations {
 public:
  // `literals`: types of operands whose key is that of their attribute `dtype`, an object that they
  // hold. `constant`: the type of operands that are never changed and come again as they are.
  // `literal_array`: that of ScalarArrays.
  PreparedOperations(nanobind::frozenset literals, nanobind::object constant,
                     nanobind::object literal_array)
      : literals_(std::move(literals)),
        constant_(std::move(constant)),
        scalars_(std::move(literal_array)) {}

  // What is prepared for such an operation, None for one that is to be taken apart; invalid if it
  // is not known.
  [[nodiscard]] nanobind::object Find(nanobind::handle operand_key, nanobind::handle primitive,
                                      nanobind::handle operands, nanobind::handle params,
                                      nanobind::handle context);

  // As those of a dict.
  [[nodiscard]] nanobind::object Get(nanobind::handle key, nanobind::handle otherwise) const;
  void Set(nanobind::handle key, nanobind::handle prepared);
  void Clear();
  [[nodiscard]] size_t size() const { return prepared_.size(); }
  [[nodiscard]] ScalarArrays& scalars() { return scalars_; }

 private:
  static constexpr size_t kMostRecent = 4096;
  // Looked at between operations, which take the caches: so it is one line of them.
  struct Entry {
    uint64_t hash = 0;  // of the words
    std::vector<uint64_t> words;
    nanobind::object prepared;  // invalid: an empty entry
    nanobind::object alive;     // a list: the key and others whose addresses are among the words
  };

  // False where there are too many words.
  [[nodiscard]] bool Read(nanobind::handle operand_key, nanobind::handle primitive,
                          nanobind::handle operands, nanobind::handle params,
                          nanobind::handle context, OperationWords* words) const;
  // The entry of these words, or the empty one that they would take.
  [[nodiscard]] Entry& EntryOf(const OperationWords& words, uint64_t hash);
  // Makes room for another one.
  void Grow();

  nanobind::frozenset literals_;
  nanobind::object constant_;
  ScalarArrays scalars_;
  nanobind::dict prepared_;    // by full key
  std::vector<Entry> recent_;  // by hash, from there on; at most half full, its size a power of two
  size_t recent_count_ = 0;
};

void BindOperationKey(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_OPERATION_KEY_H_
