#ifndef REFRACT_MODELS_TABLES_NEW_IDS_H_
#define REFRACT_MODELS_TABLES_NEW_IDS_H_

// Ids that deltas add to a table with ids, and their row numbers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "models/tables/id_index.h"

namespace refract::models {

// A hash table that grows while it is searched. Rows of new ids are numbered
// from the table's number of rows on. States are those of
// runtime::cpu::RowOverlay, which has the bytes of these rows and says in which
// states a row exists: a row number goes to another id only when no reader can
// see the row of the id before.
//
// Readers: any number of threads, without locks. Writer: one thread at a time.
class NewIds {
 public:
  // At most `most` ids. Row numbers lie in [first_row, first_row + 2 × most): a
  // delta that replaces all ids needs the rows of the old and of the new ids.
  // Takes no memory before the first Reserve().
  NewIds(int64_t first_row, int64_t most)
      : first_row_(first_row), most_(most) {}

  // Memory of an id besides its row, where there are many: up to five entries
  // of 16 bytes (see Reserve()), and three numbers, because `most` ids may take
  // twice as many rows.
  static constexpr size_t kBytesPerId = 5 * 16 + 3 * 8;

  int64_t most() const { return most_; }
  int64_t row_bound() const { return first_row_ + 2 * most_; }

  // Readers: the row number, or IdIndex::kNoRow. The row may not exist in the
  // reader's state.
  int64_t Find(int64_t id) const;

  // Any thread: number of ids after the last change.
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  size_t memory_bytes() const {
    return memory_.load(std::memory_order_relaxed);
  }

  // The writer.

  // Room for `count` ids that `state` adds, so that Add() and Remove() cannot
  // fail. No reader of a state older than `oldest` is left. False: readers may
  // see removed ids whose rows are needed. Throws std::bad_alloc.
  bool Reserve(size_t count, uint64_t state, uint64_t oldest);
  // The row number of an id that has no row in the table as imported.
  int64_t Add(int64_t id);
  // The id, which Find() knows, has no row from `state` on.
  void Remove(int64_t id, uint64_t state);

 private:
  // Open addressing, never more than half full. An entry with a row never
  // changes.
  struct Entry {
    std::atomic<int64_t> id{0};
    std::atomic<int64_t> row{IdIndex::kNoRow};  // stored last
  };
  struct Index {
    explicit Index(size_t capacity)
        : mask(capacity - 1), entries(new Entry[capacity]) {}
    size_t mask;
    std::unique_ptr<Entry[]> entries;
  };
  struct OldIndex {
    uint64_t state = 0;  // readers of older states may still search it
    std::unique_ptr<Index> index;
  };

  // Number of entries for `ids` ids.
  static size_t CapacityFor(size_t ids);
  // The id's entry, or the empty entry where it belongs.
  static Entry& Locate(const Index& index, int64_t id);
  // The state since which a row's id has been gone; 0: it is there.
  uint64_t& GoneSince(int64_t row) {
    return gone_since_[static_cast<size_t>(row - first_row_)];
  }

  const int64_t first_row_;
  const int64_t most_;
  std::atomic<const Index*> index_{nullptr};
  std::atomic<int64_t> size_{0};
  std::atomic<size_t> memory_{0};

  // The writer's.
  std::unique_ptr<Index> current_;
  std::deque<OldIndex> old_indexes_;
  size_t used_ = 0;                   // entries of current_ with a row
  std::vector<uint64_t> gone_since_;  // of all row numbers given so far
  std::vector<int64_t> free_rows_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLES_NEW_IDS_H_
