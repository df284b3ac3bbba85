#ifndef REFRACT_MODELS_TABLES_ID_INDEX_H_
#define REFRACT_MODELS_TABLES_ID_INDEX_H_

// From ids of 64 bits, such as hashes, to the rows of a table.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/memory/large_memory.h"
#include "models/repository/table_shards.h"
#include "models/repository/weights.h"

namespace refract::models {

// Name of the weight that holds the ids of the table `table`: int64 [rows], one
// id per row, in the order of the rows.
std::string NameOfIds(absl::string_view table);
// The ids of the table `table`, which live as long as `store`; nullopt if its
// ids are row numbers. InvalidArgument: they are not int64 of one id per row.
absl::StatusOr<std::optional<absl::Span<const int64_t>>> IdsOf(
    const WeightStore& store, absl::string_view table);

// The finaliser of MurmurHash3: ids may be dense, or hashes already.
inline uint64_t MixId(int64_t id) {
  auto x = static_cast<uint64_t>(id);
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdU;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53U;
  return x ^ (x >> 33);
}

// A hash table of buckets of one cache line, so that most ids cost one read of
// memory. Takes 16 bytes per row. Immutable, thread-safe.
class IdIndex {
 public:
  static constexpr int64_t kNoRow = -1;

  // Bytes of memory of an index of `rows` rows.
  static size_t MemoryFor(size_t rows);
  // ids[i] is the id of row i. `own`: ids of other shards are left out; null:
  // the index has all ids. InvalidArgument: an id that is there twice (names
  // the id and both positions). Unimplemented: more than 2^32 - 2 rows.
  static absl::StatusOr<std::shared_ptr<const IdIndex>> Build(
      absl::Span<const int64_t> ids, const OwnIds* own = nullptr);
  // The index of the table `table` of `store`; null if its ids are row numbers.
  // `shards`: the table is divided by ids, and the index has the ids of
  // `shard`. InvalidArgument names the table.
  static absl::StatusOr<std::shared_ptr<const IdIndex>> Of(
      const WeightStore& store, absl::string_view table,
      const TableShards* shards = nullptr, size_t shard = 0);

  // rows[i] becomes the row of ids[i], or kNoRow. `rows` has as many elements
  // as `ids`.
  void Find(absl::Span<const int64_t> ids, int64_t* rows) const;
  void Find(absl::Span<const int32_t> ids, int64_t* rows) const;
  int64_t Find(int64_t id) const;

  size_t memory_bytes() const { return memory_->bytes().size(); }

 private:
  static constexpr uint32_t kSlots = 5;
  struct alignas(64) Bucket {
    int64_t ids[kSlots];
    uint32_t rows[kSlots];
    uint32_t used;  // kSlots: ids that belong here may be in the next bucket
  };
  static_assert(sizeof(Bucket) == 64);

  IdIndex() = default;
  Bucket* BucketOf(int64_t id) const;
  Bucket* Next(Bucket* bucket) const {
    return bucket + 1 == buckets_ + num_buckets_ ? buckets_ : bucket + 1;
  }
  template <typename Id>
  void FindAll(absl::Span<const Id> ids, int64_t* rows) const;

  std::unique_ptr<base::LargeMemory> memory_;
  Bucket* buckets_ = nullptr;
  uint64_t num_buckets_ = 0;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLES_ID_INDEX_H_
