// Two passes over the ids of a request. The first turns ids into addresses and
// checks them. The second reads rows in the order of the addresses, so that one
// prefetch distance spans the borders of tables.

#include "runtime/cpu/look_ups/look_up.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/container/fixed_array.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/gather/gather_kernels.h"
#include "runtime/cpu/look_ups/sharded_look_ups.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

// Look-ups whose addresses are held at once.
constexpr size_t kLookUpsAtOnce = 64;

// Rows of which only the ends are prefetched, unless LongestFarRow() prefetches
// them whole (figures: docs/measurements/look_ups.md).
constexpr int64_t kShortRowBytes = 512;
// Longest rows that are prefetched in groups: a group of longer rows fills the
// buffers of the prefetches, and the loop waits for them.
constexpr int64_t kGroupedRowBytes = 320;
// Rows, and bytes of each, that are prefetched before the loops.
constexpr int64_t kFirstRows = 32;
constexpr int64_t kFirstRowBytes = 512;

// A row of zeros in every format: scale and bias are zero as well.
constexpr int64_t kZeroRowBytes = 1 << 16;
alignas(64) const std::byte zero_row[kZeroRowBytes] = {};

static_assert(static_cast<int>(models::RowElement::kInt2) + 1 ==
              kNumRowElements);

bool HasPadding(const LookUp& look_up) {
  if (look_up.padding_id < 0) return false;
  const int64_t count = look_up.ids->num_elements();
  for (int64_t i = 0; i < count; ++i) {
    if (IntAt(*look_up.ids, i) == look_up.padding_id) return true;
  }
  return false;
}

// The loops of the stream; null for look-ups that bag_reduce.cc does: results
// of other types than float32, rows of odd sizes, bags with padding in them.
GatherFunction FunctionOf(const LookUp& look_up) {
  if (look_up.table.row_bytes > kZeroRowBytes || look_up.table.row_bytes == 0) {
    return nullptr;
  }
  if (look_up.copies) return CopyGatherSet().copy;
  if (look_up.dtype != base::DType::kFloat32 || HasPadding(look_up)) {
    return nullptr;
  }
  const models::RowLayout* const layout = look_up.table.layout;
  const auto element =
      layout == nullptr ? models::RowElement::kFloat32 : layout->format.element;
  const GatherSet* const set = GatherSetFor(look_up.dim);
  return set == nullptr ? nullptr : set->pool[static_cast<int>(element)];
}

// Addresses of the rows of the first `count` ids, and whether all of these are
// inside the table. Addresses of wrong ids are not used.
template <typename Id>
bool Locate(const LookUp& look_up, absl::Span<const Id> ids, int64_t count,
            const std::byte** to) {
  const auto rows = static_cast<uint64_t>(look_up.table.rows);
  const auto table = reinterpret_cast<uintptr_t>(look_up.table.data);
  const size_t row_bytes = look_up.table.row_bytes;
  const Id* const from = ids.data();
  uint64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    // As unsigned numbers, negative ids are larger than any row number.
    const auto id = static_cast<uint64_t>(static_cast<int64_t>(from[i]));
    outside |= static_cast<uint64_t>(id >= rows);
    *to++ = reinterpret_cast<const std::byte*>(table + id * row_bytes);
  }
  return outside == 0;
}

// As Locate(), where the id policy may replace ids.
void LocateReplacing(const LookUp& look_up, int64_t count,
                     const std::byte** to) {
  for (int64_t i = 0; i < count; ++i, ++to) {
    const int64_t id = IntAt(*look_up.ids, i);
    if (id >= 0 && id < look_up.table.rows) continue;
    *to = look_up.use->policy == models::IdPolicy::kZeroRow
              ? zero_row
              : look_up.table.RowAt(0);
  }
}

