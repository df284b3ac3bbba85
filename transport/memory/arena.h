#ifndef REFRACT_TRANSPORT_MEMORY_ARENA_H_
#define REFRACT_TRANSPORT_MEMORY_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/datapath.h"
#include "transport/loop/waker.h"

namespace refract::transport {

// Hands out ranges of [0, capacity). First fit from the lowest address, so that
// a lightly used arena touches few pages; freed neighbours merge. Cost grows
// with the number of holes, which is at most the number of live ranges. Not
// thread-safe.
class RangeAllocator {
 public:
  // `align` is a power of two; offsets and sizes are multiples of it.
  RangeAllocator(size_t capacity, size_t align);

  // nullopt: no hole is large enough. `bytes` 0 counts as 1.
  std::optional<size_t> Allocate(size_t bytes);
  // `offset` and `bytes` of an Allocate() that is not freed yet.
  void Free(size_t offset, size_t bytes);

  size_t used_bytes() const { return used_bytes_; }

 private:
  const size_t align_;
  struct Hole {
    size_t offset;
    size_t bytes;
  };
  size_t Rounded(size_t bytes) const;
  // In order, never adjacent. A vector: holes are few, and moving them costs
  // less than a tree's nodes.
  std::vector<Hole> holes_;
  size_t used_bytes_ = 0;
};

class Arena;

// A live range of an Arena, which must outlive it; freed by the destructor.
// Move-only.
class ArenaBlock {
 public:
  ArenaBlock() = default;
  ArenaBlock(ArenaBlock&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)),
        offset_(other.offset_),
        bytes_(other.bytes_) {}
  ArenaBlock& operator=(ArenaBlock&& other) noexcept {
    if (this != &other) {
      Reset();
      arena_ = std::exchange(other.arena_, nullptr);
      offset_ = other.offset_;
      bytes_ = other.bytes_;
    }
    return *this;
  }
  ~ArenaBlock() { Reset(); }

  void Reset() {
    if (arena_ != nullptr) Free();
  }
  bool valid() const { return arena_ != nullptr; }
  size_t offset() const { return offset_; }  // in the region
  std::byte* data() const;

 private:
  friend class Arena;
  ArenaBlock(Arena* arena, size_t offset, size_t bytes)
      : arena_(arena), offset_(offset), bytes_(bytes) {}
  void Free();
  Arena* arena_ = nullptr;
  size_t offset_ = 0;
  size_t bytes_ = 0;
};

// A Region with an allocator. The block freed last is kept outside the lock,
// and the next block of the same length is that block: messages of one size,
// one after the other, take no lock and use the same memory. Thread-safe.
// Belongs to the LinkMemory that the connection shares with its messages, which
// may outlive the connection.
class Arena {
 public:
  // Uses `bytes` of `region` from `begin`, both multiples of 64, at most
  // 256 GiB. Frees wake `waker` if AllocateOrNotify() asked for it.
  Arena(Region region, size_t begin, size_t bytes,
        std::shared_ptr<Waker> waker);

  // Aligned to 64 B. nullopt: full.
  std::optional<ArenaBlock> Allocate(size_t bytes);
  // As Allocate, but when full the next free wakes the waker.
  std::optional<ArenaBlock> AllocateOrNotify(size_t bytes);

  size_t used_bytes() const;
  size_t capacity() const { return bytes_; }

 private:
  friend class ArenaBlock;
  void Free(size_t offset, size_t bytes);
  std::optional<ArenaBlock> AllocateLocked(size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeLocked(uint64_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Region region_;
  const size_t begin_;
  const size_t bytes_;
  const std::shared_ptr<Waker> waker_;
  // The block freed last, which ranges_ counts as used; 0: none.
  std::atomic<uint64_t> last_ = 0;
  std::atomic<bool> notify_ = false;  // set under mu_
  mutable absl::Mutex mu_;
  RangeAllocator ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_ARENA_H_
