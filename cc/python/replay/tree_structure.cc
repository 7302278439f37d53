#include "cc/python/replay/tree_structure.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// After a comparison that failed: JAX, which is asked next, says how. What else may be raised
// there, as by a signal's handler, is raised.
void ClearUnlessForeign() {
  if (PyErr_Occurred() == nullptr) return;
  if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
    nb::raise_python_error();
  }
  PyErr_Clear();
}

}  // namespace

TreeStructure::TreeStructure(nb::list nodes, nb::tuple leaf_types, nb::object one_level)
    : one_level_(std::move(one_level)) {
  size_t expected = 1;
  for (const nb::handle given : nodes) {
    const Sequence parts(given);
    if (parts.size() != 5) throw std::invalid_argument("a node is said by five things");
    const auto kind = nb::cast<int>(parts[0]);
    if (kind < 0 || kind > static_cast<int>(Kind::kCustom) || expected == 0)
      throw std::invalid_argument("these are not the nodes of one tree");
    nodes_.push_back({.kind = static_cast<Kind>(kind),
                      .type = nb::borrow(parts[1]),
                      .data = nb::borrow(parts[2]),
                      .make = nb::borrow(parts[4]),
                      .arity = nb::cast<size_t>(parts[3])});
    const Node& node = nodes_.back();
    if (node.kind == Kind::kDict &&
        (!PyTuple_CheckExact(node.data.ptr()) || nb::len(node.data) != node.arity))
      throw std::invalid_argument("a dictionary has a key for each child");
    expected += node.arity;
    --expected;
    if (node.kind == Kind::kLeaf) ++leaf_count_;
  }
  if (expected != 0) throw std::invalid_argument("these are not the nodes of one tree");
  for (const nb::handle type : leaf_types) leaf_types_.push_back(nb::borrow(type));
}

bool TreeStructure::IsLeafType(PyTypeObject* type) const {
  return std::any_of(leaf_types_.begin(), leaf_types_.end(), [&](const nb::object& known) {
    return known.ptr() == reinterpret_cast<PyObject*>(type);
  });
}

nb::object TreeStructure::Leaves(nb::handle tree) const {
  nb::object leaves = Steal(PyList_New(static_cast<Py_ssize_t>(leaf_count_)));
  Cursor at;
  if (nodes_.empty() || !Take(tree, leaves.ptr(), at)) return nb::none();
  return leaves;
}

bool TreeStructure::Take(nb::handle tree, PyObject* leaves, Cursor& at) const {
  const Node& node = nodes_[at.node++];
  PyTypeObject* const type = Py_TYPE(tree.ptr());
  const auto arity = static_cast<Py_ssize_t>(node.arity);
  switch (node.kind) {
    case Kind::kLeaf:
      if (!IsLeafType(type)) return false;
      PyList_SET_ITEM(leaves, static_cast<Py_ssize_t>(at.leaf++), Py_NewRef(tree.ptr()));
      return true;
    case Kind::kNone:
      return tree.is_none();
    case Kind::kTuple:
    case Kind::kNamedTuple: {
      const bool same = reinterpret_cast<PyObject*>(type) == node.type.ptr();
      if (!same || PyTuple_GET_SIZE(tree.ptr()) != arity) return false;
      for (Py_ssize_t i = 0; i < arity; ++i)
        if (!Take(PyTuple_GET_ITEM(tree.ptr(), i), leaves, at)) return false;
      return true;
    }
    case Kind::kList:
      if (type != &PyList_Type || PyList_GET_SIZE(tree.ptr()) != arity) return false;
      for (Py_ssize_t i = 0; i < arity; ++i) {
        // Python runs for custom nodes: it may change the list.
        if (i >= PyList_GET_SIZE(tree.ptr())) return false;
        const nb::object item = nb::borrow(PyList_GET_ITEM(tree.ptr(), i));
        if (!Take(item, leaves, at)) return false;
      }
      return true;
    case Kind::kDict:
      if (type != &PyDict_Type || PyDict_GET_SIZE(tree.ptr()) != arity) return false;
      for (Py_ssize_t i = 0; i < arity; ++i) {
        PyObject* const key = PyTuple_GET_ITEM(node.data.ptr(), i);
        const nb::object item = nb::borrow(PyDict_GetItemWithError(tree.ptr(), key));
        if (!item.is_valid()) {
          ClearUnlessForeign();
          return false;
        }
        if (!Take(item, leaves, at)) return false;
      }
      return true;
    case Kind::kCustom:
      return TakeCustom(node, tree, leaves, at);
  }
  return false;
}

