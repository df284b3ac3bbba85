// Compilation in order: one step per node (view, size, fused operator, CPU
// kernel, or LibTorch), constant folding, fusion passes, kernels with packed
// weights, memory plan. Folding precedes fusion so that passes see constants;
// kernels are created last, since fusion decides which weights are packed.

#include "runtime/compile/compiler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "runtime/compile/liveness.h"
#include "runtime/compile/node_key.h"
#include "runtime/compile/read_constants.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/strided_copy.h"
#include "runtime/executor.h"
#include "runtime/fusion/lower.h"
#include "runtime/fusion/passes.h"
#include "runtime/torch/op_library.h"

namespace refract::runtime {
namespace {

using models::Graph;
using models::Node;
using models::NodeId;
using models::Value;
using models::ValueId;
using models::ValueKind;
using OperandKind = Operand::Kind;

Operand::Kind KindOf(ValueKind kind) {
  switch (kind) {
    case ValueKind::kSymInt:
      return OperandKind::kInt;
    case ValueKind::kSymFloat:
      return OperandKind::kFloat;
    case ValueKind::kSymBool:
      return OperandKind::kBool;
    case ValueKind::kTensor:
      return OperandKind::kTensor;
  }
  return OperandKind::kTensor;
}

class Compiler {
 public:
  Compiler(const Graph& graph, const Part& part,
           std::shared_ptr<const models::WeightStore> weights,
           const CompileOptions& options, Target target)
      : graph_(graph), part_(part), options_(options), target_(target) {
    plan_.part = part;
    plan_.weights = std::move(weights);
  }

  absl::StatusOr<Plan> Compile() {
    FindReadValues();
    REFRACT_RETURN_IF_ERROR(CheckLibraries());
    REFRACT_RETURN_IF_ERROR(AddInputs());
    for (size_t i = 0; i < part_.nodes.size(); ++i) {
      REFRACT_RETURN_IF_ERROR(AddNode(i));
    }
    REFRACT_RETURN_IF_ERROR(AddOutputs());
    REFRACT_RETURN_IF_ERROR(Fold());
    FuseSteps(graph_, plan_, target_);
    MakeFusedKernels();
    DropUnusedConstants();
    // Only after the kernels are made, which read the weights to pack them.
    if (target_ == Target::kCpu) ReleaseUnreadWeights(graph_, plan_);
    PlanMemory(graph_, plan_);
    plan_.signature =
        std::make_unique<Signature>(graph_, part_.inputs, part_.outputs);
    return std::move(plan_);
  }

 private:
  bool IsValue(ValueId id) const {
    return id >= 0 && static_cast<size_t>(id) < graph_.values.size();
  }

  // Computed over the whole graph, so that the choice of kernels is the same in
  // every part.
  void FindReadValues() {
    read_.assign(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      for (ValueId id : models::InputsOf(node)) read_[id] = true;
    }
    for (ValueId id : graph_.outputs) read_[id] = true;
    for (ValueId id : part_.outputs) {
      if (IsValue(id)) read_[id] = true;
    }
  }

  // AddNode() refuses nodes that the graph lacks.
  absl::Status CheckLibraries() const {
    std::vector<NodeId> nodes;
    for (NodeId id : part_.nodes) {
      if (id >= 0 && static_cast<size_t>(id) < graph_.nodes.size()) {
        nodes.push_back(id);
      }
    }
    return runtime::aten::CheckOpLibraries(graph_, nodes);
  }

  int AddLocal(ValueId id) {
    const Value& value = graph_.value(id);
    const int index = static_cast<int>(plan_.locals.size());
    Local local;
    local.id = id;
    local.name = value.name;
    local.dtype = value.dtype;
    if (value.has_shape) local.rank = static_cast<int>(value.shape.size());
    local.root = index;
    plan_.locals.push_back(std::move(local));
    plan_.constants.emplace_back();
    local_of_[id] = index;
    return index;
  }

  absl::Status AddInputs() {
    for (ValueId id : part_.inputs) {
      if (!IsValue(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("part: input ", id, " is not a value of the graph"));
      }
      const Value& value = graph_.value(id);
      if (value.is_weight() || local_of_.contains(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("part: input '", value.name, "' is ",
                         value.is_weight() ? "a weight" : "listed twice"));
      }
      const int local = AddLocal(id);
      plan_.locals[local].is_input = true;
      // The kind says how to read the caller's value, which a run brings.
      plan_.constants[local].kind = KindOf(value.kind);
      plan_.inputs.push_back(local);
    }
    return absl::OkStatus();
  }

