#include "cc/python/memory/pool_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

#ifdef __GLIBC__  // which the headers above define
#include <malloc.h>
#endif

namespace coop::python {
namespace {

int64_t PageBytes() { return static_cast<int64_t>(sysconf(_SC_PAGESIZE)); }

std::string Range(int64_t offset, int64_t bytes) {
  return "[" + std::to_string(offset) + ", " + std::to_string(offset + bytes) + ")";
}

int64_t PackedBytes(const std::vector<int64_t>& shape, int element_bits) {
  constexpr int64_t kMaxBits = std::numeric_limits<int64_t>::max() - 7;
  int64_t bits = element_bits;
  for (const int64_t dimension : shape) {
    if (dimension < 0) throw std::invalid_argument("a slot's dimensions must be >= 0");
    if (dimension == 0) return 0;
  }
  for (const int64_t dimension : shape) {
    if (bits > kMaxBits / dimension) throw std::invalid_argument("a slot's shape is too large");
    bits *= dimension;
  }
  return (bits + 7) / 8;
}

#ifdef __GLIBC__
bool IsSetByUser(const char* variable, const char* tunable) {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return std::getenv(variable) != nullptr ||
         (tunables != nullptr && std::strstr(tunables, tunable) != nullptr);
}

bool MaySetThresholds() {
  static const bool may_set = !IsSetByUser("MALLOC_MMAP_THRESHOLD_", "mmap_threshold") &&
                              !IsSetByUser("MALLOC_TRIM_THRESHOLD_", "trim_threshold");
  return may_set;
}

// Blocks from here on glibc maps by themselves at first, and at most (DEFAULT_MMAP_THRESHOLD_MIN
// and _MAX in its malloc.c; it raises the one to the other as mapped blocks are freed).
constexpr int kLeastThreshold = 128 << 10;
constexpr int kMostThreshold = 32 << 20;
int uncached_allocations = 0;  // under the interpreter lock
#endif

}  // namespace

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

#ifdef __GLIBC__
UncachedAllocation::UncachedAllocation() {
  if (MaySetThresholds() && uncached_allocations++ == 0) mallopt(M_MMAP_THRESHOLD, kLeastThreshold);
}

UncachedAllocation::~UncachedAllocation() {
  if (!MaySetThresholds()) {
    ReturnFreedMemory();
    return;
  }
  if (--uncached_allocations > 0) return;
  mallopt(M_MMAP_THRESHOLD, kMostThreshold);
  mallopt(M_TRIM_THRESHOLD, 2 * kMostThreshold);
}
#else
UncachedAllocation::UncachedAllocation() = default;
UncachedAllocation::~UncachedAllocation() = default;
#endif

SlotSpec::SlotSpec(std::vector<int64_t> dimensions, int type_code, int element_bits,
                   int64_t bytes_or_minus_1)
    : shape(std::move(dimensions)), type{}, bytes(bytes_or_minus_1) {
  if (type_code < 0 || type_code > 255 || element_bits < 1 || element_bits > 255) {
    throw std::invalid_argument("a slot's element type is out of range");
  }
  type = DLDataType{static_cast<uint8_t>(type_code), static_cast<uint8_t>(element_bits), 1};
  const int64_t packed_bytes = PackedBytes(shape, element_bits);
  if (bytes < 0) bytes = packed_bytes;
  if (bytes < packed_bytes) throw std::invalid_argument("a slot's bytes do not hold its elements");
}

HostArena::HostArena(int64_t capacity_bytes)
    // At least one page: an empty mapping is an error, and a pool of 0 bytes is legal.
    : Arena(reinterpret_cast<uint64_t>(
                mmap(nullptr, static_cast<size_t>(std::max<int64_t>(capacity_bytes, 1)),
                     PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
            capacity_bytes, DLDevice{kDLCpu, 0}) {
  if (base() == reinterpret_cast<uint64_t>(MAP_FAILED)) {
    throw std::system_error(errno, std::generic_category(),
                            "could not reserve " + std::to_string(capacity_bytes) +
                                " bytes of address space for the pool");
  }
}

HostArena::~HostArena() {
  munmap(reinterpret_cast<void*>(base()),
         static_cast<size_t>(std::max<int64_t>(capacity_bytes(), 1)));
}

void HostArena::Discard(int64_t offset, int64_t bytes) {
  const int64_t page = PageBytes();
  const int64_t begin = (offset + page - 1) / page * page;
  // The tail of the last page belongs to nobody else, so it goes with the end of the range.
  const int64_t end = offset + bytes == capacity_bytes()
                          ? (capacity_bytes() + page - 1) / page * page
                          : (offset + bytes) / page * page;
  if (begin >= end) return;
  if (madvise(reinterpret_cast<void*>(base() + static_cast<uint64_t>(begin)),
              static_cast<size_t>(end - begin), MADV_DONTNEED) != 0) {
    throw std::system_error(errno, std::generic_category(), "could not discard pool pages");
  }
}

int64_t HostArena::ResidentBytes() const {
  const int64_t page = PageBytes();
  const int64_t pages = (std::max<int64_t>(capacity_bytes(), 1) + page - 1) / page;
  constexpr int64_t kChunkPages = int64_t{1} << 20;  // the answer takes a byte a page
  std::vector<unsigned char> present(static_cast<size_t>(std::min(pages, kChunkPages)));
  int64_t resident_pages = 0;
  for (int64_t first = 0; first < pages; first += kChunkPages) {
    const int64_t count = std::min(kChunkPages, pages - first);
    if (mincore(reinterpret_cast<void*>(base() + static_cast<uint64_t>(first * page)),
                static_cast<size_t>(count * page), present.data()) != 0) {
      throw std::system_error(errno, std::generic_category(), "mincore");
    }
    resident_pages += std::count_if(present.begin(), present.begin() + count,
                                    [](unsigned char state) { return (state & 1) != 0; });
  }
  return resident_pages * page;
}

ForeignArena::ForeignArena(uint64_t base, int64_t capacity_bytes, DLDevice device,
                           std::function<void()> release_owner)
    : Arena(base, capacity_bytes, device), release_owner_(std::move(release_owner)) {}

ForeignArena::~ForeignArena() {
  if (release_owner_) release_owner_();
}

// The memory belongs to its owner: there are no pages of ours to give back.
void ForeignArena::Discard(int64_t /*offset*/, int64_t /*bytes*/) {}

int64_t ForeignArena::ResidentBytes() const { return -1; }

// A tensor and what its deleter needs; the shape is a copy, since a spec may go before its slots.
struct PoolMemory::Slot {
  static constexpr size_t kInlineDimensions = 8;

  DLManagedTensor tensor;
  PoolMemory* pool;
  int64_t offset;
  int64_t bytes;
  uint64_t tenancy = 0;  // 0: uncounted
  int64_t inline_shape[kInlineDimensions];
  std::unique_ptr<int64_t[]> heap_shape;
};

PoolMemory* PoolMemory::New(std::unique_ptr<Arena> arena) {
  if (arena->capacity_bytes() < 0) throw std::invalid_argument("capacity_bytes must be >= 0");
  return new PoolMemory(std::move(arena));
}

void PoolMemory::Release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void PoolMemory::CheckRange(int64_t offset, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > arena_->capacity_bytes() ||
      bytes > arena_->capacity_bytes() - offset) {
    throw std::invalid_argument("the range at offset " + std::to_string(offset) + " of " +
                                std::to_string(bytes) + " bytes leaves the pool of " +
                                std::to_string(arena_->capacity_bytes()) + " bytes");
  }
}

std::map<int64_t, PoolMemory::Live>::const_iterator PoolMemory::Overlapping(int64_t offset,
                                                                            int64_t bytes) const {
  if (bytes == 0) return live_.end();
  auto next = live_.lower_bound(offset);
  if (next != live_.end() && next->first < offset + bytes) return next;
  if (next != live_.begin()) {
    --next;
    if (next->first + next->second.bytes > offset) return next;
  }
  return live_.end();
}

void PoolMemory::ThrowInUse(int64_t offset, int64_t bytes, const Block& held) {
  throw SlotInUseError("pool memory " + Range(offset, bytes) + " was asked for, but " +
                       Range(held.offset, held.bytes) + " is still in use");
}

std::unique_ptr<PoolMemory::Slot> PoolMemory::MakeSlot(int64_t offset, const SlotSpec& spec) {
  CheckRange(offset, spec.bytes);
  auto slot = std::make_unique<Slot>();
  int64_t* shape = slot->inline_shape;
  if (spec.shape.size() > Slot::kInlineDimensions) {
    slot->heap_shape = std::make_unique<int64_t[]>(spec.shape.size());
    shape = slot->heap_shape.get();
  }
  std::copy(spec.shape.begin(), spec.shape.end(), shape);
  slot->pool = this;
  slot->offset = offset;
  slot->bytes = spec.bytes;
  slot->tensor = DLManagedTensor{
      DLTensor{reinterpret_cast<void*>(arena_->base() + static_cast<uint64_t>(offset)),
               arena_->device(), static_cast<int32_t>(spec.shape.size()), spec.type, shape, nullptr,
               0},
      slot.get(), &DeleteSlot};
  return slot;
}

DLManagedTensor* PoolMemory::NewSlot(int64_t offset, const SlotSpec& spec, bool exclusive) {
  std::unique_ptr<Slot> slot = MakeSlot(offset, spec);
  if (spec.bytes > 0) {
    const std::lock_guard lock(mutex_);
    const auto held = Overlapping(offset, spec.bytes);
    if (held == live_.end()) {
      slot->tenancy = ++tenancies_;
      live_.emplace(offset, Live{spec.bytes, 1, slot->tenancy});
    } else {
      const bool same = held->first == offset && held->second.bytes == spec.bytes;
      if (!same || exclusive) ThrowInUse(offset, spec.bytes, {held->first, held->second.bytes});
      slot->tenancy = held->second.tenancy;
      ++live_.find(offset)->second.count;
    }
  }
  Retain();
  return &slot.release()->tensor;
}

DLManagedTensor* PoolMemory::NewUncounted(int64_t offset, const SlotSpec& spec, bool write) {
  std::unique_ptr<Slot> slot = MakeSlot(offset, spec);
  if (write) CheckUnheld(offset, spec.bytes);
  Retain();
  return &slot.release()->tensor;
}

void PoolMemory::CheckUnheld(int64_t offset, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto held = Overlapping(offset, bytes);
  if (held != live_.end()) ThrowInUse(offset, bytes, {held->first, held->second.bytes});
}

bool PoolMemory::Reclaim(int64_t offset) {
  const std::lock_guard lock(mutex_);
  return live_.erase(offset) != 0;
}

void PoolMemory::DeleteSlot(DLManagedTensor* tensor) {
  const std::unique_ptr<Slot> slot(static_cast<Slot*>(tensor->manager_ctx));
  PoolMemory* const pool = slot->pool;
  if (slot->tenancy != 0) {
    const std::lock_guard lock(pool->mutex_);
    const auto found = pool->live_.find(slot->offset);
    if (found != pool->live_.end() && found->second.tenancy == slot->tenancy &&
        --found->second.count == 0) {
      pool->live_.erase(found);
      pool->freed_.push_back(slot->offset);
      pool->has_freed_.store(true, std::memory_order_release);
    }
  }
  pool->Release();
}

std::vector<PoolMemory::Block> PoolMemory::LiveBlocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> blocks;
  blocks.reserve(live_.size());
  for (const auto& [offset, live] : live_) blocks.push_back(Block{offset, live.bytes});
  return blocks;
}

int64_t PoolMemory::LiveCount(int64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(offset);
  return found == live_.end() ? 0 : found->second.count;
}

bool PoolMemory::Holds(const std::vector<Expected>& blocks) const {
  const std::lock_guard lock(mutex_);
  if (live_.size() != blocks.size()) return false;
  auto expected = blocks.begin();
  for (const auto& [offset, live] : live_) {
    if (offset != expected->offset || (expected->bytes != 0 && live.bytes != expected->bytes) ||
        (expected->alone && live.count != 1)) {
      return false;
    }
    ++expected;
  }
  return true;
}

std::vector<int64_t> PoolMemory::DrainFreed() {
  const std::lock_guard lock(mutex_);
  has_freed_.store(false, std::memory_order_release);
  return std::exchange(freed_, {});
}

int64_t PoolMemory::OffsetOf(uint64_t pointer) const {
  const uint64_t base = arena_->base();
  if (pointer < base || pointer - base >= static_cast<uint64_t>(arena_->capacity_bytes()))
    return -1;
  return static_cast<int64_t>(pointer - base);
}

void PoolMemory::Discard(int64_t offset, int64_t bytes) {
  CheckRange(offset, bytes);
  const std::lock_guard lock(mutex_);  // held throughout: no slot may appear in the range meanwhile
  const auto held = Overlapping(offset, bytes);
  if (held != live_.end()) {
    throw SlotInUseError("pool memory " + Range(offset, bytes) + " cannot be discarded: " +
                         Range(held->first, held->second.bytes) + " is still in use");
  }
  arena_->Discard(offset, bytes);
}

void PoolMemory::Write(int64_t offset, const void* source, int64_t bytes) {
  if (arena_->device().device_type != kDLCpu) {
    throw std::invalid_argument("only a pool in host memory can be written into");
  }
  CheckRange(offset, bytes);
  CheckUnheld(offset, bytes);
  if (bytes == 0) return;  // an empty array may have no address
  std::memcpy(reinterpret_cast<void*>(arena_->base() + static_cast<uint64_t>(offset)), source,
              static_cast<size_t>(bytes));
}

void PoolMemory::Validate() const {
  const std::lock_guard lock(mutex_);
  int64_t end = 0;
  for (const auto& [offset, live] : live_) {
    if (offset < end) throw std::logic_error("pool invariant broken: live blocks overlap");
    if (live.count < 1) throw std::logic_error("pool invariant broken: live block without holder");
    end = offset + live.bytes;
  }
  if (end > arena_->capacity_bytes()) {
    throw std::logic_error("pool invariant broken: live block outside the arena");
  }
}

}  // namespace coop::python
