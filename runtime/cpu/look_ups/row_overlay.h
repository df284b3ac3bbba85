#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_OVERLAY_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_OVERLAY_H_

// Rows and ids of a table beside its rows in memory, as look-ups read them: rows
// that change while look-ups read the table; rows that come from elsewhere
// (row_source.h); ids that are no row numbers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "models/tables/id_index.h"
#include "models/tables/new_ids.h"
#include "runtime/cpu/look_ups/row_source.h"

namespace refract::runtime::cpu {

// A state is a number that grows with every batch of changes. A look-up names
// the state that it reads and finds each row as the newest batch up to that
// state left it, whatever is written meanwhile: rows are never overwritten
// while a reader can see them.
//
// Readers: any number of threads, without locks, and without writes to shared
// memory. Writer: one thread at a time.
class RowOverlay {
 public:
  static constexpr size_t kMostBesideRow = 96;

  // A table of `rows` rows of `row_bytes` bytes. Takes no memory until the
  // first change, then a bit per row of the table and, per changed row,
  // row_bytes + 48 to kMostBesideRow bytes. Rows [rows, row_bound) are those of
  // new ids: they exist only as changes. 0: there are none.
  RowOverlay(int64_t rows, size_t row_bytes, int64_t row_bound = 0);
  // Before the first look-up: where rows come from that do not lie in memory,
  // and the rows of ids that are no row numbers: of ids of the file, and of
  // ids that came later or null. They outlive the overlay.
  void SetSource(const TableSource& source) { source_ = source; }
  void SetIds(const models::IdIndex* ids,
              const models::NewIds* new_ids = nullptr) {
    ids_ = ids;
    new_ids_ = new_ids;
  }
  ~RowOverlay();
  RowOverlay(const RowOverlay&) = delete;
  RowOverlay& operator=(const RowOverlay&) = delete;

  const TableSource& source() const { return source_; }
  const models::IdIndex* ids() const { return ids_; }
  int64_t rows() const { return rows_; }  // of the table as imported
  int64_t row_bound() const { return row_bound_; }

  // Readers. `row` is inside the table.

  // False while no row has changed.
  bool any() const { return bits_.load(std::memory_order_acquire) != nullptr; }
  // The row's bytes in `state`; null: as in the table. Only after any(). Valid
  // until Collect() is told that no reader of `state` or older is left.
  const std::byte* Find(uint64_t row, uint64_t state) const {
    if (!HasChanged(row)) [[likely]] {
      return nullptr;
    }
    return FindChanged(row, state);
  }
  // With SetIds(): rows[i] becomes the row of ids[i] in `state`, or
  // IdIndex::kNoRow. `rows` has as many elements as `ids`.
  template <typename Id>
  void FindRows(absl::Span<const Id> ids, uint64_t state, int64_t* rows) const;

  // The writer.

  // Room for `count` changes of `state`, so that Put() cannot fail. Throws
  // std::bad_alloc and then has changed nothing.
  void Reserve(size_t count, uint64_t state);
  // The row's bytes from `state` on: newer than all states that readers use,
  // and not older than that of the last Put(). `bytes` are row_bytes; empty:
  // zeros.
  void Put(uint64_t row, uint64_t state, absl::Span<const std::byte> bytes);
  // From `state` on the row does not exist. As Put(), whose room it takes.
  void Remove(uint64_t row, uint64_t state);
  // Reuses memory of rows that only readers of states older than `oldest`
  // could see: there are none left.
  void Collect(uint64_t oldest);

  // Callable from any thread.
  size_t changed_rows() const {
    return changed_.load(std::memory_order_relaxed);
  }
  size_t memory_bytes() const {
    return memory_.load(std::memory_order_relaxed);
  }

 private:
  // A row as one state left it, followed by its bytes.
  struct Version {
    uint64_t state : 63;
    uint64_t removed : 1;
    std::atomic<Version*> older;

    std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }
  };
  static_assert(sizeof(Version) == 16);

  // Changed rows by number: open addressing, never more than half full.
  struct Entry {
    std::atomic<uint64_t> row{kNoRow};
    std::atomic<Version*> newest{nullptr};
  };
  struct Index {
    explicit Index(size_t capacity)
        : mask(capacity - 1), entries(new Entry[capacity]) {}
    size_t mask;
    std::unique_ptr<Entry[]> entries;
  };
  static constexpr uint64_t kNoRow = ~uint64_t{0};

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Superseded {
    uint64_t state;  // of `newer`
    Version* newer;  // whose `older` is `version`
    Version* version;
  };
  struct OldIndex {
    uint64_t state;  // readers of older states may still search it
    std::unique_ptr<Index> index;
  };

  bool HasChanged(uint64_t row) const {
    const uint64_t word = bits_.load(std::memory_order_relaxed)[row / 64].load(
        std::memory_order_relaxed);
    return (word >> (row % 64) & 1) != 0;
  }
  // The row as it is in `state`; null: as in the table.
  Version* FindVersion(uint64_t row, uint64_t state) const;
  // Whether the row is there in `state`: it has not been removed, and, beyond
  // the table's rows, has been put. Only after any().
  bool Exists(uint64_t row, uint64_t state) const;
  const std::byte* FindChanged(uint64_t row, uint64_t state) const {
    Version* const version = FindVersion(row, state);
    return version == nullptr ? nullptr : version->bytes();
  }
  void PutVersion(uint64_t row, uint64_t state, bool removed,
                  absl::Span<const std::byte> bytes);
  // The row's entry, or the empty one where it belongs.
  static Entry& Locate(const Index& index, uint64_t row);
  void AddFree(Version* version);

  const int64_t rows_;
  const int64_t row_bound_;
  const size_t row_bytes_;
  const size_t version_bytes_;

  // A bit per row: whether the row has ever changed. Most look-ups end here: the bits
  // of 10 million rows fit a cache of second level.
  std::atomic<std::atomic<uint64_t>*> bits_{nullptr};
  std::atomic<Index*> index_{nullptr};
  std::atomic<size_t> changed_{0};
  std::atomic<size_t> memory_{0};

  // The writer's.
  std::unique_ptr<std::atomic<uint64_t>[], Free> bit_memory_;
  std::unique_ptr<Index> current_;
  std::deque<OldIndex> old_indexes_;
  std::vector<Superseded> superseded_;  // by state, from collected_ on
  size_t collected_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  Version* free_ = nullptr;  // a list through `older`
  size_t num_free_ = 0;
  TableSource source_;
  const models::IdIndex* ids_ = nullptr;
  const models::NewIds* new_ids_ = nullptr;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_OVERLAY_H_
