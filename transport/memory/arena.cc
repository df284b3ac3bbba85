#include "transport/memory/arena.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "transport/messages/wire.h"

namespace refract::transport {
namespace {

// Holes that need no allocation: as many as messages of a connection in flight.
constexpr size_t kUsualHoles = 64;

// A block as a number, which is not 0: its length in the upper half and its
// offset in the lower half, in units of kPayloadAlign.
uint64_t Packed(size_t offset, size_t bytes) {
  const size_t units =
      AlignUp(std::max<size_t>(bytes, 1), kPayloadAlign) / kPayloadAlign;
  return uint64_t{units} << 32 | offset / kPayloadAlign;
}
size_t OffsetOf(uint64_t block) { return (block & 0xffffffff) * kPayloadAlign; }
size_t BytesOf(uint64_t block) { return (block >> 32) * kPayloadAlign; }

}  // namespace

RangeAllocator::RangeAllocator(size_t capacity, size_t align) : align_(align) {
  holes_.reserve(kUsualHoles);
  capacity -= capacity % align;
  if (capacity > 0) holes_.push_back({0, capacity});
}

size_t RangeAllocator::Rounded(size_t bytes) const {
  return AlignUp(std::max<size_t>(bytes, 1), align_);
}

std::optional<size_t> RangeAllocator::Allocate(size_t bytes) {
  // Checked before rounding up, which could wrap.
  if (bytes > (size_t{1} << 62)) return std::nullopt;
  bytes = Rounded(bytes);
  // First fit. Holes are sorted by offset and never touch: Free() joins
  // neighbours.
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->bytes < bytes) continue;
    const size_t offset = hole->offset;
    hole->offset += bytes;
    hole->bytes -= bytes;
    if (hole->bytes == 0) holes_.erase(hole);
    used_bytes_ += bytes;
    return offset;
  }
  return std::nullopt;
}

void RangeAllocator::Free(size_t offset, size_t bytes) {
  bytes = Rounded(bytes);
  const auto after = std::lower_bound(
      holes_.begin(), holes_.end(), offset,
      [](const Hole& hole, size_t at) { return hole.offset < at; });
  const bool has_before = after != holes_.begin();
  const bool has_after = after != holes_.end();
  const size_t before_end =
      has_before ? std::prev(after)->offset + std::prev(after)->bytes : 0;
  CHECK(before_end <= offset && (!has_after || offset + bytes <= after->offset))
      << "free of " << bytes << " B at " << offset << ", which is free";
  used_bytes_ -= bytes;
  const bool joins_before = has_before && before_end == offset;
  const bool joins_after = has_after && offset + bytes == after->offset;
  if (joins_before) {
    std::prev(after)->bytes += bytes + (joins_after ? after->bytes : 0);
    if (joins_after) holes_.erase(after);
  } else if (joins_after) {
    after->offset = offset;
    after->bytes += bytes;
  } else {
    holes_.insert(after, {offset, bytes});
  }
}

void ArenaBlock::Free() {
  std::exchange(arena_, nullptr)->Free(offset_, bytes_);
}

std::byte* ArenaBlock::data() const { return arena_->region_.data() + offset_; }

Arena::Arena(Region region, size_t begin, size_t bytes,
             std::shared_ptr<Waker> waker)
    : region_(std::move(region)),
      begin_(begin),
      bytes_(bytes),
      waker_(std::move(waker)),
      ranges_(bytes, kPayloadAlign) {}

std::optional<ArenaBlock> Arena::Allocate(size_t bytes) {
  uint64_t last = last_.load(std::memory_order_relaxed);
  if (last != 0 && BytesOf(last) == AlignUp(bytes, kPayloadAlign) &&
      last_.compare_exchange_strong(last, 0, std::memory_order_acquire)) {
    return ArenaBlock(this, begin_ + OffsetOf(last), bytes);
  }
  absl::MutexLock lock(&mu_);
  return AllocateLocked(bytes);
}

std::optional<ArenaBlock> Arena::AllocateOrNotify(size_t bytes) {
  absl::MutexLock lock(&mu_);
  // Set before the attempt: a block that is freed meanwhile is either found
  // here, or its Free() sees the flag.
  notify_ = true;
  std::optional<ArenaBlock> block = AllocateLocked(bytes);
  if (block.has_value()) notify_ = false;
  return block;
}

std::optional<ArenaBlock> Arena::AllocateLocked(size_t bytes) {
  // The kept block must not split the free memory around it.
  FreeLocked(last_.exchange(0));
  const std::optional<size_t> offset = ranges_.Allocate(bytes);
  if (!offset.has_value()) return std::nullopt;
  return ArenaBlock(this, begin_ + *offset, bytes);
}

void Arena::FreeLocked(uint64_t block) {
  if (block != 0) ranges_.Free(OffsetOf(block), BytesOf(block));
}

size_t Arena::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return ranges_.used_bytes() - BytesOf(last_);
}

void Arena::Free(size_t offset, size_t bytes) {
  // The block freed now is more likely to be in the cache than the one before.
  const uint64_t before = last_.exchange(Packed(offset - begin_, bytes));
  if (before == 0 && !notify_) return;
  bool notify = false;
  {
    absl::MutexLock lock(&mu_);
    FreeLocked(before);
    if (notify_) {
      FreeLocked(last_.exchange(0));
      notify = notify_.exchange(false);
    }
  }
  // Outside the lock: the polling thread that wakes takes the lock next.
  if (notify) waker_->Wake();
}

}  // namespace refract::transport
