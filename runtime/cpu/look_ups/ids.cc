// Checks of ids and offsets run over the whole tensor before any table row is
// read.

#include "runtime/cpu/look_ups/ids.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"

namespace refract::runtime::cpu {
namespace {

template <typename Id>
int64_t CountOutside(absl::Span<const Id> ids, int64_t rows) {
  int64_t outside = 0;
  for (const Id id : ids) {
    // As unsigned numbers, negative ids are larger than any row number. No
    // branch, so that the loop vectorises.
    outside += static_cast<uint64_t>(static_cast<int64_t>(id)) >=
               static_cast<uint64_t>(rows);
  }
  return outside;
}

bool IsIdType(base::DType dtype) {
  return dtype == base::DType::kInt32 || dtype == base::DType::kInt64;
}

// Whether the node hands on the ids of its operand, so that errors may name the
// operand.
bool PassesValuesOn(const models::Node& node) {
  return models::ClassOf(node.op) == models::OpClass::kView ||
         node.op == "aten._to_copy.default" || node.op == "aten.to.dtype" ||
         node.op == "aten.clone.default" ||
         node.op == "aten.contiguous.default";
}

}  // namespace

TableUse TableUse::Of(const KernelRequest& request, int weight) {
  const models::Value& value = request.operand(weight);
  TableUse use;
  if (!value.is_weight()) {
    use.table = value.name;
    return use;
  }
  use.table = value.weight;
  const auto policy = request.config.id_policies.find(value.weight);
  use.policy = policy == request.config.id_policies.end()
                   ? request.config.default_id_policy
                   : policy->second;
  return use;
}

absl::StatusOr<int64_t> TableUse::Check(const base::TensorView& ids,
                                        int64_t rows, RunStats& stats,
                                        const base::TensorView* given) const {
  const int64_t outside = ids.dtype == base::DType::kInt32
                              ? CountOutside(ids.as<int32_t>(), rows)
                              : CountOutside(ids.as<int64_t>(), rows);
  if (outside == 0) [[likely]] {
    return 0;
  }
  if (policy != models::IdPolicy::kError && rows > 0) {
    stats.replaced_ids += static_cast<uint64_t>(outside);
    return outside;
  }
  int64_t position = 0;
  // The slow path searches the first offending id for the message.
  while (IntAt(ids, position) >= 0 && IntAt(ids, position) < rows) ++position;
  if (given != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", table, "': id ", IntAt(*given, position),
                     " at position ", position, " has no row"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("table '", table, "': id ", IntAt(ids, position),
                   " at position ", position, " is outside [0, ", rows, ")"));
}

TableRows TableRows::Of(const Operands& operands, int index) {
  const Operand& table = operands[index];
  TableRows rows;
  rows.overlay = table.overlay;
  if (rows.overlay != nullptr) {
    rows.source = rows.overlay->source();
    rows.ids = rows.overlay->ids();
  }
  rows.at = operands.tables_at();
  const base::Dims& dims = table.tensor.dims;
  rows.rows = dims.empty() ? 0 : dims[0];
  if (table.sharded != nullptr) {
    rows.sharded = table.sharded;
    rows.peers = operands.shard_peers();
    rows.rows = table.sharded->rows.ends.back();
  }
  if (table.kind == Operand::Kind::kWeight) {
    rows.data = table.weight->data;
    rows.layout = &*table.weight->rows;
    rows.row_bytes = static_cast<size_t>(rows.layout->stride);
    return rows;
  }
  rows.data = table.tensor.data;
  // Rows may have several dimensions.
  rows.row_bytes = base::SizeOf(table.tensor.dtype);
  for (size_t d = 1; d < dims.size(); ++d) {
    rows.row_bytes *= static_cast<size_t>(dims[d]);
  }
  return rows;
}

namespace {

// Whether offsets begin with 0, never fall and end at or before `num_ids`. No
// branch per offset, so that the loop vectorises.
template <typename Int>
bool AreOffsets(absl::Span<const Int> offsets, int64_t num_ids) {
  bool falls = false;
  for (size_t i = 1; i < offsets.size(); ++i) {
    falls |= offsets[i] < offsets[i - 1];
  }
  return offsets.empty() ||
         (!falls && offsets[0] == 0 && offsets.back() <= num_ids);
}

}  // namespace

absl::Status CheckOffsets(const std::string& name,
                          const base::TensorView& offsets, int64_t num_ids) {
  const bool good = offsets.dtype == base::DType::kInt32
                        ? AreOffsets(offsets.as<int32_t>(), num_ids)
                        : AreOffsets(offsets.as<int64_t>(), num_ids);
  if (good) [[likely]] {
    return absl::OkStatus();
  }
  // The slow path searches for the message.
  const int64_t count = offsets.num_elements();
  const auto error = [&](int64_t position, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets '", name, "': ", IntAt(offsets, position),
                     " at position ", position, what));
  };
  if (IntAt(offsets, 0) != 0) {
    return error(0, ", but the first offset must be 0");
  }
  int64_t previous = 0;
  for (int64_t i = 1; i < count; ++i) {
    const int64_t offset = IntAt(offsets, i);
    if (offset < previous) {
      return error(i, absl::StrCat(" is less than ", previous, " before it"));
    }
    previous = offset;
  }
  if (previous > num_ids) {
    int64_t first = count - 1;
    // Names the first offset past the end, not the last.
    while (IntAt(offsets, first - 1) > num_ids) --first;
    return error(first, absl::StrCat(" is past the end of ", num_ids, " ids"));
  }
  return absl::OkStatus();
}

