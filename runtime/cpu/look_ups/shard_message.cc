#include "runtime/cpu/look_ups/shard_message.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime::cpu {
namespace {

constexpr int64_t kColumns = 4;  // of the tensor of look-ups

// Look-ups of single rows have one id per bag: their lengths are not sent.
bool HasLengths(ShardLookUpKind kind) {
  return kind != ShardLookUpKind::kCopy && kind != ShardLookUpKind::kOne;
}

template <typename T>
base::TensorView ViewOf(base::DType dtype, base::Dims dims,
                        const std::vector<T>& values) {
  return {dtype, std::move(dims),
          reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(T)};
}

absl::Status NoMessage(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("message of a shard: ", what));
}

// Copies a tensor of the message: the peer may still write to the message, and
// checked numbers must be the numbers that are used.
template <typename T>
absl::Status CopyOf(const base::TensorView& tensor, base::DType dtype,
                    absl::string_view name, std::vector<T>& to) {
  if (tensor.dtype != dtype || tensor.dims.size() != 1 ||
      tensor.bytes != static_cast<size_t>(tensor.dims[0]) * sizeof(T)) {
    return NoMessage(absl::StrCat(name, " are ", base::Name(tensor.dtype),
                                  base::DimsToString(tensor.dims)));
  }
  to.resize(tensor.bytes / sizeof(T));
  if (!to.empty()) std::memcpy(to.data(), tensor.data, tensor.bytes);
  return absl::OkStatus();
}

}  // namespace

void ShardMessage::Clear() {
  begun_.clear();
  bags_.clear();
  answer_floats_ = 0;
  look_ups_.clear();
  lengths_.clear();
  rows_.clear();
  weights_.clear();
}

// Only notes where the look-up's bags will begin: the look-up enters the
// message with its first id (Add()).
void ShardMessage::Begin(size_t table, ShardLookUpKind kind, int64_t dim) {
  begun_.push_back({bags_.size(), answer_floats_});
  table_ = table;
  kind_ = kind;
  dim_ = dim;
}

void ShardMessage::Add(int64_t row, int64_t bag, float weight) {
  // A look-up without rows of this shard leaves no trace in the message.
  const bool first = bags_.size() == begun_.back().first_bag;
  if (first) {
    for (const int64_t value : {static_cast<int64_t>(table_),
                                static_cast<int64_t>(kind_), int64_t{0},
                                int64_t{0}}) {
      look_ups_.push_back(value);
    }
  }
  // Ids of a bag arrive one after the other: another bag begins a new entry.
  // Counts bags (column 2) and ids (column 3) of the look-up under way.
  int64_t* const look_up = look_ups_.data() + look_ups_.size() - kColumns;
  if (first || bags_.back() != bag) {
    bags_.push_back(bag);
    ++look_up[2];
    answer_floats_ += dim_;
    if (HasLengths(kind_)) lengths_.push_back(0);
  }
  ++look_up[3];
  if (HasLengths(kind_)) ++lengths_.back();
  rows_.push_back(row);
  if (kind_ == ShardLookUpKind::kWeighted) weights_.push_back(weight);
}

absl::Span<const int64_t> ShardMessage::BagsOf(size_t look_up) const {
  const size_t first = begun_[look_up].first_bag;
  const size_t end = look_up + 1 < begun_.size() ? begun_[look_up + 1].first_bag
                                                 : bags_.size();
  return absl::MakeConstSpan(bags_).subspan(first, end - first);
}

std::array<base::TensorView, kShardMessageTensors> ShardMessage::tensors()
    const {
  const auto size = [](const auto& values) {
    return static_cast<int64_t>(values.size());
  };
  return {
      ViewOf(base::DType::kInt64, {size(look_ups_) / kColumns, kColumns},
             look_ups_),
      ViewOf(base::DType::kInt32, {size(lengths_)}, lengths_),
      ViewOf(base::DType::kInt64, {size(rows_)}, rows_),
      ViewOf(base::DType::kFloat32, {size(weights_)}, weights_),
  };
}

