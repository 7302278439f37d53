#include "cc/python/session/operation_key.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/python/session/value.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// What a word that is no address says of those that follow; no object lies so low.
enum Tag : uint64_t { kInteger = 1, kFloat, kTuple, kValue, kLiteral, kScalar, kConstant, kOther };

// Of the types that NumPy's functions of shapes and axes return: new objects each time, equal to
// Python's integers.
bool IsNumPyInteger(nb::handle x) {
  static const std::array<PyObject*, 2> types = [] {  // never let go of
    const nb::module_ numpy = nb::module_::import_("numpy");
    return std::array{nb::object(numpy.attr("int64")).release().ptr(),
                      nb::object(numpy.attr("int32")).release().ptr()};
  }();
  return std::ranges::count(types, reinterpret_cast<PyObject*>(Py_TYPE(x.ptr()))) != 0;
}

}  // namespace

nb::object OperationKey(nb::handle operand_key, nb::handle primitive, nb::handle operands,
                        nb::handle params, nb::handle context) {
  const Sequence given(operands);
  const size_t count = given.size();
  const nb::object keys = Steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  bool repeated = false;
  for (size_t i = 0; i < count; ++i) {
    const nb::handle x = given[i];
    nb::object key = IsValue(x) ? Steal(PyLong_FromLong(ValueOf(x).key))
                                : nb::steal(PyObject_CallOneArg(operand_key.ptr(), x.ptr()));
    if (!key.is_valid()) nb::raise_python_error();
    PyTuple_SET_ITEM(keys.ptr(), static_cast<Py_ssize_t>(i), key.release().ptr());
    for (size_t j = 0; j < i && !repeated; ++j) repeated = given[j].is(x);
  }
  nb::object positions = nb::none();  // where each operand is first seen, if any is repeated
  if (repeated) {
    positions = Steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t i = 0; i < count; ++i) {
      size_t first = 0;
      while (!given[first].is(given[i])) ++first;
      PyTuple_SET_ITEM(positions.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromSize_t(first));
    }
  }
  const nb::object items = Steal(PyTuple_New(2 * PyDict_GET_SIZE(params.ptr())));
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t place = 0, next = 0;
  while (PyDict_Next(params.ptr(), &place, &name, &value)) {
    PyTuple_SET_ITEM(items.ptr(), next++, Py_NewRef(name));
    PyTuple_SET_ITEM(items.ptr(), next++, Py_NewRef(value));
  }
  return Steal(
      PyTuple_Pack(5, primitive.ptr(), items.ptr(), keys.ptr(), positions.ptr(), context.ptr()));
}

void OperationWords::SpillOver() {
  if (!many_.empty()) return;  // there before, and shortened since
  many_.resize(kMost);
  std::ranges::copy(few_, many_.begin());
  words_ = many_.data();
}

void OperationWords::AddInteger(nb::handle x) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  if (overflow == 0) Add(kInteger);
  Add(overflow == 0 ? static_cast<uint64_t>(value) : reinterpret_cast<uint64_t>(x.ptr()));
}

void OperationWords::AddObject(nb::handle x) {
  PyObject* const object = x.ptr();
  if (PyLong_CheckExact(object)) {
    AddInteger(x);
    return;
  } else if (PyFloat_CheckExact(object)) {
    Add(kFloat);
    Add(Bits(PyFloat_AS_DOUBLE(object)));
    return;
  } else if (PyTuple_Check(object)) {  // named ones, too
    const Py_ssize_t size = PyTuple_GET_SIZE(object);
    Add(kTuple);
    Add(reinterpret_cast<uint64_t>(Py_TYPE(object)));
    Add(static_cast<uint64_t>(size));
    for (Py_ssize_t i = 0; i < size && fit(); ++i) AddObject(PyTuple_GET_ITEM(object, i));
    return;
  } else if (IsNumPyInteger(x)) {
    AddInteger(Steal(PyNumber_Index(object)));  // one that fits
    return;
  }
  Add(reinterpret_cast<uint64_t>(object));
}

uint64_t OperationWords::Hash() const {
  // In lanes that do not wait for each other.
  constexpr size_t kLanes = 4;
  std::array<uint64_t, kLanes> lanes{1, 2, 3, 4};
  for (size_t i = 0; i < count_; ++i) {
    uint64_t& lane = lanes[i % kLanes];
    lane = (std::rotl(lane, 23) ^ words_[i]) * 0xff51afd7ed558ccdu;
  }
  return HashValues(0, lanes[0], lanes[1], lanes[2], lanes[3]);
}

