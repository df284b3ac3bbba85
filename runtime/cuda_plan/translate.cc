#include "runtime/cuda_plan/translate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/compile/compiler.h"
#include "runtime/compile/dims.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

// Decides before anything is emitted which results are written side by side:
// the operands of an interaction, or of a `cat` or `stack` of matrices. A
// producer must know its place when it is emitted, which is before its reader.
class Groups {
 public:
  Groups(const Plan& plan, Emitter& emitter) : plan_(plan), emitter_(emitter) {}

  void Find() {
    for (const Step& step : plan_.steps) {
      if (step.fused) {
        // The interaction kernel reads the first operand (the dense vector)
        // from a matrix of its own, so that it needs no place in the group.
        if (std::holds_alternative<InteractionOp>(*step.fused)) {
          Add(step, {step.operands.begin() + 1, step.operands.end()});
        }
        continue;
      }
      if (step.nodes.size() != 1 || step.outputs.size() != 1 ||
          step.outputs[0] == kNoLocal) {
        continue;
      }
      const models::Node& node = emitter_.graph().nodes[step.nodes[0]];
      const models::Lowering lowering = models::LoweringOf(node.op);
      const bool stack = lowering == models::Lowering::kStack;
      if (!stack && lowering != models::Lowering::kCat) continue;
      if (plan_.locals[step.outputs[0]].dtype != base::DType::kFloat32) {
        continue;
      }
      const NodeArgs args(node);
      const int rank = plan_.locals[step.outputs[0]].rank;
      const auto dim =
          args.Has("dim") ? args.IntLiteral("dim") : std::optional<int64_t>(0);
      // Only rows that lie side by side: `cat` of matrices along their columns,
      // or `stack` of matrices as dimension 1. In both an item's operands are
      // adjacent columns.
      if (!dim || rank != (stack ? 3 : 2)) continue;
      if ((*dim < 0 ? *dim + rank : *dim) != 1) continue;
      Add(step, step.operands);
    }
  }

 private:
  void Add(const Step& step, const std::vector<int>& locals) {
    std::vector<int64_t> widths;
    int64_t total = 0;
    std::optional<Size> rows;
    // All operands need the same rows and fixed widths, or there is no group
    // and the step copies its operands.
    for (const int local : locals) {
      const absl::StatusOr<Sizes> dims = emitter_.DimsOfLocal(local);
      if (!dims.ok() || dims->size() != 2 || (*dims)[0].constant() ||
          !(*dims)[1].constant() || *(*dims)[1].constant() < 1 ||
          (rows && !(*rows == (*dims)[0]))) {
        return;
      }
      rows = (*dims)[0];
      widths.push_back(*(*dims)[1].constant());
      total += widths.back();
    }
    if (!rows) return;
    const int group = emitter_.NewGroup(
        absl::StrCat(plan_.locals[step.outputs[0]].name, ".parts"), *rows,
        total);
    emitter_.SetGroup(step, group);
    int64_t first = 0;
    for (size_t i = 0; i < locals.size(); ++i) {
      emitter_.Want(locals[i], group, first, widths[i]);
      first += widths[i];
    }
  }

  const Plan& plan_;
  Emitter& emitter_;
};

// A program under construction.
class Emission {
 public:
  Emission(const models::Graph& graph, const Plan& plan,
           const TranslateOptions& options, const models::SymbolBindings& sizes,
           const std::vector<BagRoom>& rooms, ConstantPool& pool)
      : graph_(graph),
        plan_(plan),
        options_(options),
        emitter_(graph, plan, options, sizes, rooms, pool) {
    for (size_t i = 0; i < plan.locals.size(); ++i) {
      local_of_[plan.locals[i].id] = static_cast<int>(i);
    }
  }

  // Order matters: groups are found before inputs are added, because an input
  // may lie in a group; inputs come before steps; outputs that no step wrote in
  // place come last.
  absl::StatusOr<Translation> Run() {
    Groups(plan_, emitter_).Find();
    const absl::Status inputs = emitter_.AddInputs();
    if (!inputs.ok()) return Refuse(inputs);
    std::vector<std::string> lines;
    for (const Step& step : plan_.steps) {
      if (step.size != nullptr) {
        emitter_.AddNumber(step);
        continue;
      }
      const size_t before = emitter_.num_ops();
      const absl::Status status = Emit(step);
      if (!status.ok()) return Refuse(step, status);
      lines.push_back(absl::StrCat(step.node, " ", step.op, ": ",
                                   emitter_.Describe(before)));
    }
    absl::StatusOr<Translation> result = emitter_.Finish();
    if (!result.ok()) return Refuse(result.status());
    result->steps = std::move(lines);
    return result;
  }

