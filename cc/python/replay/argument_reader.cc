#include "cc/python/replay/argument_reader.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cc/core/planner/plan.h"
#include "cc/python/memory/pool_bindings.h"
#include "cc/python/support/py_objects.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

// So many placements are remembered.
constexpr size_t kMostPlacements = 8;

// So many pairs of abstract values.
constexpr size_t kMostEqual = 4096;

nb::object Ask(const nb::object& accessor, nb::handle array) {
  PyObject* const argument = array.ptr();
  return Steal(PyObject_Vectorcall(accessor.ptr(), &argument, 1, nullptr));
}

bool Says(const nb::object& accessor, nb::handle array) {
  const nb::object answer = Ask(accessor, array);
  if (answer.is(Py_True)) return true;
  if (answer.is(Py_False)) return false;
  const int truth = PyObject_IsTrue(answer.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

std::string_view Flags(const nb::bytes& flags, size_t count) {
  const std::string_view found(flags.c_str(), flags.size());
  if (found.size() != count) throw std::invalid_argument("one flag for each value is needed");
  return found;
}

nb::object TupleOf(const std::vector<int64_t>& numbers) {
  nb::object tuple = Steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

// The blocks that lie in a pool, and which of them inputs were seen in.
class SeenBlocks {
 public:
  explicit SeenBlocks(std::vector<PoolMemory::Block> live)
      : live_(std::move(live)), seen_(live_.size(), false) {}

  // Whether this is the first of the inputs that lie at an offset.
  bool IsFirst(int64_t offset) {
    const auto found = std::lower_bound(
        live_.begin(), live_.end(), offset,
        [](const PoolMemory::Block& block, int64_t o) { return block.offset < o; });
    if (found == live_.end() || found->offset != offset) return seen_inside_.insert(offset).second;
    const auto index = static_cast<size_t>(found - live_.begin());
    if (seen_[index]) return false;
    seen_[index] = true;
    return true;
  }

  // (offset, bytes) of each block that no input was seen in.
  [[nodiscard]] nb::list Others() const {
    nb::list others;
    for (size_t i = 0; i < live_.size(); ++i) {
      if (!seen_[i]) others.append(nb::make_tuple(live_[i].offset, live_[i].bytes));
    }
    return others;
  }

 private:
  std::vector<PoolMemory::Block> live_;  // by offset
  std::vector<bool> seen_;
  std::set<int64_t> seen_inside_;  // offsets where no block begins
};

}  // namespace

ArgumentReader::ArgumentReader(nb::object type, Accessors accessors,
                               std::optional<HolderCount> holders)
    : type_(std::move(type)), accessors_(std::move(accessors)), holders_(holders) {}

bool ArgumentReader::IsArray(nb::handle x) const {
  return reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) == type_.ptr();
}

bool ArgumentReader::IsDeleted(nb::handle x) const { return Says(accessors_.is_deleted, x); }

bool ArgumentReader::IsLike(nb::handle x, nb::handle aval) {
  return AreEqual(Ask(accessors_.aval, x), aval);
}

bool ArgumentReader::IsCommitted(nb::handle x) const { return Says(accessors_.is_committed, x); }

bool ArgumentReader::IsHereAndReady(nb::handle x) {
  return LiesHere(Ask(accessors_.placement, x)) && Says(accessors_.is_ready, x);
}

uint64_t ArgumentReader::AddressOf(nb::handle x) const {
  return nb::cast<uint64_t>(Ask(accessors_.address, x));
}

bool ArgumentReader::LiesHere(nb::handle placement) {
  for (const nb::object& known : here_) {
    if (known.is(placement)) return true;
  }
  if (!Says(accessors_.lies_here, placement)) return false;
  if (here_.size() == kMostPlacements) here_.erase(here_.begin());
  here_.push_back(nb::borrow(placement));
  return true;
}

bool ArgumentReader::AreEqual(const nb::object& aval, nb::handle expected) {
  if (aval.is(expected)) return true;
  const auto pair = std::make_pair(aval.ptr(), expected.ptr());
  if (equal_.count(pair) != 0) return true;
  if (!aval.equal(expected)) return false;
  if (equal_.size() == kMostEqual) equal_.clear();
  equal_.emplace(pair, std::make_pair(aval, nb::borrow(expected)));
  return true;
}

std::vector<size_t> ArgumentReader::Unlike(nb::list values, nb::list avals,
                                           std::optional<bool> committed) {
  if (values.size() != avals.size()) {
    throw std::invalid_argument("one abstract value for each value is needed");
  }
  std::vector<size_t> unlike;
  for (size_t i = 0; i < values.size(); ++i) {
    const nb::handle x = values[i];
    bool like = IsArray(x) && !IsDeleted(x) && IsLike(x, avals[i]);
    if (like && committed) like = IsCommitted(x) == *committed;
    if (!like) unlike.push_back(i);
  }
  return unlike;
}

nb::tuple ArgumentReader::Read(nb::list values, nb::bytes plain) {
  const std::string_view flags = Flags(plain, values.size());
  nb::list addresses;
  std::vector<size_t> others;
  bool any_committed = false;
  for (size_t i = 0; i < values.size(); ++i) {
    const nb::handle x = values[i];
    if (flags[i] == 0 || !IsArray(x) || IsDeleted(x) || !IsHereAndReady(x)) {
      others.push_back(i);
      addresses.append(nb::none());
      continue;
    }
    any_committed = any_committed || IsCommitted(x);
    addresses.append(Ask(accessors_.address, x));
  }
  return nb::make_tuple(addresses, any_committed, others);
}

std::vector<size_t> ArgumentReader::Left(nb::list values, nb::tuple given) const {
  if (values.size() != given.size()) {
    throw std::invalid_argument("one flag for each value is needed");
  }
  std::vector<size_t> left;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!nb::handle(given[i]).is(Py_True)) continue;
    const nb::handle x = values[i];
    if (!IsArray(x) || !IsDeleted(x)) left.push_back(i);
  }
  return left;
}

