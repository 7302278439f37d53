#include "cc/python/memory/pool_bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/python/memory/pool_memory.h"

namespace nb = nanobind;

namespace coop::python {
namespace {

constexpr const char* kFreshCapsule = "dltensor";

// Python objects whose last user may have gone on a thread without the interpreter lock. They
// are let go of by a pending call of the interpreter; what is left at exit stays alive.
class DeferredReferences {
 public:
  void Add(PyObject* object) {
    {
      const std::lock_guard lock(mutex_);
      objects_.push_back(object);
    }
    // A full queue is no loss: its calls are of the same function or the next Add tries again.
    Py_AddPendingCall([](void* self) { return static_cast<DeferredReferences*>(self)->Drain(); },
                      this);
  }

  int Drain() {
    std::vector<PyObject*> objects;
    {
      const std::lock_guard lock(mutex_);
      objects.swap(objects_);
    }
    for (PyObject* object : objects) Py_DECREF(object);
    return 0;
  }

 private:
  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

// Never destroyed: slots may die while the interpreter shuts down.
DeferredReferences& Deferred() {
  static auto* const deferred = new DeferredReferences;
  return *deferred;
}

class Pool {
 public:
  explicit Pool(int64_t capacity_bytes) {
    if (capacity_bytes < 0) throw std::invalid_argument("capacity_bytes must be >= 0");
    memory_ = PoolMemory::New(std::make_unique<HostArena>(capacity_bytes));
  }

  Pool(uint64_t base_pointer, int64_t capacity_bytes, const nb::object& owner, int32_t device_type,
       int32_t device_id) {
    if (capacity_bytes < 0) throw std::invalid_argument("capacity_bytes must be >= 0");
    Deferred().Drain();
    PyObject* const object = owner.ptr();
    auto arena = std::make_unique<ForeignArena>(base_pointer, capacity_bytes,
                                                DLDevice{device_type, device_id},
                                                [object] { Deferred().Add(object); });
    Py_INCREF(object);
    memory_ = PoolMemory::New(std::move(arena));
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { memory_->Release(); }

  [[nodiscard]] PoolMemory& memory() const { return *memory_; }

  [[nodiscard]] nb::object Slot(int64_t offset, const SlotSpec& spec, bool exclusive) const {
    return MakeCapsule(memory_->NewSlot(offset, spec, exclusive));
  }

  nb::object Take(int64_t offset, const SlotSpec& spec) const {
    return MakeCapsule(memory_->NewUncounted(offset, spec, /*write=*/true));
  }

  nb::object View(int64_t offset, const SlotSpec& spec) const {
    return MakeCapsule(memory_->NewUncounted(offset, spec, /*write=*/false));
  }

 private:
  PoolMemory* memory_ = nullptr;
};

nb::object DrainFreed(const Pool& pool) {
  if (!pool.memory().has_freed()) return nb::none();
  return nb::cast(pool.memory().DrainFreed());
}

nb::list LiveBlocks(const Pool& pool) {
  nb::list blocks;
  for (const auto& block : pool.memory().LiveBlocks()) {
    blocks.append(nb::make_tuple(block.offset, block.bytes));
  }
  return blocks;
}

}  // namespace

nb::object MakeCapsule(DLManagedTensor* tensor) {
  PyObject* const capsule = PyCapsule_New(tensor, kFreshCapsule, [](PyObject* self) {
    // Importers rename the capsule when they take over the tensor.
    if (std::strcmp(PyCapsule_GetName(self), kFreshCapsule) != 0) return;
    auto* const unused = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(self, kFreshCapsule));
    unused->deleter(unused);
  });
  if (capsule == nullptr) {
    tensor->deleter(tensor);
    nb::raise_python_error();
  }
  return nb::steal(capsule);
}

PoolMemory& MemoryOf(nb::handle pool) { return nb::cast<Pool&>(pool).memory(); }

void BindPool(nb::module_& module) {
  module.def("return_freed_memory", &ReturnFreedMemory,
             "Give memory that was freed back to the system, where the C library keeps it.");

  nb::class_<SlotSpec>(module, "SlotSpec", "Shape and element type of a slot; made once, reused.")
      .def(nb::init<std::vector<int64_t>, int, int, int64_t>(), nb::arg("shape"),
           nb::arg("dlpack_type_code"), nb::arg("bits"), nb::arg("nbytes") = -1)
      .def_ro("nbytes", &SlotSpec::bytes)
      .def_prop_ro("shape", [](const SlotSpec& spec) {
        nb::list shape;
        for (const int64_t dimension : spec.shape) shape.append(dimension);
        return nb::tuple(shape);
      });

  nb::class_<Pool>(module, "Pool", nb::is_weak_referenceable(),
                   "One range of memory in which slots are handed out.")
      .def(nb::init<int64_t>(), nb::arg("capacity_bytes"))
      .def(nb::init<uint64_t, int64_t, const nb::object&, int32_t, int32_t>(),
           nb::arg("base_pointer"), nb::arg("capacity_bytes"), nb::arg("owner"),
           nb::arg("device_type"), nb::arg("device_id"))
      .def("slot", &Pool::Slot, nb::arg("offset"), nb::arg("spec"), nb::arg("exclusive") = false)
      .def("take", &Pool::Take, nb::arg("offset"), nb::arg("spec"))
      .def("view", &Pool::View, nb::arg("offset"), nb::arg("spec"))
      .def(
          "reclaim", [](const Pool& pool, int64_t offset) { return pool.memory().Reclaim(offset); },
          nb::arg("offset"))
      .def("live_blocks", &LiveBlocks)
      .def(
          "live_count",
          [](const Pool& pool, int64_t offset) { return pool.memory().LiveCount(offset); },
          nb::arg("offset"))
      .def(
          "are_live",
          [](const Pool& pool, const std::vector<int64_t>& offsets) {
            std::vector<bool> live;
            for (const int64_t offset : offsets)
              live.push_back(pool.memory().LiveCount(offset) > 0);
            return live;
          },
          nb::arg("offsets"))
      .def("drain_freed", &DrainFreed)
      .def(
          "offset_of",
          [](const Pool& pool, uint64_t pointer) { return pool.memory().OffsetOf(pointer); },
          nb::arg("pointer"))
      .def(
          "discard",
          [](const Pool& pool, int64_t offset, int64_t bytes) {
            pool.memory().Discard(offset, bytes);
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "write",
          [](const Pool& pool, int64_t offset, uint64_t source, int64_t bytes) {
            pool.memory().Write(offset, reinterpret_cast<const void*>(source), bytes);
          },
          nb::arg("offset"), nb::arg("source_pointer"), nb::arg("nbytes"),
          nb::call_guard<nb::gil_scoped_release>(), "Copy from host memory.")
      .def(
          "resident_bytes", [](const Pool& pool) { return pool.memory().arena().ResidentBytes(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("validate", [](const Pool& pool) { pool.memory().Validate(); })
      .def_prop_ro("base", [](const Pool& pool) { return pool.memory().arena().base(); })
      .def_prop_ro("capacity_bytes",
                   [](const Pool& pool) { return pool.memory().arena().capacity_bytes(); });
}

}  // namespace coop::python
