// Trees of Python containers taken apart and put together by a structure that is known.
//
// Purpose: the calls of a training loop have the same containers each time; to walk along what is
//   known takes a fraction of finding out what is there, and of comparing that with what was.
// Model: nodes in the order in which JAX visits them, parents first. Tuples, lists, dictionaries,
//   named tuples and None are known here; of other containers Python says what they hold.
// Invariant: Leaves finds a tree's leaves exactly if JAX would find the same structure; it never
//   guesses: a leaf of a type that was not seen before is left to JAX.
// Thread rule: under the interpreter lock. Complexity: linear in the nodes.

#ifndef COOP_PYTHON_REPLAY_TREE_STRUCTURE_H_
#define COOP_PYTHON_REPLAY_TREE_STRUCTURE_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

namespace coop::python {

class TreeStructure {
 public:
  enum class Kind { kLeaf, kNone, kTuple, kList, kDict, kNamedTuple, kCustom };

  // `nodes`: a tuple (kind, type, data, arity, make) for each, parents first. `data`: the keys of a
  // dictionary, what a custom node holds beside its children. `make`: makes a custom node of a list
  // of its children, or a named tuple of its items, None if that is as tuple.__new__ does it.
  // `leaf_types`: types of leaves. `one_level`: the children and the data of a custom
  // node.
  TreeStructure(nanobind::list nodes, nanobind::tuple leaf_types, nanobind::object one_level);

  // The leaves of a tree as a list; None if it has not this structure.
  [[nodiscard]] nanobind::object Leaves(nanobind::handle tree) const;

  // The tree of these leaves.
  [[nodiscard]] nanobind::object Build(nanobind::list leaves) const;

  // For the garbage collector: a node's data may lead back to who holds the structure.
  int Visit(visitproc visit, void* argument) const;
  void Clear();

 private:
  struct Node {
    Kind kind;
    nanobind::object type;
    nanobind::object data;
    nanobind::object make;
    size_t arity;
  };
  // Positions in the nodes and among the leaves.
  struct Cursor {
    size_t node = 0;
    size_t leaf = 0;
  };

  [[nodiscard]] bool IsLeafType(PyTypeObject* type) const;
  [[nodiscard]] bool Take(nanobind::handle tree, PyObject* leaves, Cursor& at) const;
  [[nodiscard]] bool TakeCustom(const Node& node, nanobind::handle tree, PyObject* leaves,
                                Cursor& at) const;
  [[nodiscard]] nanobind::object Make(PyObject* leaves, Cursor& at) const;

  std::vector<Node> nodes_;
  std::vector<nanobind::object> leaf_types_;
  nanobind::object one_level_;
  size_t leaf_count_ = 0;
};

void BindTreeStructure(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_REPLAY_TREE_STRUCTURE_H_