models::ValueId SourceOf(const models::Graph& graph, models::ValueId id) {
  models::ValueId source = id;
  while (graph.value(source).producer != models::kNoNode) {
    const models::Node& node = graph.nodes[graph.value(source).producer];
    const auto inputs = models::InputsOf(node);
    // Computed ids are named by their own value.
    if (!PassesValuesOn(node) || inputs.empty()) return id;
    source = inputs.front();
  }
  return source;
}

std::string SourceName(const models::Graph& graph, models::ValueId id) {
  return graph.value(SourceOf(graph, id)).name;
}

absl::StatusOr<std::optional<LookUpGuard>> LookUpGuard::Create(
    const KernelRequest& request) {
  const models::EmbeddingArgs names =
      models::EmbeddingArgsOf(request.node().op);
  LookUpGuard guard;
  if (!names.weight.empty()) {
    guard.weight_ = request.args.OperandOf(names.weight);
    guard.indices_ = request.args.OperandOf(names.indices);
    if (!names.offsets.empty()) {
      guard.offsets_ = request.args.OperandOf(names.offsets);
    }
  }
  if (guard.weight_ == kNoOperand || guard.indices_ == kNoOperand) {
    return std::nullopt;
  }
  // LibTorch can only refuse ids, not replace them.
  guard.use_ = TableUse::Of(request, guard.weight_);
  if (guard.use_.policy != models::IdPolicy::kError) {
    return absl::UnimplementedError(absl::StrCat(
        request.node().name, ": table '", guard.use_.table,
        "' is read by LibTorch here (", request.node().op,
        "), which can only refuse ids outside it; set its id policy to error"));
  }
  if (guard.offsets_ != kNoOperand) {
    guard.offsets_name_ =
        SourceName(request.graph, request.operands[guard.offsets_]);
  }
  return guard;
}

absl::Status LookUpGuard::Check(const Operands& operands,
                                RunStats& stats) const {
  const Operand& weight = operands[weight_];
  int64_t rows = 0;
  // A strided weight too large to copy.
  if (weight.kind == Operand::Kind::kWeight) {
    if (weight.weight->sizes.empty()) return absl::OkStatus();
    rows = weight.weight->sizes[0];
  } else {
    if (weight.tensor.dims.empty()) return absl::OkStatus();
    rows = weight.tensor.dims[0];
  }
  // LibTorch refuses other types itself.
  const base::TensorView& ids = operands[indices_].tensor;
  if (!IsIdType(ids.dtype)) return absl::OkStatus();
  if (offsets_ != kNoOperand && IsIdType(operands[offsets_].tensor.dtype)) {
    REFRACT_RETURN_IF_ERROR(CheckOffsets(
        offsets_name_, operands[offsets_].tensor, ids.num_elements()));
  }
  return use_.Check(ids, rows, stats).status();
}

}  // namespace refract::runtime::cpu
