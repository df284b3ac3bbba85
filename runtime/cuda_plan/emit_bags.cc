// Bags of table rows (embedding_bag): bags that requests bring with any number
// of entries, bags of one size, and bags whose ids or offsets are computed.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;

bool IsInteger(const Tensor& tensor) {
  return tensor.rank() == 1 &&
         (tensor.dtype == DType::kInt32 || tensor.dtype == DType::kInt64);
}

bool KeepsOrder(const models::Node& node) {
  switch (models::LoweringOf(node.op)) {
    case models::Lowering::kReshape:
    case models::Lowering::kFlatten:
    case models::Lowering::kUnsqueeze:
    case models::Lowering::kSqueeze:
    case models::Lowering::kAlias:
      return true;
    default:
      return false;
  }
}

// The part's input with the elements of `id`, in the same order; -1: none.
// CheckBags() reads that input on the CPU, so that an error names the table as
// on a CPU node.
int InputOf(const models::Graph& graph, const Part& part, models::ValueId id) {
  while (true) {
    const auto input = std::find(part.inputs.begin(), part.inputs.end(), id);
    if (input != part.inputs.end()) {
      return static_cast<int>(input - part.inputs.begin());
    }
    if (graph.value(id).producer == models::kNoNode) return -1;
    const models::Node& node = graph.nodes[graph.value(id).producer];
    const auto inputs = models::InputsOf(node);
    if (inputs.empty() || !KeepsOrder(node)) return -1;
    id = inputs.front();
  }
}

// A node with the facts known before anything is emitted.
struct BagNode {
  cuda::Bag bag;
  Sizes dims;
  Tensor table;
  std::optional<Tensor> ids, offsets, weights;
  BagCheck check;
};

// Reads the node; refuses forms that the kernel lacks. Emits nothing, so that
// LibTorch may still compute the node (OrForeign()).
absl::StatusOr<BagNode> Understand(const NodeStep& node,
                                   const CompileOptions& options,
                                   Emitter& emitter) {
  const NodeArgs args(node.node);
  BagNode found;
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != kNoLocal)
      return absl::UnimplementedError(
          "the model reads its other results (offset2bag, bag_size or "
          "max_indices)");
  }
  const int local = node.outputs[0];
  const auto operand = [&](absl::string_view name) {
    const int place = args.OperandOf(name);
    return place == kNoOperand ? kNoLocal : node.operands[place];
  };
  const int table = operand("weight");
  const int ids = operand("indices");
  const int offsets = operand("offsets");
  if (table == kNoLocal || ids == kNoLocal || offsets == kNoLocal) {
    return absl::UnimplementedError(
        "its weight, indices or offsets are not plain tensors");
  }
  if (emitter.plan().locals[local].dtype == base::DType::kFloat64) {
    return absl::UnimplementedError("its result is float64");
  }
  const int64_t mode =
      args.Has("mode") ? args.IntLiteral("mode").value_or(-1) : 0;
  if (mode < 0 || mode > 2)
    return absl::UnimplementedError("its mode is not a constant");
  found.bag.mode = static_cast<cuda::BagMode>(mode);
  if (args.Has("include_last_offset")) {
    const auto flag = args.BoolLiteral("include_last_offset");
    if (!flag)
      return absl::UnimplementedError(
          "its include_last_offset is not a constant");
    found.bag.include_last = *flag;
  }
  REFRACT_ASSIGN_OR_RETURN(found.dims, emitter.DimsOfLocal(local));
  if (found.dims.size() != 2 || !found.dims[1].constant()) {
    return absl::UnimplementedError(
        "its result is not a matrix of fixed width");
  }
  REFRACT_ASSIGN_OR_RETURN(found.table, emitter.Get(table));
  if (found.table.rank() != 2 || !found.table.dims[0].constant() ||
      !(found.table.dims[1] == found.dims[1]) ||
      !cuda::IsFloating(found.table.dtype)) {
    return absl::UnimplementedError(
        "its table is not a floating-point matrix of fixed size");
  }
  found.bag.dim = *found.dims[1].constant();
  found.bag.table_rows = *found.table.dims[0].constant();
  if (args.Has("padding_idx")) {
    const auto padding = args.IntLiteral("padding_idx");
    if (!padding)
      return absl::UnimplementedError("its padding_idx is not a constant");
    // The public overload counts from the end; the internal ones mean "none".
    const bool wraps = node.node.op == "aten.embedding_bag.padding_idx";
    found.bag.padding_id =
        wraps && *padding < 0 ? *padding + found.bag.table_rows : *padding;
  }
  found.bag.outside = OutsideOf(emitter, table, options);

  const int weights = operand("per_sample_weights");
  if (args.Has("per_sample_weights")) {
    if (weights == kNoLocal || found.bag.mode != cuda::BagMode::kSum) {
      return absl::UnimplementedError(
          "it has per_sample_weights with another mode than sum");
    }
    REFRACT_ASSIGN_OR_RETURN(found.weights, emitter.Get(weights));
    if (found.weights->rank() != 1 || !cuda::IsFloating(found.weights->dtype)) {
      return absl::UnimplementedError(
          "its per_sample_weights are not a floating-point vector");
    }
  }
  REFRACT_ASSIGN_OR_RETURN(found.ids, emitter.Get(ids));
  if (!IsInteger(*found.ids)) {
    return absl::UnimplementedError(
        absl::StrCat("its indices are ", cuda::Name(found.ids->dtype)));
  }
  if (found.weights && !(found.weights->dims == found.ids->dims)) {
    return absl::UnimplementedError(
        "its per_sample_weights and its indices differ in length");
  }

  const models::Graph& graph = emitter.graph();
  const Part& part = emitter.plan().part;
  const auto id_of = [&](int of) { return emitter.plan().locals[of].id; };
  found.check = {.table = graph.value(id_of(table)).is_weight()
                              ? graph.value(id_of(table)).weight
                              : graph.value(id_of(table)).name,
                 .offsets_name = cpu::SourceName(graph, id_of(offsets)),
                 .policy = PolicyOf(emitter, table, options),
                 .table_rows = found.bag.table_rows,
                 .ids = InputOf(graph, part, id_of(ids)),
                 .offsets = InputOf(graph, part, id_of(offsets))};

  // Bags of equal size have no offsets on the device: bag b begins at b × step.
  if (const std::optional<int64_t> step = emitter.EvenSteps(offsets)) {
    const Size rows = found.dims[0];
    if (!(found.ids->dims[0] == rows * Size(*step))) {
      return absl::UnimplementedError(
          "its computed offsets do not cover all indices");
    }
    found.bag.length = *step;
    found.bag.include_last = false;
    return found;
  }
  REFRACT_ASSIGN_OR_RETURN(found.offsets, emitter.Get(offsets));
  if (!IsInteger(*found.offsets)) {
    return absl::UnimplementedError(
        absl::StrCat("its offsets are ", cuda::Name(found.offsets->dtype)));
  }
  if (const BagRoom* const room = emitter.RoomOf(offsets)) {
    // FillBags() moves the entries of a group together with its offsets. Ids of
    // another input would stay where they are.
    const std::vector<size_t>& entries = room->part.entries;
    if (std::none_of(entries.begin(), entries.end(), [&](size_t i) {
          return emitter.plan().inputs[i] == ids;
        })) {
      return absl::UnimplementedError(
          "its offsets also belong to bags of other inputs");
    }
    // FillBags() always writes the end of the last bag behind the offsets.
    found.bag.include_last = true;
  }
  return found;
}