void PreparedOperations::Read(nb::handle operand_key, nb::handle primitive, nb::handle operands,
                              nb::handle context, OperationWords* words) const {
  static const Name dtype("dtype");
  words->AddObject(primitive);
  words->AddObject(context);
  const Sequence given(operands);
  const size_t count = given.size();
  words->Add(count);
  for (size_t i = 0; i < count && words->fit(); ++i) {
    const nb::handle x = given[i];
    size_t first = 0;
    while (!given[first].is(x)) ++first;
    const uint64_t where = static_cast<uint64_t>(first) << 8;
    if (IsValue(x)) {
      const auto key = static_cast<uint32_t>(ValueOf(x).key);
      words->Add(kValue | where | static_cast<uint64_t>(key) << 32);
    } else if (PySet_Contains(literals_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(x.ptr()))) ==
               1) {
      words->Add(kLiteral | where);
      words->AddObject(dtype.Of(x));
    } else if (scalars_.Has(x)) {
      const ScalarArrays::Kind kind = scalars_.KindOf(x);
      words->Add(kScalar | where | static_cast<uint64_t>(kind.weak_type) << 32);
      words->AddObject(kind.dtype);
    } else if (x.type().is(constant_)) {
      words->Add(kConstant | where);
      words->AddObject(x);
    } else {
      words->Add(kOther | where);
      words->AddOwned(Steal(PyObject_CallOneArg(operand_key.ptr(), x.ptr())));
    }
  }
}

void PreparedOperations::ReadParameters(nb::handle params, OperationWords* words,
                                        std::vector<Parameter>* parameters) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t place = 0;
  while (words->fit() && PyDict_Next(params.ptr(), &place, &name, &value)) {
    words->Add(reinterpret_cast<uint64_t>(name));
    const auto begin = static_cast<uint32_t>(words->size());
    words->AddObject(value);
    if (parameters == nullptr) continue;
    parameters->push_back({name, value, begin, static_cast<uint32_t>(words->size())});
  }
}

bool PreparedOperations::AreOf(const Known& known, nb::handle params, OperationWords* words) {
  const size_t count = words->size();
  if (static_cast<size_t>(PyDict_GET_SIZE(params.ptr())) != known.parameters.size()) return false;
  const Parameter* parameter = known.parameters.begin();
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t place = 0;
  while (PyDict_Next(params.ptr(), &place, &name, &value)) {
    if (name != parameter->name) return false;
    if (value != parameter->value) {  // the same object, kept alive, is what it was
      words->AddObject(value);
      const bool same = words->fit() && std::equal(words->begin() + count, words->end(),
                                                   known.words.begin() + parameter->begin,
                                                   known.words.begin() + parameter->end);
      words->Shorten(count);
      if (!same) return false;
    }
    ++parameter;
  }
  return true;
}

nb::object PreparedOperations::Find(nb::handle operand_key, nb::handle primitive,
                                    nb::handle operands, nb::handle params, nb::handle context) {
  OperationWords words;
  Read(operand_key, primitive, operands, context, &words);
  const size_t own = words.size();
  if (Known* const next = Expected(); next != nullptr && own == next->own && words.fit()) {
    if (std::equal(words.begin(), words.end(), next->words.begin()) &&
        AreOf(*next, params, &words)) {
      return Found(next, true);
    }
  }
  ReadParameters(params, &words);
  const bool read = words.fit();
  const uint64_t hash = read ? words.Hash() : 0;
  if (read && recent_count_ > 0) {
    Known* const known = EntryOf(words, hash).known.get();
    if (known != nullptr) return Found(known, false);
  }
  nb::object key = OperationKey(operand_key, primitive, operands, params, context);
  PyObject* const found = PyDict_GetItemWithError(prepared_.ptr(), key.ptr());
  if (found == nullptr) {
    if (PyErr_Occurred() == nullptr) return {};
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
    PyErr_Clear();  // a parameter without hash: the session has another way
    return {};
  }
  nb::object prepared = nb::borrow(found);
  if (!read) return prepared;
  nb::list alive;
  alive.append(std::move(key));
  for (nb::object& object : words.TakeOwned()) alive.append(std::move(object));
  const Sequence given(operands);
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].type().is(constant_)) alive.append(given[i]);
    if (scalars_.Has(given[i])) alive.append(scalars_.KindOf(given[i]).dtype);
  }
  std::vector<Entry> gone;  // what letting go of them runs may come back here
  if (recent_count_ >= kMostRecent) gone = TakeRecent();
  Grow();
  Entry& entry = EntryOf(words, hash);
  if (entry.known == nullptr) {
    ++recent_count_;
    std::vector<Parameter> parameters;
    words.Shorten(own);
    ReadParameters(params, &words, &parameters);
    entry = {hash, std::make_unique<Known>(
                       Known{.prepared = std::move(prepared),
                             .number = number_,
                             .own = static_cast<uint32_t>(own),
                             .words = {words.begin(), words.end()},
                             .parameters = ShortList<Parameter, 12>(std::move(parameters)),
                             .alive = std::move(alive)})};
  }
  return Found(entry.known.get(), false);
}

