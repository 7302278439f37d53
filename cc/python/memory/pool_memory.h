// Pool memory and the DLPack tensors that lie in it.
//
// Purpose: hands out DLPack tensors ("slots") inside one address range, and knows at every moment
//   which of them somebody still holds.
// Model: an arena is the memory; a PoolMemory is an arena, a table of live slots and a reference
//   count. Importers (JAX) call a slot's deleter exactly when the last user of that memory is gone,
//   through any chain of donations and views, so the number of live slots at an offset *is* the
//   truth about who holds it. The table is a second opinion on the planner: a slot that would
//   overlap memory which somebody holds is refused.
//   A running call has uncounted slots besides: to write into, and to read what lies there. It
//   knows itself when its operations are done, while XLA's worker threads may drop their last
//   reference to them any time later. So only what is given to the user is counted, in slots of its
//   own.
// Invariants: live blocks never overlap; every live block lies inside the arena and has a count
//   >= 1; the arena outlives every slot. Empty slots (0 bytes) occupy nothing and are not counted.
// Thread rule: every method may be called from any thread. Deleters run on any thread, without
//   the interpreter lock, and call no Python: what must be released under that lock is given to
//   the arena as a function that defers it.
// Complexity: NewSlot and the deleter O(log live blocks); ResidentBytes linear in the range.
// Source: Coop (2023), section 3.1 (one contiguous pool); DLPack protocol.

#ifndef COOP_PYTHON_MEMORY_POOL_MEMORY_H_
#define COOP_PYTHON_MEMORY_POOL_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cc/python/memory/dlpack_abi.h"

namespace coop::python {

// Somebody still holds the memory that was asked for.
class SlotInUseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a slot holds: made once for each shape and element type, used for every slot of that kind.
struct SlotSpec {
  // `element_bits` below 8 pack; `bytes` < 0 asks for the bytes that shape and bits amount to.
  SlotSpec(std::vector<int64_t> dimensions, int type_code, int element_bits,
           int64_t bytes_or_minus_1);

  std::vector<int64_t> shape;
  DLDataType type;
  int64_t bytes;
};

// Gives memory that was freed back to the system, where the C library keeps it (glibc does, up to
// twice the largest block that was freed).
void ReturnFreedMemory();

// While one lives, what is allocated in large blocks comes from the system and goes back as soon as
// it is freed: ReturnFreedMemory would have to look at everything that is free, in a process with
// much on its heap some milliseconds each time. glibc alone, and unless the user has set its
// thresholds; otherwise what is freed is returned at the end. When the last one is gone glibc's
// thresholds are where they rise to by themselves, so that nothing else is slower than before.
class UncachedAllocation {
 public:
  UncachedAllocation();
  ~UncachedAllocation();
  UncachedAllocation(const UncachedAllocation&) = delete;
  UncachedAllocation& operator=(const UncachedAllocation&) = delete;
};

// A range of memory. Implementations own it, or keep its owner alive.
class Arena {
 public:
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  virtual ~Arena() = default;

  [[nodiscard]] uint64_t base() const { return base_; }
  [[nodiscard]] int64_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] DLDevice device() const { return device_; }

  // Gives whole pages inside the range back to the system; their content is lost.
  virtual void Discard(int64_t offset, int64_t bytes) = 0;
  // Physical memory behind the arena, or -1 where that cannot be told.
  [[nodiscard]] virtual int64_t ResidentBytes() const = 0;

 protected:
  Arena(uint64_t base, int64_t capacity_bytes, DLDevice device)
      : base_(base), capacity_bytes_(capacity_bytes), device_(device) {}

 private:
  uint64_t base_;
  int64_t capacity_bytes_;
  DLDevice device_;
};

// Host memory that takes no physical page before it is touched; the range may be huge.
class HostArena final : public Arena {
 public:
  explicit HostArena(int64_t capacity_bytes);
  ~HostArena() override;
  void Discard(int64_t offset, int64_t bytes) override;
  [[nodiscard]] int64_t ResidentBytes() const override;
};

