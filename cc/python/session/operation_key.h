// What an operation is looked up by, and a short way to what was looked up before.
//
// Purpose: to hash and compare an operation's key through Python's protocols takes longer than to
//   ask the engine where its results go.
// Model. The full key is a tuple: (primitive, parameters, keys of the operands, which of them are
//   the same, context). PreparedOperations has what is prepared in a dict by full key, and knows
//   some of it by OperationWords: the same as numbers, where an object stands for itself by its
//   address, and tuples, integers and floats for what they hold. Programs repeat what they do, so
//   what comes is first compared with what came after the last one the time before, without a hash
//   and without a look into parameters that are the same objects.
// Invariants: equal words have equal keys, as an entry keeps its key, and so the objects at these
//   addresses, alive. The converse does not hold: equal objects at other addresses are looked up by
//   full key.
// Thread rule: under the interpreter lock. Complexity: linear in the parameters; when very many are
//   known by words, these all go.
// Source: ours.

#ifndef COOP_PYTHON_SESSION_OPERATION_KEY_H_
#define COOP_PYTHON_SESSION_OPERATION_KEY_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/python/session/scalar_arrays.h"
#include "cc/python/support/small_vector.h"

namespace coop::python {

// `operand_key` answers for operands that are no Values: a hashable.
[[nodiscard]] nanobind::object OperationKey(nanobind::handle operand_key,
                                            nanobind::handle primitive, nanobind::handle operands,
                                            nanobind::handle params, nanobind::handle context);

class OperationWords {
 public:
  OperationWords() = default;
  OperationWords(const OperationWords&) = delete;

  void Add(uint64_t word) {
    if (count_ == kFew) SpillOver();
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
  [[nodiscard]] size_t size() const { return count_; }
  // Only the first words are left.
  void Shorten(size_t count) { count_ = count; }
  [[nodiscard]] const uint64_t* begin() const { return words_; }
  [[nodiscard]] const uint64_t* end() const { return words_ + count_; }

 private:
  void AddInteger(nanobind::handle x);

  // To where there is room for the most.
  void SpillOver();

  static constexpr size_t kMost = 4096;  // a tree of hundreds of arrays
  // On the stack, where what lies deeper is in the caches only if it is not much deeper.
  static constexpr size_t kFew = 120;
  std::array<uint64_t, kFew> few_;
  std::vector<uint64_t> many_;  // empty, or for kMost
  uint64_t* words_ = few_.data();
  size_t count_ = 0;
  std::vector<nanobind::object> owned_;
};

class PreparedOperations {
 public:
  // `literals`: types of operands whose key is that of their attribute `dtype`, an object that they
  // hold. `constant`: the type of operands that are never changed and come again as they are.
  // `literal_array`, `literal_aval`: those of ScalarArrays.
  PreparedOperations(nanobind::frozenset literals, nanobind::object constant,
                     nanobind::object literal_array, nanobind::object literal_aval)
      : literals_(std::move(literals)),
        constant_(std::move(constant)),
        scalars_(std::move(literal_array), std::move(literal_aval)) {}
  PreparedOperations(const PreparedOperations&) = delete;

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
  static constexpr size_t kMostFollowed = 1 << 16;
  struct Parameter {
    PyObject* name = nullptr;
    PyObject* value = nullptr;
    uint32_t begin = 0, end = 0;  // its words: those of the value
  };
  // An operation that was found. Looked at between operations, which take the caches: so what is
  // read of it is close together.
  struct Known {
    nanobind::object prepared;
    size_t number = 0;  // of the last time that it was looked for
    uint32_t own = 0;   // so many words are not of parameters
    std::vector<uint64_t> words;
    ShortList<Parameter, 12> parameters;
    nanobind::object alive;  // a list: the key and others whose addresses are among the words
  };
  struct Entry {
    uint64_t hash = 0;             // of the words
    std::unique_ptr<Known> known;  // null: an empty entry
  };

  // The words of all but the parameters; those follow. There may be too many.
  void Read(nanobind::handle operand_key, nanobind::handle primitive, nanobind::handle operands,
            nanobind::handle context, OperationWords* words) const;
  static void ReadParameters(nanobind::handle params, OperationWords* words,
                             std::vector<Parameter>* parameters = nullptr);
  // Whether these are the parameters of an operation. `words` are those before them, and are left
  // so.
  [[nodiscard]] static bool AreOf(const Known& known, nanobind::handle params,
                                  OperationWords* words);
  // The entry of these words, or the empty one that they would take.
  [[nodiscard]] Entry& EntryOf(const OperationWords& words, uint64_t hash);
  // All of them, no longer known here nor expected.
  [[nodiscard]] std::vector<Entry> TakeRecent();
  // Makes room for another one.
  void Grow();
  // What was looked for next when the last one was looked for before; null where that is not known.
  [[nodiscard]] Known* Expected() const;
  // It is what was looked for, and was what was expected or not.
  [[nodiscard]] nanobind::object Found(Known* known, bool expected);

  nanobind::frozenset literals_;
  nanobind::object constant_;
  ScalarArrays scalars_;
  nanobind::dict prepared_;    // by full key
  std::vector<Entry> recent_;  // by hash, from there on; at most half full, its size a power of two
  size_t recent_count_ = 0;
  // What was looked for, by its number from the beginning, the last kMostFollowed of them. Calls
  // repeat each other: what comes is expected to be what came after the last one the time before.
  std::vector<Known*> followed_;
  size_t number_ = 0;  // of the next one
  size_t before_ = 0;  // of what is expected
};

void BindOperationKey(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_SESSION_OPERATION_KEY_H_