// Finds the places of all operands.
absl::Status Place(const Emitter& emitter, const Tensor& out, BagNode& node) {
  cuda::Bag& bag = node.bag;
  REFRACT_ASSIGN_OR_RETURN(bag.table, emitter.RefTo(node.table));
  REFRACT_ASSIGN_OR_RETURN(bag.ids, emitter.RefTo(*node.ids));
  if (node.offsets) {
    REFRACT_ASSIGN_OR_RETURN(bag.offsets, emitter.RefTo(*node.offsets));
  }
  if (node.weights) {
    REFRACT_ASSIGN_OR_RETURN(bag.weights, emitter.RefTo(*node.weights));
  }
  REFRACT_ASSIGN_OR_RETURN(bag.out, emitter.RefTo(out));
  const std::optional<cuda::Rows> entries = node.ids->dims[0].rows();
  if (!entries)
    return absl::UnimplementedError(
        "the number of its ids is not a multiple of the batch plus a constant");
  bag.entries = *entries;
  return absl::OkStatus();
}

}  // namespace

std::optional<int64_t> EvenOffsets(const NodeStep& node, Emitter& emitter) {
  if (models::LoweringOf(node.node.op) != models::Lowering::kArange) {
    return std::nullopt;
  }
  const NodeArgs args(node.node);
  const auto number = [&](absl::string_view name,
                          int64_t missing) -> std::optional<int64_t> {
    if (!args.Has(name)) return missing;
    const std::optional<IntSource> source = args.Int(name);
    if (!source) return std::nullopt;
    const absl::StatusOr<Size> size = emitter.SizeOf(*source, node.operands);
    if (!size.ok()) return std::nullopt;
    return size->constant();
  };
  const std::optional<int64_t> step = number("step", 1);
  if (number("start", 0) != 0 || !step || *step < 1) return std::nullopt;
  // An output of the part must exist as a tensor.
  const models::ValueId id = emitter.plan().locals[node.outputs[0]].id;
  for (const PlanOutput& output : emitter.plan().outputs) {
    if (output.local == node.outputs[0]) return std::nullopt;
  }
  // Only bags may read the offsets.
  for (const Step& other : emitter.plan().steps) {
    for (const models::NodeId n : other.nodes) {
      const models::Node& reader = emitter.graph().nodes[n];
      const auto inputs = models::InputsOf(reader);
      const auto reads = std::count(inputs.begin(), inputs.end(), id);
      if (reads == 0) continue;
      const NodeArgs names(reader);
      const int offsets = names.OperandOf("offsets");
      if (!IsBag(reader) || reads != 1 || offsets == kNoOperand ||
          inputs[static_cast<size_t>(offsets)] != id) {
        return std::nullopt;
      }
    }
  }
  return step;
}

absl::Status EmitBag(const NodeStep& node, const CompileOptions& options,
                     Emitter& emitter) {
  const size_t progress = emitter.progress();
  absl::StatusOr<BagNode> understood = Understand(node, options, emitter);
  if (!understood.ok()) {
    return OrForeign(understood.status(), progress, node, emitter);
  }
  REFRACT_ASSIGN_OR_RETURN(const Tensor out,
                           emitter.NewResult(node.outputs[0], understood->dims,
                                             emitter.compute_type()));
  emitter.Set(node.outputs[0], out);
  // From here on errors are final: the result has memory already.
  REFRACT_RETURN_IF_ERROR(Place(emitter, out, *understood));
  emitter.AddBagCheck(std::move(understood->check));
  const std::optional<cuda::Rows> rows = understood->dims[0].rows();
  if (!rows)
    return absl::UnimplementedError(
        "the number of its bags is not a multiple of the batch plus a "
        "constant");
  emitter.builder().Bags({.rows = *rows, .bags = {std::move(understood->bag)}});
  return absl::OkStatus();
}

}  // namespace refract::runtime::cuda_plan
