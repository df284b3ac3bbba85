#include "runtime/cpu/look_ups/embedding.h"

#include <utility>

#include "runtime/cpu/look_ups/ids.h"
#include "runtime/cpu/look_ups/look_up.h"

namespace refract::runtime::cpu {
namespace {

class EmbeddingKernel final : public LookUpKernel {
 public:
  EmbeddingKernel(int table, int ids, TableUse use)
      : table_(table), ids_(ids), use_(std::move(use)) {}

  absl::string_view name() const override { return "embedding"; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const base::TensorView& table = operands[table_].tensor;
    base::TensorSpec& spec = outputs[0].spec;
    spec.dtype = table.dtype;
    spec.dims = operands[ids_].tensor.dims;
    spec.dims.insert(spec.dims.end(), table.dims.begin() + 1, table.dims.end());
    return absl::OkStatus();
  }

  absl::Status Describe(const Operands& operands,
                        LookUp& look_up) const override {
    const base::TensorView& table = operands[table_].tensor;
    look_up.table = TableRows::Of(operands, table_);
    look_up.dtype = table.dtype;
    // Rows may have several dimensions.
    look_up.dim = 1;
    for (size_t d = 1; d < table.dims.size(); ++d) look_up.dim *= table.dims[d];
    // A look-up of elements moves bytes only. Rows of a format are decoded:
    // each id is a bag of its own.
    look_up.copies = look_up.table.layout == nullptr;
    look_up.ids = &operands[ids_].tensor;
    look_up.num_bags = look_up.ids->num_elements();
    look_up.use = &use_;
    return absl::OkStatus();
  }

 private:
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
    const auto dim = args.IntLiteral("dim");
    if (!dim || !request.HasRank(table) ||
        (*dim != 0 && *dim + request.rank(table) != 0) ||
        !request.HasRank(ids) || request.rank(ids) != 1) {
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