 private:
  absl::Status Emit(const Step& step) {
    if (step.fused) {
      // An operator whose own form does not fit goes to LibTorch if it is
      // alone: LibTorch has no form of several merged operators.
      const size_t progress = emitter_.progress();
      absl::Status own = EmitFused(step, emitter_);
      if (step.nodes.size() != 1) return own;
      return OrForeign(
          std::move(own), progress,
          {graph_.nodes[step.nodes[0]], step.operands, step.outputs, step},
          emitter_);
    }
    if (step.nodes.size() == 1) {
      return EmitNode(
          {graph_.nodes[step.nodes[0]], step.operands, step.outputs, step},
          options_.compile, emitter_);
    }
    // Look-ups that the CPU fetches together. Here, operators that read tables
    // are merged after all is emitted (cuda::MergeTables()).
    for (const models::NodeId id : step.nodes) {
      const models::Node& node = graph_.nodes[id];
      NodeStep one = {node, {}, {}, step};
      for (const models::ValueId operand : models::InputsOf(node)) {
        one.operands.push_back(local_of_.at(operand));
      }
      for (const models::ValueId output : node.outputs) {
        const auto found = local_of_.find(output);
        one.outputs.push_back(found == local_of_.end() ? kNoLocal
                                                       : found->second);
      }
      REFRACT_RETURN_IF_ERROR(EmitNode(one, options_.compile, emitter_));
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(const absl::Status& why) const {
    return absl::Status(
        why.code(), absl::StrCat("model ", options_.model, " cannot run on ",
                                 options_.device, ": ", why.message()));
  }
  absl::Status Refuse(const Step& step, const absl::Status& why) const {
    return absl::Status(
        why.code(),
        absl::StrCat("operator ", step.op, " (node ", step.node, ") of model ",
                     options_.model, " cannot run on ", options_.device, ": ",
                     why.message()));
  }

  const models::Graph& graph_;
  const Plan& plan_;
  const TranslateOptions& options_;
  Emitter emitter_;
  absl::flat_hash_map<models::ValueId, int> local_of_;
};

}  // namespace

const char* Name(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kFloat16:
      return "fp16";
    case Precision::kBFloat16:
      return "bf16";
  }
  return "unknown";
}

// Memory to which the weights of translations may point.
struct Translator::Kept {
  Plan plan;
  ConstantPool pool;
};

Translator::Translator(const models::Graph& graph, TranslateOptions options)
    : graph_(graph),
      options_(std::move(options)),
      kept_(std::make_shared<Kept>()) {}
Translator::~Translator() = default;

absl::StatusOr<std::unique_ptr<Translator>> Translator::Create(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    TranslateOptions options) {
  for (const auto& [name, value] : {std::pair{"max_batch", options.max_batch},
                                    {"max_size", options.max_size}}) {
    if (value >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ", wanted ≥ 1"));
  }
  std::unique_ptr<Translator> translator(
      new Translator(graph, std::move(options)));
  REFRACT_ASSIGN_OR_RETURN(translator->kept_->plan,
                           CompilePlan(graph, part, std::move(weights),
                                       translator->options_.compile));
  const FoundBags found = FindBagInputs(graph, part);
  std::vector<bool> entries(part.inputs.size(), false);
  const TranslateOptions& own = translator->options_;
  // Room for bags is counted per row of the batch, so that a program with a
  // fixed batch has none; the number of entries is a free size there.
  if (found.why_not.empty() && !own.fix_batch) {
    const int64_t most =
        own.max_size <= std::numeric_limits<int64_t>::max() / own.max_batch
            ? own.max_size * own.max_batch
            : std::numeric_limits<int64_t>::max();
    translator->rooms_ =
        RoomForBags(graph, part, found.bags, most, own.entry_memory);
    for (const BagInputs& bag : found.bags) {
      for (const size_t i : bag.entries) entries[i] = true;
    }
  }
  absl::StatusOr<FreeSizes> sizes = FreeSizes::Find(
      graph, part, own.max_size, entries,
      own.fix_batch ? std::optional(std::min(own.max_batch, own.max_size))
                    : std::nullopt);
  if (!sizes.ok()) {
    return absl::Status(
        sizes.status().code(),
        absl::StrCat("model ", translator->options_.model, " cannot run on ",
                     translator->options_.device, ": ",
                     sizes.status().message()));
  }
  translator->sizes_ = *std::move(sizes);
  // Weights packed for the CPU are not needed.
  translator->kept_->plan.packed_weights.reset();
  for (Step& step : translator->kept_->plan.steps) step.kernel.reset();
  return translator;
}

absl::StatusOr<std::unique_ptr<Translator>> Translator::CreateForSingleRequests(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const TranslateOptions& options, bool rows_alone) {
  absl::StatusOr<std::unique_ptr<Translator>> by_rows =
      Create(graph, part, weights, options);
  // Independent rows need no fixed batch: an error of Create() is final.
  if (rows_alone) return by_rows;
  absl::Status status = by_rows.status();
  if (status.ok()) {
    // Most refusals appear only when operators are emitted, so that one program
    // is translated on trial.
    status = (*by_rows)->Translate((*by_rows)->sizes().Smallest()).status();
  }
  if (!absl::IsUnimplemented(status)) return by_rows;
  TranslateOptions fixed = options;
  fixed.fix_batch = true;
  fixed.max_batch = options.max_size;
  return Create(graph, part, std::move(weights), std::move(fixed));
}

absl::StatusOr<Translation> Translator::Translate(const SizeValues& values) {
  // With other sizes the memory for rows depends on them, so the program is
  // checked for one row, and its user finds the rows that fit.
  TranslateOptions options = options_;
  if (!sizes_.empty() || options.fix_batch) options.max_batch = 1;
  const models::SymbolBindings bindings = sizes_.Bind(values);
  REFRACT_ASSIGN_OR_RETURN(
      Translation result,
      Emission(graph_, kept_->plan, options, bindings, rooms_, kept_->pool)
          .Run());
  result.owned = kept_;
  return result;
}

absl::StatusOr<Translation> Translate(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const TranslateOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Translator> translator,
      Translator::Create(graph, part, std::move(weights), options));
  if (!translator->sizes().empty()) {
    const FreeSize& size = translator->sizes().all()[0];
    return absl::UnimplementedError(
        absl::StrCat("model ", options.model, " cannot run on ", options.device,
                     ": input ", size.input_name, ": a size of ",
                     size.input_name, " is ", size.expr.ToString(), ", and ",
                     size.symbol, " differs from request to request"));
  }
  return translator->Translate({});
}

}  // namespace refract::runtime::cuda_plan