// Addresses of rows that have changed. Wrong ids have been found before.
template <typename Id>
void LocateChanged(const LookUp& look_up, absl::Span<const Id> ids,
                   int64_t count, const std::byte** to) {
  const TableRows& table = look_up.table;
  const auto rows = static_cast<uint64_t>(table.rows);
  for (int64_t i = 0; i < count; ++i, ++to) {
    const auto id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    if (id >= rows) continue;
    if (const std::byte* const row = table.overlay->Find(id, table.at)) {
      *to = row;
    }
  }
}

// The rows of a look-up's ids, in their order, and ids that count up: a table
// for loops that compute addresses themselves. Padding stays padding.
absl::Status GatherRows(const LookUp& look_up, BagReduction& reduction,
                        RunStats& stats) {
  const TableRows& table = look_up.table;
  const int64_t count = look_up.ids->num_elements();
  const auto n = static_cast<size_t>(count);
  auto* const ids = reinterpret_cast<int64_t*>(ThreadScratch(
      ScratchUse::kTable, n * (table.row_bytes + sizeof(int64_t))));
  auto* const rows = reinterpret_cast<std::byte*>(ids + n);
  const bool fetched = table.source.source != nullptr;
  if (fetched) {
    auto* const numbers = reinterpret_cast<uint64_t*>(ids);
    const int64_t stored =
        table.overlay == nullptr ? table.rows : table.overlay->rows();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = IntAt(*look_up.ids, i);
      // An id without a row in the source fetches row 0, which is replaced below.
      numbers[i] = id >= 0 && id < stored ? static_cast<uint64_t>(id) : 0;
    }
    const WantedRows wanted = {table.source.table, {numbers, n}, rows};
    REFRACT_RETURN_IF_ERROR(table.source.source->Fetch({&wanted, 1}, stats));
  }
  const auto copy = [&](uint64_t row, std::byte* to) {
    const std::byte* const changed =
        table.changed() ? table.overlay->Find(row, table.at) : nullptr;
    if (changed != nullptr) {
      std::copy_n(changed, table.row_bytes, to);
    } else if (!fetched) {
      std::copy_n(table.data + row * table.row_bytes, table.row_bytes, to);
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = IntAt(*look_up.ids, i);
    std::byte* const to = rows + static_cast<size_t>(i) * table.row_bytes;
    ids[i] = i;
    if (look_up.padding_id >= 0 && id == look_up.padding_id) {
      ids[i] = count;
    } else if (id >= 0 && id < table.rows) {
      copy(static_cast<uint64_t>(id), to);
    } else if (look_up.use->policy == models::IdPolicy::kZeroRow) {
      std::fill_n(to, table.row_bytes, std::byte{0});
    } else {
      copy(0, to);
    }
  }
  reduction.table = rows;
  reduction.rows = count;
  reduction.ids.dtype = base::DType::kInt64;
  reduction.ids.data = reinterpret_cast<const std::byte*>(ids);
  reduction.ids.bytes = n * sizeof(int64_t);
  reduction.padding_id = look_up.padding_id >= 0 ? count : -1;
  reduction.replace = models::IdPolicy::kError;
  return absl::OkStatus();
}

absl::Status RunApart(const LookUp& look_up, bool replaces, RunStats& stats) {
  BagReduction reduction;
  reduction.mode = look_up.mode;
  reduction.table = look_up.table.data;
  reduction.table_dtype = look_up.dtype;
  if (look_up.table.layout != nullptr) reduction.layout = *look_up.table.layout;
  reduction.rows = look_up.table.rows;
  reduction.dim = look_up.dim;
  reduction.ids = *look_up.ids;
  if (look_up.offsets != nullptr) reduction.offsets = *look_up.offsets;
  reduction.num_bags = look_up.num_bags;
  reduction.include_last_offset = look_up.include_last_offset;
  reduction.weights = look_up.weights;
  reduction.padding_id = look_up.padding_id;
  if (replaces) reduction.replace = look_up.use->policy;
  reduction.out_stride =
      look_up.out_stride / static_cast<int64_t>(base::SizeOf(look_up.dtype));
  if (look_up.table.changed() || look_up.table.source.source != nullptr) {
    REFRACT_RETURN_IF_ERROR(GatherRows(look_up, reduction, stats));
  }
  ReduceBags(reduction, look_up.out);
  return absl::OkStatus();
}

