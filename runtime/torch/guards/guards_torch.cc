#include "runtime/torch/guards/guards_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/torch/guards/guard_checks_torch.h"
#include "runtime/torch/guards/guard_fbgemm_torch.h"

namespace refract::runtime::aten {
namespace {

struct GuardedOperator {
  const char* name;
  const char* overload;
  Guard guard;
  LooksAt looks_at = LooksAt::kSizes;
};

template <int64_t kGates>
void Layer(Arguments arguments) {
  CheckRecurrentLayer(arguments, kGates);
}

template <int64_t kGates>
void Packed(Arguments arguments) {
  CheckRecurrentPacked(arguments, kGates);
}

constexpr GuardedOperator kGuarded[] = {
    {"aten::lstm", "input", Layer<4>},
    {"aten::lstm", "data", Packed<4>, LooksAt::kPlaces},
    {"aten::gru", "input", Layer<3>},
    {"aten::gru", "data", Packed<3>, LooksAt::kPlaces},
    {"aten::rnn_tanh", "input", Layer<1>},
    {"aten::rnn_tanh", "data", Packed<1>, LooksAt::kPlaces},
    {"aten::rnn_relu", "input", Layer<1>},
    {"aten::rnn_relu", "data", Packed<1>, LooksAt::kPlaces},
    {"aten::scaled_dot_product_attention", "", GuardAttention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "",
     GuardFlashAttention},
    {"aten::native_batch_norm", "", GuardBatchNorm},
    {"aten::_native_batch_norm_legit_no_training", "", GuardBatchNorm},
    {"aten::_native_batch_norm_legit", "", GuardBatchNorm},
    {"aten::_native_batch_norm_legit", "no_stats", GuardBatchNorm},
    {"aten::_batch_norm_with_update", "", GuardBatchNorm},
    {"aten::_batch_norm_no_update", "", GuardBatchNorm},
    {"aten::_weight_norm", "", GuardWeightNorm},
    {"aten::_weight_norm_interface", "", GuardWeightNorm},
    {"aten::_fft_r2c", "", GuardTransform},
    {"aten::_fft_c2r", "", GuardTransform},
    {"aten::_fft_c2c", "", GuardTransform},
    {"aten::div", "Tensor_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::div", "Scalar_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::div_", "Tensor_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::div_", "Scalar_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::divide", "Tensor_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::divide", "Scalar_mode", GuardRoundedDivision, LooksAt::kNumbers},
    {"aten::floordiv", "int", GuardDivision, LooksAt::kNumbers},
    // TorchScript's operators on two numbers have no overload name.
    {"aten::floordiv", "", GuardDivision, LooksAt::kNumbers},
    {"aten::remainder", "int", GuardModulo, LooksAt::kNumbers},
    {"aten::remainder", "", GuardModulo, LooksAt::kNumbers},
    {"aten::divmod", "int", GuardDivision, LooksAt::kNumbers},
    {"aten::__round_to_zero_floordiv", "int", GuardModulo, LooksAt::kNumbers},
    {"aten::embedding_bag", "", GuardBags, LooksAt::kPlaces},
    {"aten::embedding_bag", "padding_idx", GuardBags, LooksAt::kPlaces},
    {"aten::_embedding_bag", "", GuardBags, LooksAt::kPlaces},
    {"aten::_embedding_bag_forward_only", "", GuardBags, LooksAt::kPlaces},
};

// Operators that trust their arguments and that no model of the survey calls
// (docs/reference/models.md): a refusal by name costs less than a check.
struct RefusedOperator {
  const char* name;
  const char* why;
};
constexpr RefusedOperator kRefused[] = {
    {"aten::lu_unpack",
     "it does not check its pivots before it uses them as indices"},
    {"aten::linalg_ldl_solve",
     "it does not check its pivots before it uses them as indices"},
    {"aten::linalg_ldl_solve.out",
     "it does not check its pivots before it uses them as indices"},
    {"aten::max_pool2d_with_indices_backward", "it does not check its indices"},
    {"aten::max_pool3d_with_indices_backward", "it does not check its indices"},
    {"aten::_unsafe_masked_index", "it does not check its indices"},
    {"aten::_unsafe_masked_index_put_accumulate",
     "it does not check its indices"},
    {"aten::segment_reduce", "it does not check its lengths and offsets"},
    {"aten::_upsample_bilinear2d_aa", "it does not check its scales"},
    {"aten::_upsample_bicubic2d_aa", "it does not check its scales"},
    {"aten::lcm", "the processor traps (SIGFPE) on the lowest integer"},
    {"aten::gcd.int", "the processor traps (SIGFPE) on the lowest integer"},
    {"aten::from_file", "it could read any file of this machine"},
    {"quantized::embedding_bag_byte_rowwise_offsets",
     "it does not check its ids"},
    {"quantized::embedding_bag_4bit_rowwise_offsets",
     "it does not check its ids"},
    {"quantized::embedding_bag_2bit_rowwise_offsets",
     "it does not check its ids"},
};

// Name of the operator that a TorchScript graph calls in place of `op`: it runs
// the guard, then `op`.
std::string GuardedName(const c10::OperatorName& op) {
  const size_t space = op.name.find("::");
  std::string name = "refract_guarded::";
  name += op.name.substr(0, space);
  name += '_';
  name += op.name.substr(space + 2);
  if (!op.overload_name.empty()) {
    name += '_';
    name += op.overload_name;
  }
  return name;
}

void Register(const torch::jit::Node& node, const c10::FunctionSchema& schema,
              const OperatorRule& rule) {
  // Operators register once per process, while several models may be compiled
  // at once.
  static std::mutex mutex;
  static std::set<std::string> registered;
  const std::string name = GuardedName(schema.operator_name());
  const std::lock_guard<std::mutex> lock(mutex);
  if (!registered.insert(name).second) return;
  const size_t count = schema.arguments().size();
  const auto op =
      c10::Dispatcher::singleton().findSchema(schema.operator_name());
  // The dispatcher lacks operators on Python's numbers: TorchScript has them.
  torch::jit::Operation call =
      op ? torch::jit::Operation(
               [op = *op](torch::jit::Stack& stack) { op.callBoxed(stack); })
         : node.getOperation();
  torch::jit::registerOperator(torch::jit::Operator(
      name, "", schema.arguments(), schema.returns(),
      [call = std::move(call), count, rule,
       op = c10::toString(schema.operator_name())](
          torch::jit::Stack& stack) mutable {
        // Arguments lie on top of the stack, the last one uppermost.
        TORCH_CHECK(rule.why_not.empty(), op, " is not run: ", rule.why_not);
        rule.guard(Arguments(stack.data() + stack.size() - count, count));
        call(stack);
      },
      c10::AliasAnalysisKind::FROM_SCHEMA));
}

}  // namespace

OperatorRule RuleOf(const c10::OperatorName& op) {
  static const auto& guards = *[] {
    auto* made =
        new std::map<std::pair<std::string, std::string>, OperatorRule>();
    for (const GuardedOperator& g : kGuarded) {
      (*made)[{g.name, g.overload}] = {.guard = g.guard,
                                       .looks_at = g.looks_at};
    }
    return made;
  }();
  // fbgemm's operators are allowed by name and all others refused, because most
  // trust their arguments (guard_fbgemm_torch.cc).
  constexpr char kFbgemm[] = "fbgemm::";
  if (op.name.rfind(kFbgemm, 0) == 0) {
    const FbgemmRule rule = RuleOfFbgemm(op.name.substr(sizeof(kFbgemm) - 1));
    return {.guard = rule.guard,
            .looks_at = LooksAt::kPlaces,
            .why_not = rule.may_run ? "" : rule.why_not};
  }
  // Compared with the overload, which toString() appends if there is one.
  for (const RefusedOperator& refused : kRefused) {
    if (c10::toString(op) == refused.name) return {.why_not = refused.why};
  }
  if (op.name.rfind("aten::special_", 0) == 0 &&
      op.name.find("_polynomial_") != std::string::npos) {
    return {.why_not = "its run time grows without bound with its degrees"};
  }
  const auto it = guards.find({op.name, op.overload_name});
  return it == guards.end() ? OperatorRule() : it->second;
}

void GuardOperators(torch::jit::Block& block) {
  // A copy of the list, since nodes are replaced while it is walked.
  const std::vector<torch::jit::Node*> nodes(block.nodes().begin(),
                                             block.nodes().end());
  for (torch::jit::Node* node : nodes) {
    for (torch::jit::Block* inner : node->blocks()) GuardOperators(*inner);
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema == nullptr) continue;
    const OperatorRule rule = RuleOf(schema->operator_name());
    if (rule.guard == nullptr && rule.why_not.empty()) continue;
    Register(*node, *schema, rule);
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

}  // namespace refract::runtime::aten