absl::Status ShardLookUps::Read(absl::Span<const base::TensorView> tensors,
                                absl::Span<const OwnedTable> tables,
                                uint64_t at) {
  look_ups_.clear();
  views_.clear();
  offsets_.clear();
  answer_floats_ = 0;
  first_missing_ = -1;
  if (tensors.size() != kShardMessageTensors) {
    return NoMessage(absl::StrCat(tensors.size(), " tensors"));
  }
  base::TensorView flat = tensors[0];
  if (flat.dims.size() != 2 || flat.dims[1] != kColumns) {
    return NoMessage(
        absl::StrCat("look-ups are ", base::DimsToString(flat.dims)));
  }
  flat.dims = {flat.num_elements()};
  REFRACT_RETURN_IF_ERROR(
      CopyOf(flat, base::DType::kInt64, "look-ups", copied_));
  REFRACT_RETURN_IF_ERROR(
      CopyOf(tensors[1], base::DType::kInt32, "lengths", lengths_));
  REFRACT_RETURN_IF_ERROR(
      CopyOf(tensors[2], base::DType::kInt64, "rows", rows_));
  REFRACT_RETURN_IF_ERROR(
      CopyOf(tensors[3], base::DType::kFloat32, "weights", weights_));
  const size_t count = copied_.size() / kColumns;
  look_ups_.reserve(count);
  views_.reserve(count);
  // Views point into offsets_, so it must not grow.
  offsets_.reserve(lengths_.size() + count);
  found_.resize(rows_.size());
  // Positions of the next look-up in lengths, rows and weights; ReadOne() moves
  // them.
  size_t length = 0;
  size_t row = 0;
  size_t weight = 0;
  for (size_t i = 0; i < count; ++i) {
    REFRACT_RETURN_IF_ERROR(
        ReadOne(copied_.data() + i * kColumns, tables, at, length, row,
                weight));
  }
  if (length != lengths_.size() || row != rows_.size() ||
      weight != weights_.size()) {
    return NoMessage(absl::StrCat("look-ups take ", length, " lengths, ", row,
                                  " rows and ", weight, " weights of ",
                                  lengths_.size(), ", ", rows_.size(), " and ",
                                  weights_.size()));
  }
  return absl::OkStatus();
}