// Rows whose bytes do not fit the stream's loops: huge, or without bytes.
void CopyApart(const LookUp& look_up) {
  std::byte* out = look_up.out;
  for (int64_t i = 0; i < look_up.num_bags; ++i, out += look_up.out_stride) {
    const int64_t id = IntAt(*look_up.ids, i);
    const bool inside = id >= 0 && id < look_up.table.rows;
    const size_t bytes = look_up.table.row_bytes;
    if (!inside && look_up.use->policy == models::IdPolicy::kZeroRow) {
      std::fill_n(out, bytes, std::byte{0});
    } else if (bytes > 0) {
      std::copy_n(look_up.table.RowAt(inside ? static_cast<uint64_t>(id) : 0),
                  bytes, out);
    }
  }
}

// A look-up in the stream.
struct Stream {
  explicit Stream(const LookUp& of)
      : look_up(of),
        function(of.out == nullptr ? nullptr : FunctionOf(of)),
        num_ids(of.ids->num_elements()),
        num_offsets(of.offsets == nullptr ? 0 : of.offsets->num_elements()) {}

  // Position behind the last id of a bag.
  int64_t EndOfIds() const {
    if (look_up.offsets == nullptr) return look_up.num_bags;
    return look_up.num_bags < num_offsets
               ? IntAt(*look_up.offsets, look_up.num_bags)
               : num_ids;
  }
  bool empty() const { return function == nullptr || look_up.num_bags == 0; }

  const LookUp& look_up;
  const GatherFunction function;  // null: not in the stream
  const int64_t num_ids;
  const int64_t num_offsets;
  bool replaces = false;
};

// `rows`: the addresses of the look-up's ids.
void RunGathered(const Stream& stream, const std::byte* const* rows) {
  const LookUp& look_up = stream.look_up;
  GatheredBags bags;
  bags.rows = rows;
  bags.num_ids = stream.num_ids;
  bags.num_bags = look_up.num_bags;
  bags.weights = reinterpret_cast<const float*>(look_up.weights);
  if (look_up.offsets != nullptr) {
    const std::byte* const offsets = look_up.offsets->data;
    if (look_up.offsets->dtype == base::DType::kInt64) {
      bags.offsets64 = reinterpret_cast<const int64_t*>(offsets);
    } else {
      bags.offsets32 = reinterpret_cast<const int32_t*>(offsets);
    }
    bags.include_last_offset = look_up.include_last_offset;
  }
  bags.mode = static_cast<GatherMode>(look_up.mode);
  bags.dim = look_up.dim;
  bags.row_bytes = static_cast<int64_t>(look_up.table.row_bytes);
  bags.prefetch_far = bags.row_bytes <= LongestFarRow();
  bags.prefetch_ends = bags.row_bytes <= kShortRowBytes;
  if (const models::RowLayout* layout = look_up.table.layout) {
    bags.payload = layout->payload;
    bags.parameters = layout->parameters;
    bags.half_parameters =
        layout->format.parameter_dtype == base::DType::kFloat16;
  }
  // Sums of unquantised rows take so few instructions a row that prefetches of
  // single rows already follow each other closely.
  const bool many_instructions = stream.EndOfIds() <= look_up.num_bags ||
                                 (look_up.table.layout != nullptr &&
                                  look_up.table.layout->format.is_quantised());
  bags.prefetch_groups =
      many_instructions && bags.row_bytes <= kGroupedRowBytes;
  bags.out = look_up.out;
  bags.out_stride = look_up.out_stride;
  stream.function(bags);
}

