#include "models/tables/new_ids.h"

#include <utility>

namespace refract::models {
namespace {

constexpr size_t kFirstCapacity = 1024;

}  // namespace

size_t NewIds::CapacityFor(size_t ids) {
  size_t capacity = kFirstCapacity;
  while (capacity < 2 * ids) capacity *= 2;
  return capacity;
}

NewIds::Entry& NewIds::Locate(const Index& index, int64_t id) {
  size_t at = MixId(id) & index.mask;
  for (;;) {
    Entry& entry = index.entries[at];
    // An entry with a row has its id, too.
    if (entry.row.load(std::memory_order_acquire) == IdIndex::kNoRow ||
        entry.id.load(std::memory_order_relaxed) == id) {
      return entry;
    }
    at = (at + 1) & index.mask;
  }
}

int64_t NewIds::Find(int64_t id) const {
  const Index* const index = index_.load(std::memory_order_acquire);
  if (index == nullptr) return IdIndex::kNoRow;
  return Locate(*index, id).row.load(std::memory_order_acquire);
}

// Readers go on in the index that they have loaded. An index that was replaced
// at `state` is kept until no reader of an older state is left.
bool NewIds::Reserve(size_t count, uint64_t state, uint64_t oldest) {
  if (current_ == nullptr && count == 0) return true;
  while (!old_indexes_.empty() && old_indexes_.front().state <= oldest) {
    old_indexes_.pop_front();
  }
  // Row numbers given so far: at most 2 · most_, since numbers of ids that are
  // gone are given out again.
  const size_t rows = gone_since_.size();
  const auto rows_left = [&] {
    return free_rows_.size() + 2 * static_cast<size_t>(most_) - rows;
  };
  const size_t capacity = current_ == nullptr ? 0 : current_->mask + 1;
  // At most half of the entries is used, for short probes. Ids leave only with
  // a copy: an entry emptied in place would end the probes of readers too
  // early.
  if (2 * (used_ + count) > capacity || count > rows_left()) {
    // Ids that are gone in all states that readers have are left out.
    const auto gone = [&](int64_t row) {
      return GoneSince(row) != 0 && GoneSince(row) <= oldest;
    };
    size_t kept = 0;
    for (size_t i = 0; i < capacity; ++i) {
      const int64_t row =
          current_->entries[i].row.load(std::memory_order_relaxed);
      kept += row != IdIndex::kNoRow && !gone(row);
    }
    // A quarter more, so that copies are rare where ids come and go.
    auto next = std::make_unique<Index>(CapacityFor(kept + kept / 4 + count));
    free_rows_.reserve(free_rows_.size() + used_ - kept);
    // The empty entry is filled below, after the swap: allocations come first.
    if (current_ != nullptr) old_indexes_.emplace_back();
    // Nothing fails from here on.
    for (size_t i = 0; i < capacity; ++i) {
      const Entry& entry = current_->entries[i];
      const int64_t row = entry.row.load(std::memory_order_relaxed);
      if (row == IdIndex::kNoRow) continue;
      if (gone(row)) {
        free_rows_.push_back(row);
        continue;
      }
      const int64_t id = entry.id.load(std::memory_order_relaxed);
      Entry& copy = Locate(*next, id);
      copy.id.store(id, std::memory_order_relaxed);
      copy.row.store(row, std::memory_order_relaxed);
    }
    used_ = kept;
    index_.store(next.get(), std::memory_order_release);
    current_.swap(next);
    if (next != nullptr) old_indexes_.back() = {state, std::move(next)};
  }
  if (gone_since_.capacity() < rows + count) {
    gone_since_.reserve(rows + count + rows / 2);
  }
  size_t bytes = (current_->mask + 1) * sizeof(Entry) +
                 gone_since_.capacity() * sizeof(uint64_t) +
                 free_rows_.capacity() * sizeof(int64_t);
  for (const OldIndex& old : old_indexes_) {
    bytes += (old.index->mask + 1) * sizeof(Entry);
  }
  memory_.store(bytes, std::memory_order_relaxed);
  return count <= rows_left();
}

int64_t NewIds::Add(int64_t id) {
  Entry& entry = Locate(*current_, id);
  int64_t row = entry.row.load(std::memory_order_relaxed);
  if (row != IdIndex::kNoRow) {
    if (GoneSince(row) == 0) return row;
    GoneSince(row) = 0;
  } else {
    if (free_rows_.empty()) {
      row = first_row_ + static_cast<int64_t>(gone_since_.size());
      gone_since_.push_back(0);
    } else {
      row = free_rows_.back();
      free_rows_.pop_back();
      GoneSince(row) = 0;
    }
    entry.id.store(id, std::memory_order_relaxed);
    entry.row.store(row, std::memory_order_release);
    ++used_;
  }
  size_.fetch_add(1, std::memory_order_relaxed);
  return row;
}

void NewIds::Remove(int64_t id, uint64_t state) {
  const int64_t row = Locate(*current_, id).row.load(std::memory_order_relaxed);
  if (row == IdIndex::kNoRow || GoneSince(row) != 0) return;
  GoneSince(row) = state;
  size_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace refract::models