nb::tuple ArgumentReader::Lie(nb::handle pool, nb::list arrays, nb::list places,
                              nb::bytes given) const {
  const size_t count = arrays.size();
  if (places.size() != count) throw std::invalid_argument("one place for each array is needed");
  const std::string_view flags = Flags(given, count);
  const PoolMemory& memory = MemoryOf(pool);
  constexpr uint64_t kNowhere = 0;
  std::vector<uint64_t> at(count, kNowhere);
  std::vector<uint64_t> sorted;
  sorted.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nb::handle place = places[i];
    if (place.is_none()) continue;
    at[i] = nb::cast<uint64_t>(place);
    sorted.push_back(at[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto is_alone = [&](uint64_t address) {
    const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), address);
    return last - first == 1;
  };

  SeenBlocks seen(memory.LiveBlocks());
  std::vector<int64_t> where(count), offsets(count, -1);
  nb::object donated = Steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    const bool has_place = !nb::handle(places[i]).is_none();
    const int64_t offset = has_place ? memory.OffsetOf(at[i]) : -1;
    bool mine = flags[i] != 0 && has_place && is_alone(at[i]) &&
                (!IsArray(arrays[i]) || IsUnshared(arrays[i]));
    Program::Where lies = Program::Where::kOutside;
    if (offset >= 0 && seen.IsFirst(offset)) {
      offsets[i] = offset;
      lies = Program::Where::kForeign;
      mine = mine && memory.LiveCount(offset) == 1;
    } else if (offset >= 0) {
      mine = false;
    } else if (mine) {
      lies = Program::Where::kAdopt;
    }
    where[i] = static_cast<int64_t>(lies);
    PyTuple_SET_ITEM(donated.ptr(), static_cast<Py_ssize_t>(i), nb::bool_(mine).release().ptr());
  }
  return nb::make_tuple(TupleOf(where), TupleOf(offsets), donated, nb::tuple(seen.Others()));
}

void BindArgumentReader(nb::module_& module) {
  nb::class_<HolderCount>(module, "HolderCount",
                          "How to find how many hold the memory of an array besides it.")
      .def(
          "__init__",
          [](HolderCount* self, int64_t array_at, uint64_t array_type, int64_t buffer_at,
             uint64_t buffer_type, int64_t count_at) {
            new (self) HolderCount{.array_at = array_at,
                                   .array_type = array_type,
                                   .buffer_at = buffer_at,
                                   .buffer_type = buffer_type,
                                   .count_at = count_at};
          },
          nb::arg("array_at"), nb::arg("array_type"), nb::arg("buffer_at"), nb::arg("buffer_type"),
          nb::arg("count_at"))
      .def(
          "of", [](const HolderCount& self, nb::handle array) { return self.Of(array.ptr()); },
          nb::arg("array"));
  nb::class_<ArgumentReader>(module, "ArgumentReader",
                             "Asks the arrays of a call what it has to know, in one pass.")
      .def(
          "__init__",
          [](ArgumentReader* self, nb::object type, nb::object aval, nb::object is_deleted,
             nb::object is_committed, nb::object is_ready, nb::object address, nb::object placement,
             nb::object lies_here, std::optional<HolderCount> holders) {
            new (self) ArgumentReader(std::move(type),
                                      {.aval = std::move(aval),
                                       .is_deleted = std::move(is_deleted),
                                       .is_committed = std::move(is_committed),
                                       .is_ready = std::move(is_ready),
                                       .address = std::move(address),
                                       .placement = std::move(placement),
                                       .lies_here = std::move(lies_here)},
                                      holders);
          },
          nb::arg("type"), nb::arg("aval"), nb::arg("is_deleted"), nb::arg("is_committed"),
          nb::arg("is_ready"), nb::arg("address"), nb::arg("placement"), nb::arg("lies_here"),
          nb::arg("holders") = nb::none())
      .def("unlike", &ArgumentReader::Unlike, nb::arg("values"), nb::arg("avals"),
           nb::arg("committed") = nb::none())
      .def("read", &ArgumentReader::Read, nb::arg("values"), nb::arg("plain"))
      .def("left", &ArgumentReader::Left, nb::arg("values"), nb::arg("given"))
      .def("lie", &ArgumentReader::Lie, nb::arg("pool"), nb::arg("arrays"), nb::arg("places"),
           nb::arg("given"));
}

}  // namespace coop::python
