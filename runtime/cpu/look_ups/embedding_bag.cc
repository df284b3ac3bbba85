// Checks and parameters of embedding_bag; look_up.cc runs it.

#include "runtime/cpu/look_ups/embedding_bag.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/bag_reduce.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/cpu/look_ups/look_up.h"

namespace refract::runtime::cpu {
namespace {

struct BagNode {
  int table = kNoOperand;
  int ids = kNoOperand;
  int offsets = kNoOperand;
  int weights = kNoOperand;
  BagMode mode = BagMode::kSum;
  bool include_last_offset = false;
  // As given to the operator: counted from the end when negative and
  // padding_wraps.
  std::optional<int64_t> padding_id;
  bool padding_wraps = false;
  TableUse use;
  std::string offsets_name;
};

class EmbeddingBagKernel final : public LookUpKernel {
 public:
  explicit EmbeddingBagKernel(BagNode node) : node_(std::move(node)) {}

  absl::string_view name() const override {
    switch (node_.mode) {
      case BagMode::kSum:
        return "embedding_bag/sum";
      case BagMode::kMean:
        return "embedding_bag/mean";
      case BagMode::kMax:
        return "embedding_bag/max";
    }
    return "embedding_bag";
  }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& table = operands[node_.table].tensor;
    const int64_t num_offsets = operands[node_.offsets].tensor.dims[0];
    if (node_.include_last_offset && num_offsets == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("offsets '", node_.offsets_name,
                       "': empty, but the end of the last bag is wanted"));
    }
    outputs[0].spec.dtype = table.dtype;
    // With include_last_offset the last offset only ends the last bag.
    outputs[0].spec.dims = {num_offsets - (node_.include_last_offset ? 1 : 0),
                            table.dims[1]};
    return absl::OkStatus();
  }

  absl::Status Describe(const Operands& operands,
                        LookUp& look_up) const override {
    const base::TensorView& table = operands[node_.table].tensor;
    look_up.table = TableRows::Of(operands, node_.table);
    look_up.dtype = table.dtype;
    look_up.dim = table.dims[1];
    look_up.mode = node_.mode;
    look_up.ids = &operands[node_.ids].tensor;
    look_up.offsets = &operands[node_.offsets].tensor;
    look_up.num_bags =
        look_up.offsets->dims[0] - (node_.include_last_offset ? 1 : 0);
    look_up.include_last_offset = node_.include_last_offset;
    look_up.use = &node_.use;
    // Offsets come from a request: the loops trust them only after this check.
    const int64_t num_ids = look_up.ids->num_elements();
    REFRACT_RETURN_IF_ERROR(
        CheckOffsets(node_.offsets_name, *look_up.offsets, num_ids));
    if (node_.padding_id) {
      look_up.padding_id = *node_.padding_id;
      if (node_.padding_wraps && look_up.padding_id < 0) {
        look_up.padding_id += look_up.table.rows;
      }
    }
    if (node_.weights != kNoOperand) {
      const base::TensorView& weights = operands[node_.weights].tensor;
      // The graph may not show that both have the same length.
      if (weights.num_elements() != num_ids) {
        return absl::InvalidArgumentError(absl::StrCat(
            "table '", node_.use.table, "': ", weights.num_elements(),
            " per_sample_weights for ", num_ids, " ids"));
      }
      // Weights have the table's element type, which creation checked.
      look_up.weights = weights.data;
    }
    return absl::OkStatus();
  }

 private:
  const BagNode node_;
};

// Ids of other ranks stay with LibTorch.
bool IsIds(const KernelRequest& request, int operand) {
  return (request.IsTensor(operand, base::DType::kInt64) ||
          request.IsTensor(operand, base::DType::kInt32)) &&
         request.rank(operand) == 1;
}

bool IsTable(const KernelRequest& request, int operand) {
  if (!request.HasRank(operand) || request.rank(operand) != 2) return false;
  return base::IsFloatingPoint(request.operand(operand).dtype);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateEmbeddingBagKernel(
    const KernelRequest& request) {
  // The other results serve training.
  for (size_t i = 1; i < request.output_used.size(); ++i) {
    if (request.output_used[i]) return nullptr;
  }
  const NodeArgs& args = request.args;
  BagNode node;
  node.table = args.OperandOf("weight");
  node.ids = args.OperandOf("indices");
  node.offsets = args.OperandOf("offsets");
  if (!IsTable(request, node.table) || !IsIds(request, node.ids) ||
      !IsIds(request, node.offsets)) {
    return nullptr;
  }
  if (args.Has("mode")) {
    const auto mode = args.IntLiteral("mode");
    if (!mode || *mode < 0 || *mode > 2) return nullptr;
    node.mode = static_cast<BagMode>(*mode);
  }
  if (args.Has("include_last_offset")) {
    const auto flag = args.BoolLiteral("include_last_offset");
    if (!flag) return nullptr;
    node.include_last_offset = *flag;
  }
  if (args.Has("per_sample_weights")) {
    node.weights = args.OperandOf("per_sample_weights");
    // PyTorch refuses weights for mean and max as well.
    if (node.mode != BagMode::kSum ||
        !request.IsTensor(node.weights, request.operand(node.table).dtype) ||
        request.rank(node.weights) != 1) {
      return nullptr;
    }
  }
  if (args.Has("padding_idx")) {
    node.padding_id = args.IntLiteral("padding_idx");
    if (!node.padding_id) return nullptr;
    // A negative padding_idx counts from the end in the public overload and
    // means "none" in the internal ones.
    node.padding_wraps = request.node().op == "aten.embedding_bag.padding_idx";
    if (!node.padding_wraps && *node.padding_id < 0) node.padding_id.reset();
  }
  node.use = TableUse::Of(request, node.table);
  node.offsets_name = SourceName(request.graph, request.operands[node.offsets]);
  return std::make_unique<EmbeddingBagKernel>(std::move(node));
}

}  // namespace refract::runtime::cpu
