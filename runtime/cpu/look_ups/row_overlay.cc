#include "runtime/cpu/look_ups/row_overlay.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace refract::runtime::cpu {
namespace {

constexpr size_t kFirstCapacity = 1024;
// Memory is taken in blocks of at least this.
constexpr size_t kBlockBytes = size_t{1} << 20;

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// Has the kernel back a large block with huge pages as far as it has them: rows
// are written and read at random places, and a page fault for each 4 KiB costs
// as much as the copies of its rows.
void AskForHugePages(std::byte* block, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(block);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  if (first >= last) return;
  // Advice: an error changes nothing.
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// Spreads neighbouring row numbers (Fibonacci hashing: 2^64 divided by the
// golden ratio; the high bits of the product are the mixed ones).
size_t Hash(uint64_t row) {
  const uint64_t product = row * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(product ^ (product >> 32));
}

}  // namespace

RowOverlay::RowOverlay(int64_t rows, size_t row_bytes, int64_t row_bound)
    : rows_(rows),
      row_bound_(std::max(rows, row_bound)),
      row_bytes_(row_bytes),
      // Floating-point elements of rows are read in place.
      version_bytes_(sizeof(Version) + (row_bytes + 15) / 16 * 16) {}

RowOverlay::~RowOverlay() = default;

RowOverlay::Entry& RowOverlay::Locate(const Index& index, uint64_t row) {
  // Linear probing. At most half of the entries are used, so that an empty one
  // ends every search. Entries are never removed.
  size_t at = Hash(row) & index.mask;
  for (;;) {
    Entry& entry = index.entries[at];
    // Pairs with the release in PutVersion(): a reader that sees the row sees
    // its version, too.
    const uint64_t found = entry.row.load(std::memory_order_acquire);
    if (found == row || found == kNoRow) return entry;
    at = (at + 1) & index.mask;
  }
}

RowOverlay::Version* RowOverlay::FindVersion(uint64_t row,
                                             uint64_t state) const {
  const Index* const index = index_.load(std::memory_order_acquire);
  if (index == nullptr) return nullptr;
  const Entry& entry = Locate(*index, row);
  Version* version = entry.newest.load(std::memory_order_acquire);
  // A reader meets at most the batches that were published since it began.
  while (version != nullptr && version->state > state) {
    version = version->older.load(std::memory_order_acquire);
  }
  return version;
}

bool RowOverlay::Exists(uint64_t row, uint64_t state) const {
  if (HasChanged(row)) {
    if (const Version* const version = FindVersion(row, state)) {
      return !version->removed;
    }
  }
  return row < static_cast<uint64_t>(rows_);
}

template <typename Id>
void RowOverlay::FindRows(absl::Span<const Id> ids, uint64_t state,
                          int64_t* rows) const {
  ids_->Find(ids, rows);
  if (!any()) return;
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t& row = rows[i];
    if (row == models::IdIndex::kNoRow && new_ids_ != nullptr) {
      row = new_ids_->Find(ids[i]);
    }
    if (row != models::IdIndex::kNoRow &&
        !Exists(static_cast<uint64_t>(row), state)) {
      row = models::IdIndex::kNoRow;
    }
  }
}

template void RowOverlay::FindRows(absl::Span<const int32_t> ids,
                                   uint64_t state, int64_t* rows) const;
template void RowOverlay::FindRows(absl::Span<const int64_t> ids,
                                   uint64_t state, int64_t* rows) const;

void RowOverlay::AddFree(Version* version) {
  version->older.store(free_, std::memory_order_relaxed);
  free_ = version;
  ++num_free_;
}

