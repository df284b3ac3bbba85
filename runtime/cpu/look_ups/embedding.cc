// Look-ups check all ids first, then copy rows with prefetches some ids ahead.

#include "runtime/cpu/look_ups/embedding.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/bag_reduce.h"
#include "runtime/cpu/look_ups/ids.h"

namespace refract::runtime::cpu {
namespace {

using models::IdPolicy;

// Layout of the table: `count` rows of `bytes` bytes.
struct Rows {
  const std::byte* data;
  int64_t count;
  size_t bytes;
};

template <typename Id>
void CopyRows(const Rows& rows, absl::Span<const Id> ids, std::byte* out) {
  const auto n = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < n; ++i) {
    if (i + kPrefetchDistance < n) {
      // The first line starts the address translation and the stream; hardware
      // prefetchers fetch the rest of the row.
      __builtin_prefetch(rows.data +
                         static_cast<size_t>(ids[i + kPrefetchDistance]) *
                             rows.bytes);
    }
    // A look-up moves bytes only, so that one loop serves all element types.
    std::memcpy(out, rows.data + static_cast<size_t>(ids[i]) * rows.bytes,
                rows.bytes);
    out += rows.bytes;
  }
}

// As CopyRows, when some ids are outside the table.
template <typename Id>
void CopyRowsReplacing(const Rows& rows, absl::Span<const Id> ids,
                       IdPolicy policy, std::byte* out) {
  for (const Id id : ids) {
    const bool inside = id >= 0 && static_cast<int64_t>(id) < rows.count;
    if (!inside && policy == IdPolicy::kZeroRow) {
      std::memset(out, 0, rows.bytes);
    } else {
      // kDefaultRow: row 0.
      const size_t row = inside ? static_cast<size_t>(id) : 0;
      std::memcpy(out, rows.data + row * rows.bytes, rows.bytes);
    }
    out += rows.bytes;
  }
}

class EmbeddingKernel final : public Kernel {
 public:
  EmbeddingKernel(int table, int ids, TableUse use)
      : table_(table), ids_(ids), use_(std::move(use)) {}

  absl::string_view name() const override { return "embedding"; }

  bool is_look_up() const override { return true; }

  void Prefetch(const Operands& operands) const override {
    PrefetchRows(TableRows::Of(operands[table_]), operands[ids_].tensor);
  }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& table = operands[table_].tensor;
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = table.dtype;
    spec.dims = operands[ids_].tensor.dims;
    spec.dims.insert(spec.dims.end(), table.dims.begin() + 1, table.dims.end());
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats& stats) const override {
    const base::TensorView& ids = operands[ids_].tensor;
    const TableRows table = TableRows::Of(operands[table_]);
    const Rows rows = {table.data, table.rows, table.row_bytes};
    REFRACT_ASSIGN_OR_RETURN(const int64_t outside,
                             use_.Check(ids, rows.count, stats));
    if (outputs[0].data == nullptr) return absl::OkStatus();
    if (table.layout != nullptr) {
      Decode(table, ids, outside, outputs[0].data);
      return absl::OkStatus();
    }
    if (ids.dtype == base::DType::kInt32) {
      Copy(rows, ids.as<int32_t>(), outside, outputs[0].data);
    } else {
      Copy(rows, ids.as<int64_t>(), outside, outputs[0].data);
    }
    return absl::OkStatus();
  }

 private:
  template <typename Id>
  void Copy(const Rows& rows, absl::Span<const Id> ids, int64_t outside,
            std::byte* out) const {
    // The usual case runs without a check per id.
    if (outside == 0) {
      CopyRows(rows, ids, out);
    } else {
      CopyRowsReplacing(rows, ids, use_.policy, out);
    }
  }

  // Each id is a bag of its own.
  void Decode(const TableRows& table, const base::TensorView& ids,
              int64_t outside, std::byte* out) const {
    BagReduction look_up;
    look_up.table = table.data;
    look_up.layout = *table.layout;
    look_up.rows = table.rows;
    look_up.dim = table.layout->dim;
    look_up.ids = ids;
    look_up.num_bags = ids.num_elements();
    if (outside > 0) look_up.replace = use_.policy;
    ReduceBags(look_up, out);
  }

  const int table_;
  const int ids_;
  const TableUse use_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateEmbeddingKernel(
    const KernelRequest& request) {
  const NodeArgs& args = request.args;
  int table = kNoOperand;
  int ids = kNoOperand;
  if (request.lowering() == models::Lowering::kEmbedding) {
    table = args.OperandOf("weight");
    ids = args.OperandOf("indices");
  } else {  // kIndexSelect
    table = args.OperandOf("self");
    ids = args.OperandOf("index");
    // Along the first dimension index_select is a look-up; along others rows
    // are not contiguous.
    if (args.IntLiteral("dim") != 0 || !request.HasRank(ids) ||
        request.rank(ids) != 1) {
      return nullptr;
    }
  }
  if (!request.HasRank(table) || request.rank(table) == 0 ||
      (!request.IsTensor(ids, base::DType::kInt64) &&
       !request.IsTensor(ids, base::DType::kInt32)) ||
      request.rank(ids) + request.rank(table) - 1 > kMaxKernelRank) {
    return nullptr;
  }
  return std::make_unique<EmbeddingKernel>(table, ids,
                                           TableUse::Of(request, table));
}

}  // namespace refract::runtime::cpu
