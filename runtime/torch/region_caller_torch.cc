#include "runtime/torch/region_caller_torch.h"

#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"
#include "runtime/torch/convert_torch.h"
#include "runtime/torch/guards/guards_torch.h"
#include "runtime/torch/loop_limits.h"

namespace refract::runtime::aten {
namespace {

// The interpreter wraps an operator's message in a traceback of the script. The
// message follows a mark such as "RuntimeError: " on a later line.
absl::string_view Reason(absl::string_view text) {
  absl::string_view reason = FirstLine(text);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const absl::string_view mark :
         {"RuntimeError: ", "Error: ", "Exception: "}) {
      const size_t at = line.find(mark);
      if (at == absl::string_view::npos) continue;
      reason = line.substr(at + mark.size());
      if (!reason.empty()) return reason;
    }
  }
  return reason;
}

// The status that ended a loop of this thread's region. The interpreter turns
// exceptions into texts, so that a thrown status would lose its code.
thread_local absl::Status loop_status;

constexpr char kCheckRound[] = "refract::check_round";

// The interpreter calls it before each round of a loop.
void CheckRound(torch::jit::Stack& stack) {
  absl::Status status = CheckLoopRound(torch::jit::pop(stack).toInt());
  if (status.ok()) return;
  loop_status = std::move(status);
  throw std::runtime_error("the loop was ended");
}

const torch::jit::RegisterOperators check_round(
    {torch::jit::Operator(absl::StrCat(kCheckRound, "(int round) -> ()"),
                          CheckRound, c10::AliasAnalysisKind::CONSERVATIVE)});

// Puts the check in front of each loop's body, also in loops and branches
// within. The first input of a body is the number of its round.
void CheckRoundsIn(torch::jit::Block& block) {
  for (torch::jit::Node* node : block.nodes()) {
    for (torch::jit::Block* inner : node->blocks()) CheckRoundsIn(*inner);
    if (node->kind() != c10::prim::Loop) continue;
    torch::jit::Block& body = *node->blocks()[0];
    torch::jit::Node* check = block.owningGraph()->create(
        c10::Symbol::fromQualString(kCheckRound), {body.inputs()[0]},
        /*num_outputs=*/0);
    body.prependNode(check);
  }
}

class RegionCaller final : public Caller {
 public:
  RegionCaller(std::string name, torch::jit::Code code,
               std::vector<c10::TypeKind> inputs, size_t num_results)
      : name_(std::move(name)),
        code_(std::move(code)),
        inputs_(std::move(inputs)),
        num_results_(num_results) {}

  absl::Status Call(absl::Span<const Operand> operands,
                    std::vector<Result>& results) const override {
    if (operands.size() != inputs_.size()) {
      return absl::InternalError(absl::StrCat(
          name_, ": ", operands.size(), " operands, not ", inputs_.size()));
    }
    UseOneThreadHere();
    const size_t first = results.size();
    absl::Status status = Guarded(name_, [&]() -> absl::Status {
      // An earlier request on this thread may have left an error.
      loop_status = absl::OkStatus();
      try {
        return CallOrThrow(operands, results);
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        if (!loop_status.ok()) return base::Annotate(loop_status, name_);
        // An operator's refusal, or an exception that the model raises.
        return absl::InvalidArgumentError(
            absl::StrCat(name_, ": ", Reason(error.what())));
      }
    });
    if (status.ok() && results.size() - first != num_results_) {
      status = absl::InvalidArgumentError(
          absl::StrCat(name_, ": gives ", results.size() - first,
                       " results, but the graph's node has ", num_results_));
    }
    if (!status.ok()) results.resize(first);
    return status;
  }

 private:
  absl::Status CallOrThrow(absl::Span<const Operand> operands,
                           std::vector<Result>& results) const {
    const c10::InferenceMode no_gradient;
    torch::jit::Stack stack;
    stack.reserve(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      if (inputs_[i] == c10::TypeKind::TensorType) {
        REFRACT_ASSIGN_OR_RETURN(at::Tensor tensor, ToTensor(operands[i]));
        stack.emplace_back(std::move(tensor));
      } else {
        REFRACT_ASSIGN_OR_RETURN(const c10::IValue number,
                                 ToNumber(operands[i]));
        REFRACT_ASSIGN_OR_RETURN(c10::IValue cast,
                                 CastNumber(number, inputs_[i]));
        stack.push_back(std::move(cast));
      }
    }
    torch::jit::InterpreterState(code_).run(stack);
    for (const c10::IValue& value : stack) {
      // A script with several results returns one tuple, whose elements are the
      // node's results.
      if (!value.isTuple()) {
        REFRACT_RETURN_IF_ERROR(
            base::Annotate(AppendResult(value, results), name_));
        continue;
      }
      for (const c10::IValue& element : value.toTupleRef().elements()) {
        REFRACT_RETURN_IF_ERROR(
            base::Annotate(AppendResult(element, results), name_));
      }
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const torch::jit::Code code_;  // immutable; each run has a state of its own
  const std::vector<c10::TypeKind> inputs_;
  const size_t num_results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Caller>> CreateRegionCaller(
    const models::Node& node) {
  const models::Argument* script = node.FindArg(models::kRegionScriptArg);
  std::string archive;
  if (script == nullptr || !std::holds_alternative<std::string>(*script) ||
      !absl::Base64Unescape(std::get<std::string>(*script), &archive)) {
    return absl::InvalidArgumentError(absl::StrCat(
        node.name, ": its TorchScript is damaged; import the model again"));
  }
  std::unique_ptr<const Caller> caller;
  const absl::Status status = Guarded(node.name, [&]() -> absl::Status {
    std::istringstream in(archive);
    const torch::jit::Module module =
        torch::jit::load(in, at::Device(at::kCPU));
    // forward()'s self is left out: nothing reads it.
    const std::shared_ptr<torch::jit::Graph> graph =
        module.get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    GuardOperators(*graph->block());
    if (graph->inputs().size() != models::InputsOf(node).size() + 1 ||
        graph->inputs()[0]->hasUses()) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.name,
                       ": its TorchScript takes other inputs than the node; "
                       "import the model again"));
    }
    graph->eraseInput(0);
    CheckRoundsIn(*graph->block());
    std::vector<c10::TypeKind> inputs;
    for (const torch::jit::Value* input : graph->inputs()) {
      inputs.push_back(input->type()->kind());
    }
    caller = std::make_unique<RegionCaller>(
        absl::StrCat(node.name, " (TorchScript)"),
        torch::jit::Code(graph, node.name), std::move(inputs),
        node.outputs.size());
    return absl::OkStatus();
  });
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        status.message(),
        absl::StrContains(status.message(), "Unknown builtin op")
            ? " Give the library that has the operator with --op-library."
            : ""));
  }
  return caller;
}

}  // namespace refract::runtime::aten