void RowOverlay::Reserve(size_t count, uint64_t state) {
  if (bit_memory_ == nullptr) {
    // From the system's zero pages: only words of changed rows take memory.
    const size_t words = (static_cast<size_t>(row_bound_) + 63) / 64;
    auto* const bits = static_cast<std::atomic<uint64_t>*>(
        std::calloc(std::max<size_t>(words, 1), sizeof(std::atomic<uint64_t>)));
    if (bits == nullptr) throw std::bad_alloc();
    bit_memory_.reset(bits);
  }
  if (current_ == nullptr) {
    current_ = std::make_unique<Index>(kFirstCapacity);
    memory_.fetch_add(kFirstCapacity * sizeof(Entry),
                      std::memory_order_relaxed);
    index_.store(current_.get(), std::memory_order_release);
  }
  superseded_.reserve(superseded_.size() + count);
  if (num_free_ < count) {
    const size_t more =
        std::max(count - num_free_, kBlockBytes / version_bytes_ + 1);
    blocks_.reserve(blocks_.size() + 1);
    blocks_.emplace_back(new std::byte[more * version_bytes_]);
    AskForHugePages(blocks_.back().get(), more * version_bytes_);
    // Backwards, so that the list goes up through the block.
    for (size_t i = more; i-- > 0;) {
      AddFree(new (blocks_.back().get() + i * version_bytes_) Version{});
    }
    memory_.fetch_add(more * version_bytes_, std::memory_order_relaxed);
  }
  size_t capacity = current_->mask + 1;
  const size_t used = changed_.load(std::memory_order_relaxed);
  // Grown before the changes, so that Put() never allocates.
  while (capacity < 2 * (used + count)) capacity *= 2;
  if (capacity == current_->mask + 1) return;
  auto larger = std::make_unique<Index>(capacity);
  old_indexes_.emplace_back();  // may throw; nothing has changed yet
  for (size_t i = 0; i <= current_->mask; ++i) {
    const Entry& entry = current_->entries[i];
    const uint64_t row = entry.row.load(std::memory_order_relaxed);
    if (row == kNoRow) continue;
    Entry& copy = Locate(*larger, row);
    copy.newest.store(entry.newest.load(std::memory_order_relaxed),
                      std::memory_order_relaxed);
    copy.row.store(row, std::memory_order_relaxed);
  }
  memory_.fetch_add(capacity * sizeof(Entry), std::memory_order_relaxed);
  // Readers that have the smaller index still find all rows of their states:
  // only rows of `state` and later states are put into the larger index alone.
  index_.store(larger.get(), std::memory_order_release);
  current_.swap(larger);
  old_indexes_.back() = {state, std::move(larger)};
}

void RowOverlay::Put(uint64_t row, uint64_t state,
                     absl::Span<const std::byte> bytes) {
  PutVersion(row, state, /*removed=*/false, bytes);
}

void RowOverlay::Remove(uint64_t row, uint64_t state) {
  PutVersion(row, state, /*removed=*/true, {});
}

void RowOverlay::PutVersion(uint64_t row, uint64_t state, bool removed,
                            absl::Span<const std::byte> bytes) {
  Version* const version = free_;
  free_ = version->older.load(std::memory_order_relaxed);
  --num_free_;
  version->state = state;
  version->removed = removed;
  if (bytes.empty()) {
    std::memset(version->bytes(), 0, row_bytes_);
  } else {
    std::memcpy(version->bytes(), bytes.data(), row_bytes_);
  }
  Entry& entry = Locate(*current_, row);
  Version* const older = entry.newest.load(std::memory_order_relaxed);
  version->older.store(older, std::memory_order_relaxed);
  if (older != nullptr) superseded_.push_back({state, version, older});
  // The version is complete before readers can reach it: first its bytes, then
  // the entry, then the row's bit, which sends readers to the index.
  entry.newest.store(version, std::memory_order_release);
  if (entry.row.load(std::memory_order_relaxed) == kNoRow) {
    entry.row.store(row, std::memory_order_release);
    changed_.fetch_add(1, std::memory_order_relaxed);
  }
  std::atomic<uint64_t>& word = bit_memory_[row / 64];
  word.store(word.load(std::memory_order_relaxed) | uint64_t{1} << (row % 64),
             std::memory_order_release);
  if (bits_.load(std::memory_order_relaxed) == nullptr) {
    bits_.store(bit_memory_.get(), std::memory_order_release);
  }
}

void RowOverlay::Collect(uint64_t oldest) {
  // In the order of states: a row's older versions come first.
  for (; collected_ < superseded_.size() &&
         superseded_[collected_].state <= oldest;
       ++collected_) {
    const Superseded& next = superseded_[collected_];
    // Readers of `oldest` and later stop at `newer` and never follow the link.
    next.newer->older.store(nullptr, std::memory_order_release);
    AddFree(next.version);
  }
  // Erased only when more than half is collected, so that moving the rest costs
  // a constant time per change.
  if (collected_ > superseded_.size() / 2) {
    superseded_.erase(superseded_.begin(),
                      superseded_.begin() + static_cast<ptrdiff_t>(collected_));
    collected_ = 0;
  }
  while (!old_indexes_.empty() && old_indexes_.front().state <= oldest) {
    memory_.fetch_sub((old_indexes_.front().index->mask + 1) * sizeof(Entry),
                      std::memory_order_relaxed);
    old_indexes_.pop_front();
  }
}

}  // namespace refract::runtime::cpu
