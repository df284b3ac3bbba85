#include "models/tables/id_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor.h"

namespace refract::models {
namespace {

// Four of five slots in use: few buckets are full then.
constexpr uint64_t kRowsPerBucket = 4;
// Ids between the prefetch of a bucket and its use.
constexpr size_t kFindAhead = 16;

}  // namespace

std::string NameOfIds(absl::string_view table) {
  return absl::StrCat(table, ".ids");
}

IdIndex::Bucket* IdIndex::BucketOf(int64_t id) const {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(MixId(id)) * num_buckets_;
  // (hash · n) / 2^64 maps the hash to [0, n) without a division, for any n.
  return buckets_ + static_cast<uint64_t>(product >> 64);
}

size_t IdIndex::MemoryFor(size_t rows) {
  return std::max<size_t>(1, (rows + kRowsPerBucket - 1) / kRowsPerBucket) *
         sizeof(Bucket);
}

absl::StatusOr<std::shared_ptr<const IdIndex>> IdIndex::Build(
    absl::Span<const int64_t> ids, const OwnIds* own) {
  // Rows are kept as uint32_t.
  if (ids.size() >= UINT32_MAX) {
    return absl::UnimplementedError(
        absl::StrCat(ids.size(), " ids; a table has at most ", UINT32_MAX - 1));
  }
  std::shared_ptr<IdIndex> index(new IdIndex);
  const size_t count =
      own == nullptr
          ? ids.size()
          : static_cast<size_t>(std::count_if(
                ids.begin(), ids.end(), [&](int64_t id) { return own->Has(id); }));
  index->num_buckets_ = MemoryFor(count) / sizeof(Bucket);
  REFRACT_ASSIGN_OR_RETURN(
      index->memory_,
      base::LargeMemory::Allocate(index->num_buckets_ * sizeof(Bucket)));
  // Zeros are empty buckets.
  index->buckets_ =
      reinterpret_cast<Bucket*>(index->memory_->bytes().data());
  for (size_t row = 0; row < ids.size(); ++row) {
    const int64_t id = ids[row];
    if (own != nullptr && !own->Has(id)) continue;
    // Buckets lie at random places, so each is a cache miss; the prefetch
    // overlaps the misses of 16 ids.
    if (row + kFindAhead < ids.size()) {
      __builtin_prefetch(index->BucketOf(ids[row + kFindAhead]), /*rw=*/1);
    }
    Bucket* bucket = index->BucketOf(id);
    // Linear probing over buckets. Find() ends at the first bucket that is not
    // full, because an insertion would have stopped there; buckets never lose
    // ids.
    while (true) {
      for (uint32_t s = 0; s < bucket->used; ++s) {
        if (bucket->ids[s] != id) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "id ", id, " is at position ", bucket->rows[s], " and again at ",
            row));
      }
      if (bucket->used < kSlots) break;
      bucket = index->Next(bucket);
    }
    bucket->ids[bucket->used] = id;
    bucket->rows[bucket->used] = static_cast<uint32_t>(row);
    ++bucket->used;
  }
  index->memory_->MakeReadOnly();
  return index;
}

absl::StatusOr<std::optional<absl::Span<const int64_t>>> IdsOf(
    const WeightStore& store, absl::string_view table) {
  const std::string name = NameOfIds(table);
  const auto ids = store.GetAsStored(name);
  if (absl::IsNotFound(ids.status())) return std::nullopt;
  REFRACT_RETURN_IF_ERROR(ids.status());
  REFRACT_ASSIGN_OR_RETURN(const WeightView view, store.GetAsStored(table));
  if (ids->dtype != base::DType::kInt64 || ids->sizes.size() != 1 ||
      view.sizes.empty() || ids->sizes[0] != view.sizes[0] ||
      !ids->is_contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", table, "': its ids '", name, "' are ",
        base::Name(ids->dtype), base::DimsToString(ids->sizes),
        ", not int64 of one id per row"));
  }
  return absl::Span<const int64_t>(
      reinterpret_cast<const int64_t*>(ids->data),
      static_cast<size_t>(ids->sizes[0]));
}

absl::StatusOr<std::shared_ptr<const IdIndex>> IdIndex::Of(
    const WeightStore& store, absl::string_view table,
    const TableShards* shards, size_t shard) {
  REFRACT_ASSIGN_OR_RETURN(const auto ids, IdsOf(store, table));
  if (!ids) return nullptr;
  std::optional<OwnIds> own;
  if (shards != nullptr) {
    // Every owner has row 0, the default row of unknown ids (OwnIds).
    own.emplace(*shards, shard, ids->empty() ? 0 : ids->front());
    const auto count = std::count_if(
        ids->begin(), ids->end(), [&](int64_t id) { return own->Has(id); });
    if (count != own->StoredRows(shards->rows(shard))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", table, "': by its ids, shard ", shard, " has ", count,
          " rows, and by the plan ", own->StoredRows(shards->rows(shard)),
          "; run refract partition --shards again"));
    }
  }
  auto index = Build(*ids, own ? &*own : nullptr);
  if (!index.ok()) {
    return base::Annotate(index.status(), absl::StrCat("table '", table, "'"));
  }
  return index;
}

int64_t IdIndex::Find(int64_t id) const {
  for (Bucket* bucket = BucketOf(id);; bucket = Next(bucket)) {
    for (uint32_t s = 0; s < bucket->used; ++s) {
      if (bucket->ids[s] == id) return bucket->rows[s];
    }
    // Never all are full: a fifth of the slots is empty.
    if (bucket->used < kSlots) return kNoRow;
  }
}

template <typename Id>
void IdIndex::FindAll(absl::Span<const Id> ids, int64_t* rows) const {
  for (size_t i = 0; i < std::min(kFindAhead, ids.size()); ++i) {
    __builtin_prefetch(BucketOf(ids[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kFindAhead < ids.size()) {
      __builtin_prefetch(BucketOf(ids[i + kFindAhead]));
    }
    rows[i] = Find(ids[i]);
  }
}

void IdIndex::Find(absl::Span<const int64_t> ids, int64_t* rows) const {
  FindAll(ids, rows);
}

void IdIndex::Find(absl::Span<const int32_t> ids, int64_t* rows) const {
  FindAll(ids, rows);
}

}  // namespace refract::models