bool TreeStructure::TakeCustom(const Node& node, nb::handle tree, PyObject* leaves,
                               Cursor& at) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tree.ptr())) != node.type.ptr()) return false;
  const nb::object level = Steal(PyObject_CallOneArg(one_level_.ptr(), tree.ptr()));
  if (!PyTuple_Check(level.ptr()) || PyTuple_GET_SIZE(level.ptr()) != 2) return false;
  const nb::object children = Steal(PySequence_Tuple(PyTuple_GET_ITEM(level.ptr(), 0)));
  const int same =
      PyObject_RichCompareBool(PyTuple_GET_ITEM(level.ptr(), 1), node.data.ptr(), Py_EQ);
  if (same < 0) ClearUnlessForeign();
  if (same <= 0) return false;
  const auto arity = static_cast<Py_ssize_t>(node.arity);
  if (PyTuple_GET_SIZE(children.ptr()) != arity) return false;
  for (Py_ssize_t i = 0; i < arity; ++i)
    if (!Take(PyTuple_GET_ITEM(children.ptr(), i), leaves, at)) return false;
  return true;
}

nb::object TreeStructure::Build(nb::list leaves) const {
  if (leaves.size() != leaf_count_ || nodes_.empty())
    throw std::invalid_argument("the list must have an item for each leaf");
  Cursor at;
  return Make(leaves.ptr(), at);
}

nb::object TreeStructure::Make(PyObject* leaves, Cursor& at) const {
  const Node& node = nodes_[at.node++];
  const auto arity = static_cast<Py_ssize_t>(node.arity);
  switch (node.kind) {
    case Kind::kLeaf:
      return nb::borrow(PyList_GET_ITEM(leaves, static_cast<Py_ssize_t>(at.leaf++)));
    case Kind::kNone:
      return nb::none();
    case Kind::kTuple:
    case Kind::kNamedTuple: {
      nb::object made = Steal(PyTuple_New(arity));
      for (Py_ssize_t i = 0; i < arity; ++i)
        PyTuple_SET_ITEM(made.ptr(), i, Make(leaves, at).release().ptr());
      if (node.kind == Kind::kTuple) return made;
      if (!node.make.is_none()) return Steal(PyObject_CallObject(node.make.ptr(), made.ptr()));
      const nb::object items = Steal(PyTuple_Pack(1, made.ptr()));
      auto* const type = reinterpret_cast<PyTypeObject*>(node.type.ptr());
      return Steal(PyTuple_Type.tp_new(type, items.ptr(), nullptr));
    }
    case Kind::kDict: {
      nb::object made = Steal(PyDict_New());
      for (Py_ssize_t i = 0; i < arity; ++i) {
        const nb::object item = Make(leaves, at);
        if (PyDict_SetItem(made.ptr(), PyTuple_GET_ITEM(node.data.ptr(), i), item.ptr()) != 0)
          nb::raise_python_error();
      }
      return made;
    }
    case Kind::kList:
    case Kind::kCustom: {
      nb::object made = Steal(PyList_New(arity));
      for (Py_ssize_t i = 0; i < arity; ++i)
        PyList_SET_ITEM(made.ptr(), i, Make(leaves, at).release().ptr());
      if (node.kind == Kind::kList) return made;
      return Steal(PyObject_CallOneArg(node.make.ptr(), made.ptr()));
    }
  }
  throw std::logic_error("a node of no kind");
}

int TreeStructure::Visit(visitproc visit, void* arg) const {
  for (const Node& node : nodes_) {
    Py_VISIT(node.type.ptr());
    Py_VISIT(node.data.ptr());
    Py_VISIT(node.make.ptr());
  }
  for (const nb::object& type : leaf_types_) Py_VISIT(type.ptr());
  Py_VISIT(one_level_.ptr());
  return 0;
}

void TreeStructure::Clear() {
  // Moved out first: letting go of them may run Python, which may look at this.
  const auto nodes = std::exchange(nodes_, {});
  const auto types = std::exchange(leaf_types_, {});
  const auto one_level = std::exchange(one_level_, {});
}

namespace {

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<TreeStructure>(self)->Visit(visit, arg);
}

int ClearStructure(PyObject* self) {
  nb::inst_ptr<TreeStructure>(self)->Clear();
  return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(&ClearStructure)},
                       {0, nullptr}};

}  // namespace

void BindTreeStructure(nb::module_& module) {
  nb::class_<TreeStructure>(module, "TreeStructure", nb::type_slots(slots),
                            "Takes trees of one structure apart and puts them together.")
      .def(nb::init<nb::list, nb::tuple, nb::object>(), nb::arg("nodes"), nb::arg("leaf_types"),
           nb::arg("one_level"))
      .def("leaves", &TreeStructure::Leaves, nb::arg("tree").none())
      .def("build", &TreeStructure::Build, nb::arg("leaves"));
}

}  // namespace coop::python