// Rows of the stream that come from sources.
class Fetching {
 public:
  // Notes those of `count` addresses that are places in a table with a source.
  void Add(size_t look_up, const TableRows& table, const std::byte** addresses,
           int64_t count) {
    any_ = true;  // first: memory may run out below
    std::vector<uint64_t>& rows = rows_[look_up];
    std::vector<const std::byte**>& places = places_[look_up];
    const auto begin = reinterpret_cast<uintptr_t>(table.data);
    // Rows of new ids lie in the overlay.
    const auto stored = static_cast<uint64_t>(
        table.overlay == nullptr ? table.rows : table.overlay->rows());
    const uint64_t bytes = stored * table.row_bytes;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t at = reinterpret_cast<uintptr_t>(addresses[i]) - begin;
      if (at >= bytes) continue;  // changed, or zeros
      rows.push_back(at / table.row_bytes);
      places.push_back(addresses + i);
    }
  }

  // Fetches the noted rows, one call per source, and moves the addresses.
  absl::Status Run(absl::Span<const LookUp> look_ups, RunStats& stats) {
    if (!any_) return absl::OkStatus();
    size_t total = 0;
    for (size_t i = 0; i < look_ups.size(); ++i) {
      total += rows_[i].size() * look_ups[i].table.row_bytes;
    }
    auto* to = reinterpret_cast<std::byte*>(
        ThreadScratch(ScratchUse::kFetched, total));
    std::array<bool, kLookUpsAtOnce> done = {};
    for (size_t first = 0; first < look_ups.size(); ++first) {
      if (rows_[first].empty() || done[first]) continue;
      const RowSource* const source = look_ups[first].table.source.source;
      std::vector<WantedRows>& wanted = wanted_;
      wanted.clear();
      for (size_t i = first; i < look_ups.size(); ++i) {
        const TableRows& table = look_ups[i].table;
        if (rows_[i].empty() || table.source.source != source) continue;
        done[i] = true;
        wanted.push_back({table.source.table, rows_[i], to});
        for (const std::byte** const place : places_[i]) {
          *place = to;
          to += table.row_bytes;
        }
      }
      REFRACT_RETURN_IF_ERROR(source->Fetch(wanted, stats));
    }
    return absl::OkStatus();
  }

  void Clear() {
    if (!any_) return;
    for (auto& rows : rows_) rows.clear();
    for (auto& places : places_) places.clear();
    any_ = false;
  }

 private:
  std::array<std::vector<uint64_t>, kLookUpsAtOnce> rows_;
  std::array<std::vector<const std::byte**>, kLookUpsAtOnce> places_;
  std::vector<WantedRows> wanted_;
  bool any_ = false;
};

// The thread's own, which keeps its memory: a warm thread allocates nothing.
Fetching& ThreadFetching() {
  static thread_local Fetching fetching;
  fetching.Clear();
  return fetching;
}