// Memory of somebody else. `release_owner` is called once, on any thread, when nothing uses it.
class ForeignArena final : public Arena {
 public:
  ForeignArena(uint64_t base, int64_t capacity_bytes, DLDevice device,
               std::function<void()> release_owner);
  ~ForeignArena() override;
  void Discard(int64_t offset, int64_t bytes) override;
  [[nodiscard]] int64_t ResidentBytes() const override;

 private:
  std::function<void()> release_owner_;
};

// Intrusively counted: the owner holds one reference, every slot another.
class PoolMemory {
 public:
  struct Block {
    int64_t offset;
    int64_t bytes;
  };

  // The caller holds the one reference of the new object, and ends it with Release().
  [[nodiscard]] static PoolMemory* New(std::unique_ptr<Arena> arena);
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  void Retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release();

  // A tensor at `offset`; whoever gets it calls its deleter once. With `exclusive`, nobody may hold
  // that memory; otherwise slots of the same extent may share it.
  // Throws SlotInUseError, or std::invalid_argument outside the range; nothing changes then.
  [[nodiscard]] DLManagedTensor* NewSlot(int64_t offset, const SlotSpec& spec, bool exclusive);

  // An uncounted tensor, for the running call. With `write`, nobody may hold that memory.
  [[nodiscard]] DLManagedTensor* NewUncounted(int64_t offset, const SlotSpec& spec, bool write);
  // Throws SlotInUseError where somebody holds part of the range.
  void CheckUnheld(int64_t offset, int64_t bytes) const;
  // The running call disposes of the block at `offset`: its slots no longer count, however long
  // they live. False if nothing is there.
  bool Reclaim(int64_t offset);

  [[nodiscard]] std::vector<Block> LiveBlocks() const;  // in address order
  [[nodiscard]] int64_t LiveCount(int64_t offset) const;
  // Whether these are the live blocks, in address order; bytes 0: any; alone: held once.
  struct Expected {
    int64_t offset = 0;
    int64_t bytes = 0;
    bool alone = false;
  };
  [[nodiscard]] bool Holds(const std::vector<Expected>& blocks) const;
  // Offsets whose count has fallen to zero since the last call, in that order. One that was taken
  // anew in between is still listed.
  [[nodiscard]] std::vector<int64_t> DrainFreed();
  [[nodiscard]] bool has_freed() const { return has_freed_.load(std::memory_order_acquire); }
  // The offset of an address, -1 outside the range.
  [[nodiscard]] int64_t OffsetOf(uint64_t pointer) const;
  // Refuses (SlotInUseError) where somebody holds part of the range.
  void Discard(int64_t offset, int64_t bytes);
  // Copies from host memory; refuses (SlotInUseError) where somebody holds part of the range, and
  // (std::invalid_argument) where the pool is not host memory.
  void Write(int64_t offset, const void* source, int64_t bytes);

  [[nodiscard]] const Arena& arena() const { return *arena_; }
  // Throws std::logic_error naming the invariant that does not hold.
  void Validate() const;

 private:
  struct Live {
    int64_t bytes;
    int64_t count;
    uint64_t tenancy;  // tells its slots from those of a block that lay there before
  };
  struct Slot;

  explicit PoolMemory(std::unique_ptr<Arena> arena) : arena_(std::move(arena)) {}
  ~PoolMemory() = default;
  [[nodiscard]] std::unique_ptr<Slot> MakeSlot(int64_t offset, const SlotSpec& spec);
  [[noreturn]] static void ThrowInUse(int64_t offset, int64_t bytes, const Block& held);
  static void DeleteSlot(DLManagedTensor* tensor);
  void CheckRange(int64_t offset, int64_t bytes) const;
  // An iterator to a live block that overlaps the range, or end().
  [[nodiscard]] std::map<int64_t, Live>::const_iterator Overlapping(int64_t offset,
                                                                    int64_t bytes) const;

  std::unique_ptr<Arena> arena_;
  std::atomic<int64_t> references_{1};
  std::atomic<bool> has_freed_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::map<int64_t, Live> live_;
  std::vector<int64_t> freed_;
  uint64_t tenancies_ = 0;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_POOL_MEMORY_H_