absl::Status ShardLookUps::ReadOne(const int64_t* look_up,
                                   absl::Span<const OwnedTable> tables,
                                   uint64_t at, size_t& length, size_t& row,
                                   size_t& weight) {
  const auto [number, kind_number, bags, ids] =
      std::array<int64_t, kColumns>{look_up[0], look_up[1], look_up[2],
                                    look_up[3]};
  if (number < 0 || static_cast<uint64_t>(number) >= tables.size()) {
    return NoMessage(absl::StrCat("table ", number, " of ", tables.size()));
  }
  if (kind_number < 0 ||
      kind_number > static_cast<int64_t>(ShardLookUpKind::kMax)) {
    return NoMessage(absl::StrCat("look-up of kind ", kind_number));
  }
  const OwnedTable& table = tables[static_cast<size_t>(number)];
  const auto kind = static_cast<ShardLookUpKind>(kind_number);
  const bool has_lengths = HasLengths(kind);
  const bool weighted = kind == ShardLookUpKind::kWeighted;
  // A copy returns the bytes of the row. Rows in a row format are decoded.
  if (kind == ShardLookUpKind::kCopy && table.rows.layout != nullptr) {
    return NoMessage(absl::StrCat("copies of encoded rows of table '",
                                  table.use.table, "'"));
  }
  // A look-up must fit into the rest of each tensor. Comparisons with what is
  // left cannot overflow, whatever a hostile peer sends.
  if (ids < 1 || static_cast<uint64_t>(ids) > rows_.size() - row || bags < 1 ||
      bags > ids || (!has_lengths && bags != ids) ||
      (has_lengths &&
       static_cast<uint64_t>(bags) > lengths_.size() - length) ||
      (weighted && static_cast<uint64_t>(ids) > weights_.size() - weight)) {
    return NoMessage(absl::StrCat("a look-up of ", ids, " ids in ", bags,
                                  " bags does not fit the tensors"));
  }
  // The product below must not overflow.
  if (bags > (std::numeric_limits<int64_t>::max() - answer_floats_) /
                 std::max<int64_t>(1, table.dim)) {
    return NoMessage("the answer is too long");
  }
  const int64_t* const first = rows_.data() + row;
  // Row numbers of a table divided by rows are checked here. Ids of a table
  // divided by ids are looked up in the owner's index below, and an id may have
  // no row.
  const bool by_ids = table.rows.ids != nullptr;
  for (int64_t i = 0; !by_ids && i < ids; ++i) {
    if (first[i] < 0 || first[i] >= table.rows.rows) {
      return NoMessage(absl::StrCat("row ", first[i], " of ", table.rows.rows,
                                    " of table '", table.use.table, "'"));
    }
  }
  Views& views = views_.emplace_back();
  views.answer = answer_floats_;
  views.ids = {base::DType::kInt64,
               {ids},
               reinterpret_cast<const std::byte*>(first),
               static_cast<size_t>(ids) * sizeof(int64_t)};
  LookUp& result = look_ups_.emplace_back();
  result.table = table.rows;
  result.table.at = at;
  if (by_ids) {
    int64_t* const found = found_.data() + row;
    table.rows.overlay->FindRows(
        absl::MakeConstSpan(first, static_cast<size_t>(ids)), at, found);
    // The asking process reports the first missing id in the order of its own
    // request, so that the owner notes a position instead of failing.
    const auto missing = std::find(found, found + ids, models::IdIndex::kNoRow);
    if (missing != found + ids && first_missing_ < 0 &&
        table.use.policy == models::IdPolicy::kError) {
      first_missing_ = static_cast<int64_t>(row) + (missing - found);
    }
    views.given_ids = views.ids;
    views.ids.data = reinterpret_cast<const std::byte*>(found);
    result.given_ids = &views.given_ids;
    if (table.rows.changed()) {
      // Rows of new ids lie behind the stored rows.
      result.table.rows = table.rows.overlay->row_bound();
    }
  }
  result.dim = table.dim;
  result.copies = kind == ShardLookUpKind::kCopy;
  result.mode = kind == ShardLookUpKind::kMax ? BagMode::kMax : BagMode::kSum;
  result.ids = &views.ids;
  result.num_bags = bags;
  result.use = &table.use;
  result.out_stride = table.dim * static_cast<int64_t>(sizeof(float));
  if (has_lengths) {
    const size_t begin = offsets_.size();
    int64_t total = 0;
    offsets_.push_back(0);
    for (int64_t b = 0; b < bags; ++b) {
      const int32_t of_bag = lengths_[length + static_cast<size_t>(b)];
      if (of_bag < 1) return NoMessage(absl::StrCat("a bag of ", of_bag));
      offsets_.push_back(total += of_bag);
    }
    if (total != ids) {
      return NoMessage(absl::StrCat("bags of ", total, " ids in all for ", ids));
    }
    views.offsets = {base::DType::kInt64,
                     {bags + 1},
                     reinterpret_cast<const std::byte*>(offsets_.data() + begin),
                     (static_cast<size_t>(bags) + 1) * sizeof(int64_t)};
    result.offsets = &views.offsets;
    result.include_last_offset = true;
    length += static_cast<size_t>(bags);
  }
  if (weighted) {
    result.weights =
        reinterpret_cast<const std::byte*>(weights_.data() + weight);
    weight += static_cast<size_t>(ids);
  }
  row += static_cast<size_t>(ids);
  answer_floats_ += bags * table.dim;
  return absl::OkStatus();
}

absl::Status ShardLookUps::Run(float* answer, RunStats& stats) {
  if (first_missing_ >= 0) {
    // The asking process drops the vectors (shard_message.h); zeros keep memory
    // of earlier answers from the peer.
    std::fill_n(answer, answer_floats_, 0.0F);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < look_ups_.size(); ++i) {
    look_ups_[i].out = reinterpret_cast<std::byte*>(answer + views_[i].answer);
  }
  return RunLookUps(look_ups_, stats);
}

}  // namespace refract::runtime::cpu