  // The local of a value that is readable here. Weights become locals at their
  // first reader.
  absl::StatusOr<int> Read(ValueId id, absl::string_view reader) {
    const auto found = local_of_.find(id);
    if (found != local_of_.end()) return found->second;
    if (!IsValue(id) || !graph_.value(id).is_weight()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "part: ", reader, " reads ",
          IsValue(id) ? absl::StrCat("'", graph_.value(id).name, "'")
                      : absl::StrCat("value ", id),
          ", which is neither an input nor computed by an earlier node"));
    }
    return AddWeight(id);
  }

  absl::StatusOr<int> AddWeight(ValueId id) {
    const Value& value = graph_.value(id);
    if (plan_.weights == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight '", value.weight,
                       "' is read, but no weights "
                       "were given"));
    }
    REFRACT_ASSIGN_OR_RETURN(models::WeightView view,
                             plan_.weights->GetAsStored(value.weight));
    if (view.rows && target_ != Target::kCpu) {
      return absl::UnimplementedError(absl::StrCat(
          "table '", value.weight, "' has rows of ",
          models::RowsText(*view.rows),
          ", which only CPUs read; refract partition leaves its look-ups on "
          "the CPU node"));
    }
    // The weight file may contradict the graph; kernels trust the graph.
    const bool rank_differs =
        value.has_shape && value.shape.size() != view.sizes.size();
    if (rank_differs ||
        (value.dtype != base::DType::kUnknown && value.dtype != view.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight '", value.weight, "' is ", base::Name(view.dtype), " ",
          base::DimsToString(view.sizes), ", unlike the graph's '", value.name,
          "'"));
    }
    const int local = AddLocal(id);
    plan_.locals[local].is_constant = true;
    Operand& operand = plan_.constants[local];
    REFRACT_ASSIGN_OR_RETURN(const size_t bytes,
                             base::ByteSize(view.dtype, view.sizes));
    operand.kind = OperandKind::kTensor;
    operand.tensor = {view.dtype,
                      base::Dims(view.sizes.begin(), view.sizes.end()),
                      view.data, bytes};
    const auto overlay = options_.overlays.find(value.weight);
    if (overlay != options_.overlays.end()) operand.overlay = overlay->second;
    const auto sharded = options_.sharded.find(value.weight);
    if (sharded != options_.sharded.end()) operand.sharded = sharded->second;
    if (view.is_contiguous() && !view.rows) return local;
    if (bytes <= options_.max_folded_bytes && !view.rows) {
      base::AlignedBuffer dense(bytes);
      cpu::CopyStrided(view.data, view.sizes, view.strides,
                       base::SizeOf(view.dtype), dense.data());
      operand.tensor.data = dense.data();
      plan_.constant_buffers.push_back(std::move(dense));
      return local;
    }
    // Too large to copy: LibTorch reads it with its strides. Or a table in a
    // row format, which look-ups decode.
    plan_.weight_views.push_back(
        std::make_unique<const models::WeightView>(std::move(view)));
    operand.kind = OperandKind::kWeight;
    operand.tensor.data = nullptr;
    operand.tensor.bytes = 0;
    operand.weight = plan_.weight_views.back().get();
    return local;
  }

  absl::Status AddNode(size_t position) {
    const NodeId id = part_.nodes[position];
    if (id < 0 || static_cast<size_t>(id) >= graph_.nodes.size() ||
        (position > 0 && id <= part_.nodes[position - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("part: node ", id, " at position ", position,
                       " is not in the graph or out of the graph's order"));
    }
    const Node& node = graph_.nodes[id];
    Step step;
    step.nodes = {id};
    step.node = node.name;
    step.op = node.op;
    const NodeArgs args(node);
    const std::vector<ValueId> operands = models::InputsOf(node);
    bool all_dense = true;
    const models::Value* encoded = nullptr;  // table in a row format
    for (ValueId operand : operands) {
      REFRACT_ASSIGN_OR_RETURN(const int local,
                               Read(operand, absl::StrCat("node ", node.name)));
      step.operands.push_back(local);
      const Operand& constant = plan_.constants[local];
      if (constant.kind != OperandKind::kWeight) continue;
      all_dense = false;
      if (constant.weight->rows) encoded = &graph_.value(operand);
    }
    std::vector<bool> used;
    for (ValueId output : node.outputs) {
      used.push_back(output != models::kNoValue && read_[output]);
    }
    if (IsMadeBefore(node, id, used)) return absl::OkStatus();
    const KernelRequest request = {graph_, args, operands, used,
                                   options_.config};
    if (encoded != nullptr) {
      REFRACT_RETURN_IF_ERROR(ChooseLookUp(request, *encoded, step));
    } else {
      REFRACT_RETURN_IF_ERROR(Choose(request, all_dense, step));
    }
    REFRACT_RETURN_IF_ERROR(CheckSharded(operands, step));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      step.outputs.push_back(used[i] ? AddLocal(node.outputs[i]) : kNoLocal);
    }
    // A view extends the lifetime of its operand's memory.
    if (step.view != nullptr && step.outputs[0] != kNoLocal) {
      plan_.locals[step.outputs[0]].root = plan_.locals[step.operands[0]].root;
    }
    plan_.steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  // Only native look-ups can ask other processes for their rows.
  absl::Status CheckSharded(const std::vector<ValueId>& operands,
                            const Step& step) const {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (plan_.constants[step.operands[i]].sharded == nullptr ||
          (step.kernel != nullptr && step.kernel->look_up() != nullptr)) {
        continue;
      }
      return absl::UnimplementedError(
          absl::StrCat("node ", step.node, " (", step.op, ") reads table '",
                       graph_.value(operands[i]).weight,
                       "', which is divided over CPU nodes, other than by a "
                       "native look-up; run refract partition without "
                       "--shards, which keeps the table whole"));
    }
    return absl::OkStatus();
  }

  // Whether an earlier step has the results of `node`: models slice a column,
  // or look up a table row, as often as they use it. Other targets translate
  // node by node, so only the CPU shares steps.
  bool IsMadeBefore(const Node& node, NodeId id,
                    const std::vector<bool>& used) {
    if (target_ != Target::kCpu) return false;
    const std::string key =
        NodeKey(node, [this](ValueId value) { return local_of_.at(value); });
    if (key.empty()) return false;
    const auto [found, is_new] =
        made_.try_emplace(key, static_cast<int>(plan_.steps.size()));
    if (is_new) return false;
    Step& step = plan_.steps[found->second];
    if (step.outputs.size() != used.size()) return false;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] && step.outputs[i] == kNoLocal) return false;
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) local_of_[node.outputs[i]] = step.outputs[i];
    }
    step.nodes.push_back(id);
    return true;
  }

  absl::Status Choose(const KernelRequest& request, bool all_dense,
                      Step& step) {
    // Cheapest first: sizes and views cost nothing at run time.
    step.size = SizeOp::Create(request.node());
    if (step.size != nullptr) return absl::OkStatus();
    if (all_dense) {
      auto view = ViewOp::Create(request);
      if (!view.ok()) return base::Annotate(view.status(), step.node);
      step.view = *std::move(view);
      if (step.view != nullptr) return absl::OkStatus();
      step.fused = Lower(request);
      if (!step.fused && target_ == Target::kCpu) {
        if (auto recurrent = LowerRecurrent(request)) {
          step.fused = *std::move(recurrent);
        }
      }
      if (step.fused) {
        // Kernel for folding; created again when constants are known.
        step.kernel = cpu::CreateFusedKernel(*step.fused, {}, {});
        return absl::OkStatus();
      }
      auto kernel = CreateCpuKernel(request);
      if (!kernel.ok()) return base::Annotate(kernel.status(), step.node);
      step.kernel = *std::move(kernel);
      if (step.kernel != nullptr) return absl::OkStatus();
    }
    REFRACT_ASSIGN_OR_RETURN(step.guard, cpu::LookUpGuard::Create(request));
    auto caller = runtime::aten::Caller::Create(request.node());
    if (absl::IsNotFound(caller.status())) {
      return absl::UnimplementedError(absl::StrCat(
          "operator ", step.op, " of node ", step.node,
          " has neither a native kernel nor a LibTorch implementation: ",
          caller.status().message()));
    }
    REFRACT_ASSIGN_OR_RETURN(step.caller, std::move(caller));
    return absl::OkStatus();
  }

  // The bytes of a table in a row format are known only to look-ups, and to
  // operators on sizes.
  absl::Status ChooseLookUp(const KernelRequest& request,
                            const models::Value& table, Step& step) {
    step.size = SizeOp::Create(request.node());
    if (step.size != nullptr) return absl::OkStatus();
    auto kernel = CreateCpuKernel(request);
    if (!kernel.ok()) return base::Annotate(kernel.status(), step.node);
    if (*kernel == nullptr || (*kernel)->look_up() == nullptr) {
      REFRACT_ASSIGN_OR_RETURN(const models::WeightView view,
                               plan_.weights->GetAsStored(table.weight));
      return absl::UnimplementedError(absl::StrCat(
          "node ", step.node, " (", step.op, ") reads table '", table.weight,
          "', which has rows of ", models::RowsText(*view.rows),
          "; only embedding, embedding_bag and index_select of dimension 0 "
          "do; import the table as float32"));
    }
    step.kernel = *std::move(kernel);
    return absl::OkStatus();
  }

  absl::Status AddOutputs() {
    for (ValueId id : part_.outputs) {
      PlanOutput output;
      REFRACT_ASSIGN_OR_RETURN(output.local, Read(id, "an output"));
      if (plan_.constants[output.local].kind == OperandKind::kWeight) {
        return absl::UnimplementedError(
            absl::StrCat("output '", graph_.value(id).name,
                         "' is a strided weight too large to be copied, or a "
                         "table in a row format"));
      }
      plan_.outputs.push_back(output);
    }
    return absl::OkStatus();
  }

  // Bytes of the results if the graph shows them; nullopt otherwise.
  std::optional<size_t> DeclaredBytes(const Step& step) const {
    size_t total = 0;
    for (int local : step.outputs) {
      if (local == kNoLocal) continue;
      const Value& value = graph_.value(plan_.locals[local].id);
      if (value.kind != ValueKind::kTensor) continue;
      if (!value.has_shape) return std::nullopt;
      base::Dims dims;
      for (const models::SymExpr& dim : value.shape) {
        if (!dim.constant()) return std::nullopt;
        dims.push_back(*dim.constant());
      }
      const auto bytes = base::ByteSize(value.dtype, dims);
      if (!bytes.ok()) return std::nullopt;
      total += *bytes;
    }
    return total;
  }

  bool MayFold(size_t index) const {
    const Step& step = plan_.steps[index];
    for (int local : step.operands) {
      if (!plan_.locals[local].is_constant) return false;
      if (plan_.constants[local].sharded != nullptr) return false;
    }
    if (step.view != nullptr || step.size != nullptr) return true;
    const Node& node = graph_.nodes[step.nodes.front()];
    const models::OpClass op_class = models::ClassOf(node.op);
    // Unknown operators may keep state; memory from empty() has undefined
    // values.
    if (models::IsRandom(node) || op_class == models::OpClass::kUnknown ||
        op_class == models::OpClass::kRandom ||
        absl::StrContains(step.op, "empty") || step.outputs.empty()) {
      return false;
    }
    if (const auto bytes = DeclaredBytes(step)) {
      return *bytes <= options_.max_folded_bytes;
    }
    // Without known shapes, folds only where a large result is unlikely;
    // FitsFolded() checks afterwards.
    size_t operand_bytes = 0;
    for (int local : step.operands) {
      operand_bytes += plan_.constants[local].tensor.bytes;
    }
    return operand_bytes <= options_.max_folded_bytes;
  }

  // Constant folding: runs steps that depend on constants alone. A step that
  // fails is kept, so that requests get its error.
  absl::Status Fold() {
    const size_t num_locals = plan_.locals.size();
    plan_.num_buffers = static_cast<int>(num_locals);
    for (size_t i = 0; i < num_locals; ++i) {
      plan_.locals[i].buffer = static_cast<int>(i);
    }
    // Every local gets a buffer of its own during folding, because results are
    // kept.
    RunContext::State state(nullptr, plan_);
    RunStats stats;
    std::vector<Step> kept;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Step& step = plan_.steps[i];
      if (MayFold(i) && RunStep(plan_, step, state, stats).ok() &&
          FitsFolded(step, state)) {
        Adopt(step, state);
      } else {
        kept.push_back(std::move(step));
      }
    }
    plan_.steps = std::move(kept);
    for (Local& local : plan_.locals) local.buffer = kNoBuffer;
    return absl::OkStatus();
  }

  bool FitsFolded(const Step& step, const RunContext::State& state) const {
    if (step.view != nullptr) return true;
    size_t total = 0;
    for (int local : step.outputs) {
      if (local == kNoLocal) continue;
      const Operand& operand = state.operands[local];
      if (operand.kind == OperandKind::kNone) return false;
      if (operand.kind == OperandKind::kTensor) total += operand.tensor.bytes;
    }
    return total <= options_.max_folded_bytes;
  }

  void Adopt(const Step& step, RunContext::State& state) {
    for (int local : step.outputs) {
      if (local == kNoLocal) continue;
      plan_.locals[local].is_constant = true;
      plan_.locals[local].root = local;
      plan_.constants[local] = state.operands[local];
      // The memory is kept until it is known which constants are read.
      folded_.push_back(
          {std::move(state.buffers[local]), std::move(state.results[local])});
    }
  }

  // Per graph value: whether it depends on weights alone. Computed over the
  // graph and not over the part, because a node's arithmetic must not depend on
  // the part in which its weights are packed.
  std::vector<bool> DependOnWeightsAlone() const {
    std::vector<bool> fixed(graph_.values.size(), false);
    for (size_t i = 0; i < fixed.size(); ++i) {
      fixed[i] = graph_.values[i].is_weight();
    }
    for (const Node& node : graph_.nodes) {
      const std::vector<ValueId> operands = models::InputsOf(node);
      const bool all = !operands.empty() && !models::IsRandom(node) &&
                       std::all_of(operands.begin(), operands.end(),
                                   [&](ValueId id) { return fixed[id]; });
      if (!all) continue;
      for (ValueId output : node.outputs) {
        if (output != models::kNoValue) fixed[output] = true;
      }
    }
    return fixed;
  }

  cpu::WeightForm DenseForm() const {
    switch (options_.config.dense_weights) {
      case models::DenseWeights::kBFloat16:
        return cpu::WeightForm::kBFloat16;
      case models::DenseWeights::kInt8:
        return cpu::WeightForm::kInt8;
      case models::DenseWeights::kFloat32:
        break;
    }
    return cpu::WeightForm::kFloat32;
  }

  void MakeFusedKernels() {
    const auto arena = std::make_shared<cpu::WeightArena>();
    plan_.packed_weights = arena;
    cpu::PackedWeights packed;
    const std::vector<bool> fixed = DependOnWeightsAlone();
    for (Step& step : plan_.steps) {
      if (!step.fused) continue;
      std::vector<const Operand*> constants;
      for (int local : step.operands) {
        constants.push_back(plan_.locals[local].is_constant
                                ? &plan_.constants[local]
                                : nullptr);
      }
      cpu::Packing packing = {cpu::WeightForm::kFloat32, arena, &packed};
      if (const MatMulOp* matmul = ProductOf(*step.fused)) {
        const ValueId b = plan_.locals[step.operands[matmul->b]].id;
        const auto* const dense = std::get_if<DenseOp>(&*step.fused);
        // Only dense layers in the usual orientation.
        const bool usual = dense == nullptr || !dense->column;
        if (usual && !matmul->batched && b != models::kNoValue && fixed[b]) {
          packing.form = DenseForm();
        }
      }
      step.kernel = cpu::CreateFusedKernel(*step.fused, constants, packing);
    }
  }

  // Keeps the memory of folded constants that a step still reads. Other folded
  // constants keep only their shapes.
  void DropUnusedConstants() {
    const ReadConstants read(plan_, target_ == Target::kCpu);
    for (Folded& folded : folded_) {
      const base::TensorView& result = folded.result.operand.tensor;
      if (read.Reads(folded.buffer.data(), folded.buffer.size())) {
        plan_.constant_buffers.push_back(std::move(folded.buffer));
      } else if (read.Reads(result.data, result.bytes)) {
        plan_.constant_results.push_back(std::move(folded.result));
      }
    }
    // Dense copies of weights that were only needed for folding.
    std::erase_if(plan_.constant_buffers, [&](const auto& buffer) {
      return !read.Reads(buffer.data(), buffer.size());
    });
  }

  struct Folded {
    base::AlignedBuffer buffer;
    runtime::aten::Result result;
  };

  const Graph& graph_;
  const Part& part_;
  const CompileOptions& options_;
  const Target target_;
  Plan plan_;
  absl::flat_hash_map<ValueId, int> local_of_;
  absl::flat_hash_map<std::string, int> made_;  // NodeKey → step
  std::vector<bool> read_;                      // per graph value
  std::vector<Folded> folded_;
};

}  // namespace

absl::StatusOr<Plan> CompilePlan(
    const Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, Target target) {
  return Compiler(graph, part, std::move(weights), options, target).Compile();
}

}  // namespace refract::runtime