absl::Status RunSome(absl::Span<const LookUp> look_ups, RunStats& stats) {
  absl::FixedArray<Stream, kLookUpsAtOnce> streams(look_ups.begin(),
                                                   look_ups.end());
  int64_t total = 0;
  for (const Stream& stream : streams) total += stream.num_ids;
  const auto** const addresses =
      reinterpret_cast<const std::byte**>(ThreadScratch(
          ScratchUse::kKernel,
          static_cast<size_t>(total + kGatherPast) * sizeof(const std::byte*)));
  for (Stream& stream : streams) {
    // Look-ups outside the stream are checked here, others by Locate().
    // Locate() sees only ids of bags, so that ids behind the last bag are
    // checked here as well, as in LibTorch.
    const LookUp& look_up = stream.look_up;
    const bool apart = stream.function == nullptr || look_up.num_bags == 0 ||
                       stream.EndOfIds() < stream.num_ids;
    if (!apart) continue;
    REFRACT_ASSIGN_OR_RETURN(
        const int64_t outside,
        look_up.use->Check(*look_up.ids, look_up.table.rows, stats,
                           look_up.given_ids));
    stream.replaces = outside > 0;
  }
  Fetching& fetching = ThreadFetching();
  const std::byte** to = addresses;
  for (size_t i = 0; i < streams.size(); ++i) {
    Stream& stream = streams[i];
    if (stream.empty()) continue;
    const LookUp& look_up = stream.look_up;
    const bool wide = look_up.ids->dtype == base::DType::kInt64;
    const int64_t count = stream.EndOfIds();
    const bool inside =
        wide ? Locate(look_up, look_up.ids->as<int64_t>(), count, to)
             : Locate(look_up, look_up.ids->as<int32_t>(), count, to);
    if (!inside) [[unlikely]] {
      if (!stream.replaces) {
        REFRACT_RETURN_IF_ERROR(look_up.use
                                    ->Check(*look_up.ids, look_up.table.rows,
                                            stats, look_up.given_ids)
                                    .status());
        stream.replaces = true;
      }
      LocateReplacing(look_up, count, to);
    }
    if (look_up.table.changed()) {
      wide ? LocateChanged(look_up, look_up.ids->as<int64_t>(), count, to)
           : LocateChanged(look_up, look_up.ids->as<int32_t>(), count, to);
    }
    if (look_up.table.source.source != nullptr) {
      fetching.Add(i, look_up.table, to, count);
    }
    to += count;
  }
  REFRACT_RETURN_IF_ERROR(fetching.Run(look_ups, stats));
  // The loops prefetch past the last row.
  std::fill_n(to, kGatherPast, zero_row);
  to = addresses;
  for (const Stream& stream : streams) {
    if (stream.empty()) continue;
    RunGathered(stream, to);
    to += stream.EndOfIds();
  }
  for (const Stream& stream : streams) {
    const LookUp& look_up = stream.look_up;
    if (stream.function != nullptr || look_up.out == nullptr ||
        look_up.num_bags == 0) {
      continue;
    }
    if (look_up.copies) {
      CopyApart(look_up);
    } else {
      REFRACT_RETURN_IF_ERROR(RunApart(look_up, stream.replaces, stats));
    }
  }
  return absl::OkStatus();
}

// Bags leave out the padding row's id also in states that have removed the row:
// padding is no look-up. `rows`: of the request's ids, as RowOverlay::FindRows().
void KeepPadding(const LookUp& look_up, int64_t* rows) {
  if (look_up.padding_id < 0) return;
  const int64_t count = look_up.ids->num_elements();
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] != models::IdIndex::kNoRow) continue;
    const int64_t row = look_up.table.ids->Find(IntAt(*look_up.ids, i));
    if (row == look_up.padding_id) rows[i] = row;
  }
}

// Look-ups whose ids are row numbers: the request's, or found in the index.
class WithRowNumbers {
 public:
  // Valid until this thread uses ScratchUse::kIds again.
  explicit WithRowNumbers(absl::Span<const LookUp> look_ups)
      : look_ups_(look_ups) {
    const auto needs = [](const LookUp& look_up) {
      // The rows of a divided table's ids are known to their owners alone.
      return look_up.table.ids != nullptr && look_up.given_ids == nullptr &&
             look_up.table.sharded == nullptr;
    };
    size_t total = 0;
    for (const LookUp& look_up : look_ups) {
      if (!needs(look_up)) continue;
      total += static_cast<size_t>(look_up.ids->num_elements());
    }
    if (std::none_of(look_ups.begin(), look_ups.end(), needs)) return;
    auto* rows = reinterpret_cast<int64_t*>(
        ThreadScratch(ScratchUse::kIds, total * sizeof(int64_t)));
    copies_.assign(look_ups.begin(), look_ups.end());
    views_.resize(look_ups.size());
    int64_t prefetched = 0;
    for (size_t i = 0; i < look_ups.size(); ++i) {
      if (!needs(look_ups[i])) continue;
      const base::TensorView& given = *look_ups[i].ids;
      const TableRows& table = look_ups[i].table;
      given.dtype == base::DType::kInt64
          ? table.overlay->FindRows(given.as<int64_t>(), table.at, rows)
          : table.overlay->FindRows(given.as<int32_t>(), table.at, rows);
      views_[i] = {base::DType::kInt64, given.dims,
                   reinterpret_cast<const std::byte*>(rows),
                   static_cast<size_t>(given.num_elements()) * sizeof(*rows)};
      copies_[i].ids = &views_[i];
      copies_[i].given_ids = &given;
      copies_[i].table.ids = nullptr;
      // The index of the next table is searched meanwhile.
      prefetched = PrefetchFirst(copies_[i], prefetched);
      if (table.changed()) {
        copies_[i].table.rows = table.overlay->row_bound();
        KeepPadding(look_ups[i], rows);
      }
      rows += given.num_elements();
    }
    look_ups_ = copies_;
  }

