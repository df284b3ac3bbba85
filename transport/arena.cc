#include "transport/arena.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "transport/wire.h"

namespace refract::transport {

RangeAllocator::RangeAllocator(size_t capacity, size_t align) : align_(align) {
  capacity -= capacity % align;
  if (capacity > 0) holes_.emplace(0, capacity);
}

std::optional<size_t> RangeAllocator::Allocate(size_t bytes) {
  // Refused before rounding up, which could wrap.
  if (bytes > (size_t{1} << 62)) return std::nullopt;
  bytes = AlignUp(std::max<size_t>(bytes, 1), align_);
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second < bytes) continue;
    const auto [offset, size] = *hole;
    holes_.erase(hole);
    if (size > bytes) holes_.emplace(offset + bytes, size - bytes);
    ranges_.emplace(offset, bytes);
    used_bytes_ += bytes;
    return offset;
  }
  return std::nullopt;
}

void RangeAllocator::Free(size_t offset) {
  const auto range = ranges_.find(offset);
  CHECK(range != ranges_.end()) << "free of offset " << offset;
  size_t begin = offset;
  size_t bytes = range->second;
  used_bytes_ -= bytes;
  ranges_.erase(range);
  auto after = holes_.lower_bound(begin);
  if (after != holes_.end() && after->first == begin + bytes) {
    bytes += after->second;
    after = holes_.erase(after);
  }
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  holes_.emplace(begin, bytes);
}

ArenaBlock& ArenaBlock::operator=(ArenaBlock&& other) noexcept {
  if (this != &other) {
    Reset();
    arena_ = std::move(other.arena_);
    offset_ = other.offset_;
  }
  return *this;
}

void ArenaBlock::Reset() {
  if (arena_ == nullptr) return;
  arena_->Free(offset_);
  arena_.reset();
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
  absl::MutexLock lock(&mu_);
  const std::optional<size_t> offset = ranges_.Allocate(bytes);
  if (!offset.has_value()) return std::nullopt;
  return ArenaBlock(shared_from_this(), begin_ + *offset);
}

std::optional<ArenaBlock> Arena::AllocateOrNotify(size_t bytes) {
  absl::MutexLock lock(&mu_);
  const std::optional<size_t> offset = ranges_.Allocate(bytes);
  notify_ = !offset.has_value();
  if (!offset.has_value()) return std::nullopt;
  return ArenaBlock(shared_from_this(), begin_ + *offset);
}

size_t Arena::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return ranges_.used_bytes();
}

void Arena::Free(size_t offset) {
  bool notify;
  {
    absl::MutexLock lock(&mu_);
    ranges_.Free(offset - begin_);
    notify = std::exchange(notify_, false);
  }
  if (notify) waker_->Wake();
}

}  // namespace refract::transport