PreparedOperations::Known* PreparedOperations::Expected() const {
  if (before_ >= number_ || number_ - before_ > followed_.size()) return nullptr;
  return followed_[before_ % kMostFollowed];
}

nb::object PreparedOperations::Found(Known* known, bool expected) {
  if (followed_.empty()) number_ = before_ = 0;
  if (!expected) before_ = known->number;
  ++before_;
  known->number = number_;
  if (followed_.size() < kMostFollowed) {
    followed_.push_back(known);
  } else {
    followed_[number_ % kMostFollowed] = known;
  }
  ++number_;
  return known->prepared;
}

PreparedOperations::Entry& PreparedOperations::EntryOf(const OperationWords& words, uint64_t hash) {
  const size_t mask = recent_.size() - 1;
  size_t i = hash & mask;
  while (recent_[i].known != nullptr &&
         (recent_[i].hash != hash || !std::ranges::equal(recent_[i].known->words, words))) {
    i = (i + 1) & mask;
  }
  return recent_[i];
}

std::vector<PreparedOperations::Entry> PreparedOperations::TakeRecent() {
  recent_count_ = 0;
  followed_.clear();
  return std::exchange(recent_, {});
}

void PreparedOperations::Grow() {
  if (2 * (recent_count_ + 1) <= recent_.size()) return;
  std::vector<Entry> larger(std::max<size_t>(64, 2 * recent_.size()));
  const size_t mask = larger.size() - 1;
  for (Entry& entry : recent_) {
    if (entry.known == nullptr) continue;
    size_t i = entry.hash & mask;
    while (larger[i].known != nullptr) i = (i + 1) & mask;
    larger[i] = std::move(entry);
  }
  recent_ = std::move(larger);
}

nb::object PreparedOperations::Get(nb::handle key, nb::handle otherwise) const {
  PyObject* const found = PyDict_GetItemWithError(prepared_.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return nb::borrow(found == nullptr ? otherwise.ptr() : found);
}

void PreparedOperations::Set(nb::handle key, nb::handle prepared) {
  if (PyDict_SetItem(prepared_.ptr(), key.ptr(), prepared.ptr()) != 0) nb::raise_python_error();
}

void PreparedOperations::Clear() {
  const std::vector<Entry> gone = TakeRecent();
  scalars_.Clear();
  prepared_.clear();
}

void BindOperationKey(nb::module_& module) {
  module.def("operation_key", &OperationKey, nb::arg("operand_key"), nb::arg("primitive"),
             nb::arg("operands"), nb::arg("params"), nb::arg("context").none());

  nb::class_<PreparedOperations>(module, "PreparedOperations", "Prepared operations by their keys.")
      .def(nb::init<nb::frozenset, nb::object, nb::object, nb::object>(), nb::arg("literals"),
           nb::arg("constant"), nb::arg("literal_array"), nb::arg("literal_aval"))
      .def(
          "find",
          [](PreparedOperations& self, nb::handle operand_key, nb::handle primitive,
             nb::handle operands, nb::handle params, nb::handle context, nb::handle otherwise) {
            nb::object found = self.Find(operand_key, primitive, operands, params, context);
            return found.is_valid() ? found : nb::borrow(otherwise);
          },
          nb::arg("operand_key"), nb::arg("primitive"), nb::arg("operands"), nb::arg("params"),
          nb::arg("context").none(), nb::arg("otherwise") = nb::none())
      .def("get", &PreparedOperations::Get, nb::arg("key"), nb::arg("otherwise") = nb::none())
      .def("__setitem__", &PreparedOperations::Set, nb::arg("key"), nb::arg("prepared").none())
      .def("__len__", &PreparedOperations::size)
      .def("clear", &PreparedOperations::Clear);
}

}  // namespace coop::python