  absl::Span<const LookUp> look_ups() const { return look_ups_; }

 private:
  absl::Span<const LookUp> look_ups_;
  std::vector<LookUp> copies_;
  std::vector<base::TensorView> views_;
};

}  // namespace

absl::Status LookUpKernel::Run(const Operands& operands,
                               absl::Span<const KernelOutput> outputs,
                               RunStats& stats) const {
  LookUp look_up;
  REFRACT_RETURN_IF_ERROR(Describe(operands, look_up));
  PrefetchFirst(look_up, 0);
  look_up.out = outputs[0].data;
  look_up.out_stride =
      look_up.dim * static_cast<int64_t>(base::SizeOf(look_up.dtype));
  return RunLookUps({&look_up, 1}, stats);
}

int64_t PrefetchFirst(const LookUp& look_up, int64_t before) {
  const TableRows& table = look_up.table;
  // Rows from elsewhere, and rows that an index has to find.
  if (table.source.source != nullptr || table.ids != nullptr ||
      table.sharded != nullptr || table.row_bytes == 0) {
    return before;
  }
  const int64_t end =
      std::min(look_up.ids->num_elements(), kFirstRows - before);
  const auto bytes =
      std::min(static_cast<int64_t>(table.row_bytes), kFirstRowBytes);
  for (int64_t i = 0; i < end; ++i) {
    const int64_t id = IntAt(*look_up.ids, i);
    if (id < 0 || id >= table.rows) continue;  // not yet checked
    const std::byte* const row =
        table.data + static_cast<size_t>(id) * table.row_bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    __builtin_prefetch(row + bytes - 1);
  }
  return before + std::max<int64_t>(end, 0);
}

absl::Status CheckIds(absl::Span<const LookUp> look_ups) {
  RunStats uncounted;
  const WithRowNumbers numbered(look_ups);
  for (const LookUp& look_up : numbered.look_ups()) {
    const ShardedTable* const sharded = look_up.table.sharded;
    if (sharded != nullptr && sharded->rows.by_ids) continue;
    REFRACT_RETURN_IF_ERROR(look_up.use
                                ->Check(*look_up.ids, look_up.table.rows,
                                        uncounted, look_up.given_ids)
                                .status());
  }
  return absl::OkStatus();
}

absl::Status RunLookUps(absl::Span<const LookUp> look_ups, RunStats& stats) {
  for (const LookUp& look_up : look_ups) {
    if (look_up.table.sharded != nullptr) [[unlikely]] {
      return RunShardedLookUps(look_ups, stats);
    }
  }
  for (size_t first = 0; first < look_ups.size(); first += kLookUpsAtOnce) {
    const WithRowNumbers numbered(look_ups.subspan(first, kLookUpsAtOnce));
    REFRACT_RETURN_IF_ERROR(RunSome(numbered.look_ups(), stats));
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::cpu
