#include "models/aten/guards_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/aten/guard_checks_torch.h"

namespace refract::models::aten {
namespace {

struct GuardedOperator {
  const char* name;
  const char* overload;
  Guard guard;
};

template <int64_t kGates>
void Layer(Arguments arguments) {
  CheckRecurrentLayer(arguments, kGates);
}

template <int64_t kGates>
void Packed(Arguments arguments) {
  CheckRecurrentPacked(arguments, kGates);
}

template <size_t kValues, size_t kOffsets>
void Jagged(Arguments arguments) {
  CheckJagged(arguments, kValues, kOffsets);
}

constexpr GuardedOperator kGuarded[] = {
    {"aten::lstm", "input", Layer<4>},
    {"aten::lstm", "data", Packed<4>},
    {"aten::gru", "input", Layer<3>},
    {"aten::gru", "data", Packed<3>},
    {"aten::rnn_tanh", "input", Layer<1>},
    {"aten::rnn_tanh", "data", Packed<1>},
    {"aten::rnn_relu", "input", Layer<1>},
    {"aten::rnn_relu", "data", Packed<1>},
    {"aten::scaled_dot_product_attention", "", GuardAttention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "",
     GuardFlashAttention},
    {"aten::native_batch_norm", "", GuardBatchNorm},
    {"aten::_native_batch_norm_legit_no_training", "", GuardBatchNorm},
    {"aten::_weight_norm", "", GuardWeightNorm},
    {"aten::_weight_norm_interface", "", GuardWeightNorm},
    {"aten::embedding_bag", "", GuardBags},
    {"aten::embedding_bag", "padding_idx", GuardBags},
    {"aten::_embedding_bag", "", GuardBags},
    {"aten::_embedding_bag_forward_only", "", GuardBags},
    {"aten::segment_reduce", "", GuardSegments},
    {"quantized::embedding_bag_byte_rowwise_offsets", "", GuardQuantizedBags},
    {"quantized::embedding_bag_4bit_rowwise_offsets", "", GuardQuantizedBags},
    {"quantized::embedding_bag_2bit_rowwise_offsets", "", GuardQuantizedBags},
    {"fbgemm::int_nbit_split_embedding_codegen_lookup_function", "",
     GuardQuantizedTables},
    {"fbgemm::int_nbit_split_embedding_uvm_caching_codegen_lookup_function", "",
     GuardQuantizedTables},
    {"fbgemm::permute_2D_sparse_data", "", GuardPermutation},
    {"fbgemm::permute_1D_sparse_data", "", GuardPermutation},
    {"fbgemm::permute_sparse_data", "", GuardPermutation},
    {"fbgemm::segment_sum_csr", "", GuardSegmentSums},
    {"fbgemm::offsets_range", "", GuardOffsetsRange},
    {"fbgemm::pack_segments", "", GuardPackSegments},
    {"fbgemm::dense_to_jagged", "", GuardDenseToJagged},
    {"fbgemm::jagged_to_padded_dense", "", Jagged<0, 1>},
    {"fbgemm::jagged_1d_to_dense", "", Jagged<0, 1>},
    {"fbgemm::jagged_2d_to_dense", "", Jagged<0, 1>},
    {"fbgemm::jagged_softmax", "", Jagged<0, 1>},
    {"fbgemm::jagged_dense_elementwise_add", "", Jagged<0, 1>},
    {"fbgemm::jagged_dense_elementwise_mul", "", Jagged<0, 1>},
    {"fbgemm::jagged_dense_elementwise_add_jagged_output", "", Jagged<0, 1>},
    {"fbgemm::jagged_dense_dense_elementwise_add_jagged_output", "",
     Jagged<0, 1>},
    {"fbgemm::jagged_dense_bmm", "", Jagged<0, 1>},
    {"fbgemm::jagged_jagged_bmm", "", Jagged<0, 2>},
    {"fbgemm::batched_dense_vec_jagged_2d_mul", "", Jagged<1, 2>},
};

// The operator that a TorchScript graph calls instead: the guard, then `op`.
std::string GuardedName(const c10::OperatorName& op) {
  std::string name = op.name.substr(op.name.find("::") + 2);
  return "refract_guarded::" + name +
         (op.overload_name.empty() ? "" : "_" + op.overload_name);
}

void Register(const c10::OperatorHandle& op, Guard guard) {
  static std::mutex mutex;
  static std::set<std::string> registered;
  const std::string name = GuardedName(op.operator_name());
  const std::lock_guard<std::mutex> lock(mutex);
  if (!registered.insert(name).second) return;
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::registerOperator(torch::jit::Operator(
      name, "", schema.arguments(), schema.returns(),
      [op, guard](torch::jit::Stack& stack) {
        const size_t count = op.schema().arguments().size();
        guard(Arguments(stack.data() + stack.size() - count, count));
        op.callBoxed(stack);
      },
      c10::AliasAnalysisKind::FROM_SCHEMA));
}

}  // namespace

Guard GuardOf(const c10::OperatorName& op) {
  static const auto& guards = *[] {
    auto* made = new std::map<std::pair<std::string, std::string>, Guard>();
    for (const GuardedOperator& g : kGuarded) {
      (*made)[{g.name, g.overload}] = g.guard;
    }
    return made;
  }();
  const auto it = guards.find({op.name, op.overload_name});
  return it == guards.end() ? nullptr : it->second;
}

void GuardOperators(torch::jit::Block& block) {
  const std::vector<torch::jit::Node*> nodes(block.nodes().begin(),
                                             block.nodes().end());
  for (torch::jit::Node* node : nodes) {
    for (torch::jit::Block* inner : node->blocks()) GuardOperators(*inner);
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema == nullptr) continue;
    const Guard guard = GuardOf(schema->operator_name());
    if (guard == nullptr) continue;
    const auto op =
        c10::Dispatcher::singleton().findSchema(schema->operator_name());
    if (!op) continue;
    Register(*op, guard);
    torch::jit::Node* guarded = block.owningGraph()->create(
        c10::Symbol::fromQualString(GuardedName(schema->operator_name())),
        node->inputs(), node->outputs().size());
    guarded->setSourceRange(node->sourceRange());
    guarded->insertBefore(node);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      guarded->output(i)->copyMetadata(node->output(i));
      node->output(i)->replaceAllUsesWith(guarded->output(i));
    }
    node->destroy();
  }
}

}  // namespace refract::models::aten
