#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "runtime/cuda_aten/indices.h"
#include "runtime/cuda_aten/operators.h"
#include "runtime/torch/bind_torch.h"
#include "runtime/torch/convert_torch.h"
#include "runtime/torch/guards/guards_torch.h"
#include "runtime/torch/size_ops.h"

namespace refract::runtime::cuda_aten {
namespace {

using cuda::ForeignCall;
using cuda::ForeignKind;
using cuda::ForeignOperand;
using cuda::ForeignTensor;
using cuda_plan::ForeignOperandFacts;
using runtime::aten::Operand;
using runtime::aten::Slot;

absl::Status No(const std::string& why) {
  return absl::UnimplementedError(why);
}

at::ScalarType TypeOf(cuda::DType dtype) {
  switch (dtype) {
    case cuda::DType::kFloat32:
      return at::kFloat;
    case cuda::DType::kFloat16:
      return at::kHalf;
    case cuda::DType::kBFloat16:
      return at::kBFloat16;
    case cuda::DType::kInt32:
      return at::kInt;
    case cuda::DType::kInt64:
      return at::kLong;
    case cuda::DType::kBool:
      return at::kBool;
  }
  return at::kFloat;
}

Operand NumberOf(const ForeignOperand& from) {
  switch (from.kind) {
    case ForeignKind::kInteger:
      return runtime::aten::IntOperand(from.integer);
    case ForeignKind::kReal:
      return runtime::aten::FloatOperand(from.real);
    case ForeignKind::kTruth:
      return runtime::aten::BoolOperand(from.integer != 0);
    case ForeignKind::kNone:
    case ForeignKind::kTensor:
      break;
  }
  return {};
}

std::string Text(at::IntArrayRef sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

cuda::Status ToCuda(const absl::Status& status) {
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {};
    case absl::StatusCode::kInvalidArgument:
      return cuda::InvalidArgument(message);
    case absl::StatusCode::kResourceExhausted:
      return {cuda::Code::kResourceExhausted, message};
    case absl::StatusCode::kUnimplemented:
      return {cuda::Code::kUnimplemented, message};
    case absl::StatusCode::kUnavailable:
      return {cuda::Code::kUnavailable, message};
    default:
      return {cuda::Code::kInternal, message};
  }
}

// Whether LibTorch reports that the device has failed, now or in an earlier
// call: afterwards no call on it works.
bool SaysDeviceFailed(absl::string_view message) {
  return absl::StrContains(message, "CUDA error") ||
         absl::StrContains(message, "CUDA driver error") ||
         absl::StrContains(message, "CUBLAS_STATUS_EXECUTION_FAILED");
}

class AtenKernel final : public cuda::ForeignKernel {
 public:
  AtenKernel(std::string name, c10::OperatorHandle op,
             runtime::aten::Bound bound, const IndexRule* rule,
             runtime::aten::Guard guard, int gpu, Streams* streams)
      : name_(std::move(name)),
        op_(std::move(op)),
        bound_(std::move(bound)),
        rule_(rule),
        guard_(guard),
        gpu_(gpu),
        streams_(streams) {}

  cuda::Status Run(const ForeignCall& call, void* stream) const override {
    absl::Status status;
    // Errors are caught inside `body`: streams_->With() runs it with LibTorch's
    // current stream set to `stream`, so that LibTorch's kernels follow the
    // program's earlier work on that stream.
    const auto body = [&] {
      runtime::aten::UseOneThreadHere();
      status = runtime::aten::Guarded(name_, [&] { return RunHere(call); });
    };
    if (streams_ == nullptr) {
      body();
    } else {
      const std::string wrong = streams_->With(gpu_, stream, body);
      if (status.ok() && !wrong.empty()) {
        status = absl::InternalError(absl::StrCat(name_, ": ", wrong));
      }
    }
    if (!status.ok() && SaysDeviceFailed(status.message())) {
      status = absl::UnavailableError(status.message());
    }
    return ToCuda(status);
  }

 private:
  at::Device device() const {
    return gpu_ < 0 ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<int8_t>(gpu_));
  }

  // A view of the program's memory, without ownership: the memory plan says how
  // long it lives. Without target_device() LibTorch would ask the driver on
  // which device it is.
  at::Tensor View(void* data, at::ScalarType type, at::IntArrayRef dims,
                  at::IntArrayRef strides) const {
    return at::for_blob(data, dims)
        .strides(strides)
        .target_device(device())
        .options(at::TensorOptions().dtype(type).device(device()))
        .make_tensor();
  }
  at::Tensor View(const ForeignTensor& tensor) const {
    return View(tensor.data, TypeOf(tensor.dtype), tensor.dims, tensor.strides);
  }

  // Tensors are views of device memory; numbers are known on the CPU.
  class DeviceOperands final : public runtime::aten::OperandSource {
   public:
    DeviceOperands(const AtenKernel& kernel,
                   const std::vector<ForeignOperand>& operands)
        : kernel_(kernel), operands_(operands) {}
    bool IsNone(size_t operand) const override {
      return operands_[operand].kind == ForeignKind::kNone;
    }
    absl::StatusOr<at::Tensor> Tensor(size_t operand) const override {
      const ForeignOperand& from = operands_[operand];
      if (from.kind == ForeignKind::kTensor) return kernel_.View(from.tensor);
      return runtime::aten::ToTensor(NumberOf(from));
    }
    absl::StatusOr<c10::IValue> Number(size_t operand) const override {
      return runtime::aten::ToNumber(NumberOf(operands_[operand]));
    }

   private:
    const AtenKernel& kernel_;
    const std::vector<ForeignOperand>& operands_;
  };

  absl::Status RunHere(const ForeignCall& call) const {
    if (call.operands.size() != bound_.num_operands) {
      return absl::InternalError(absl::StrCat(name_, ": ", call.operands.size(),
                                              " operands, not ",
                                              bound_.num_operands));
    }
    const c10::InferenceMode no_gradient;
    torch::jit::Stack stack;
    const DeviceOperands operands(*this, call.operands);
    for (const Slot& slot : bound_.slots) {
      absl::StatusOr<c10::IValue> value = runtime::aten::Fill(slot, operands);
      if (!value.ok()) return base::Annotate(value.status(), name_);
      stack.push_back(*std::move(value));
    }
    if (guard_ != nullptr) guard_(stack);
    if (rule_ != nullptr) {
      REFRACT_RETURN_IF_ERROR(
          base::Annotate(CheckIndices(stack, call.faults), name_));
    }
    op_.callBoxed(stack);
    // LibTorch allocates results from its own pool. They are copied to their
    // places in the program's memory, on the same stream, and freed at the end
    // of this call; the pool orders their next use after the copy.
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) {
        results.push_back(value.toTensor());
      } else if (value.isTensorList()) {
        for (at::Tensor& tensor : value.toTensorVector()) {
          results.push_back(std::move(tensor));
        }
      } else {
        return absl::UnimplementedError(
            absl::StrCat(name_, ": gives ", value.tagKind()));
      }
    }
    if (results.size() != call.results.size()) {
      return absl::InternalError(absl::StrCat(
          name_, ": gives ", results.size(),
          " results, but the graph's node has ", call.results.size()));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (call.results[i].data == nullptr) continue;
      const at::Tensor out = View(call.results[i]);
      const at::Tensor& value = results[i];
      if (!value.defined() || value.sizes() != out.sizes() ||
          value.scalar_type() != out.scalar_type()) {
        return absl::InternalError(absl::StrCat(
            name_, ": result ", i, " is ",
            value.defined() ? absl::StrCat(c10::toString(value.scalar_type()),
                                           " ", Text(value.sizes()))
                            : "undefined",
            ", but the graph's node has ", c10::toString(out.scalar_type()),
            " ", Text(out.sizes())));
      }
      // `out` may be strided: columns of a concatenation, for instance.
      out.copy_(value);
    }
    return absl::OkStatus();
  }

  c10::IValue& Argument(torch::jit::Stack& stack,
                        absl::string_view name) const {
    const auto index = op_.schema().argumentIndexWithName(std::string(name));
    TORCH_CHECK(index.has_value(), "no argument ", std::string(name));
    return stack[static_cast<size_t>(*index)];
  }

  // Runs before a kernel uses the indices, wholly on the device: the CPU does
  // not wait for values. Wrong indices are added to `faults`, which the
  // instance downloads with the results, and replaced by 0, which every
  // non-empty table has. An empty dimension has no valid place; its size is
  // known here, so the request is refused at once.
  absl::Status CheckIndices(torch::jit::Stack& stack, int32_t* faults) const {
    const at::Tensor counter = View(faults, at::kInt, {}, {});
    // Comparison, count and replacement are operators of LibTorch on the call's
    // stream.
    const auto checked = [&](const at::Tensor& index, int64_t places) {
      const at::Tensor wrong =
          index.lt(rule_->from_end ? -places : 0).logical_or(index.ge(places));
      counter.add_(wrong.sum(at::kInt));
      return index.masked_fill(wrong, 0);
    };
    const auto too_few = [](int64_t places, const at::Tensor& index) {
      return places < 1 && index.numel() > 0;
    };
    constexpr char kEmpty[] =
        "the indexed dimension is empty, so every index is outside it";
    const at::Tensor table = Argument(stack, rule_->table).toTensor();
    c10::IValue& argument = Argument(stack, rule_->index);
    if (rule_->range == IndexRule::Range::kEach) {
      c10::List<std::optional<at::Tensor>> list;
      int64_t dim = 0;
      for (const c10::IValue& item : argument.toListRef()) {
        if (item.isNone()) {
          list.push_back(std::nullopt);
        } else {
          const at::Tensor index = item.toTensor();
          if (too_few(table.size(dim), index)) {
            return absl::InvalidArgumentError(kEmpty);
          }
          list.push_back(checked(index, table.size(dim)));
        }
        ++dim;
      }
      argument = std::move(list);
      return absl::OkStatus();
    }
    int64_t places = table.numel();
    if (rule_->range == IndexRule::Range::kDim) {
      const c10::IValue& dim = Argument(stack, "dim");
      // A number counts as one place.
      if (!dim.isNone()) {
        places = table.dim() == 0 ? 1 : table.size(dim.toInt());
      }
    } else if (rule_->range == IndexRule::Range::kFirstDim) {
      places = table.size(0);
    } else if (rule_->range == IndexRule::Range::kClasses) {
      places = Argument(stack, "num_classes").toInt();
    }
    const at::Tensor index = argument.toTensor();
    if (too_few(places, index)) return absl::InvalidArgumentError(kEmpty);
    argument = checked(index, places);
    return absl::OkStatus();
  }

  const std::string name_;
  const c10::OperatorHandle op_;
  const runtime::aten::Bound bound_;
  const IndexRule* const rule_;
  const runtime::aten::Guard guard_;  // of sizes only; null for most
  const int gpu_;
  Streams* const streams_;
};

class AtenOperators final : public cuda_plan::ForeignOperators {
 public:
  explicit AtenOperators(Options options) : options_(std::move(options)) {}

  absl::StatusOr<Made> Make(
      const models::Node& node,
      absl::Span<const ForeignOperandFacts> operands) override {
    const std::vector<std::string> parts = absl::StrSplit(node.op, '.');
    if (parts.size() != 3 || parts[0] != "aten") {
      return No("it is not one of ATen's operators");
    }
    const auto op = c10::Dispatcher::singleton().findSchema(
        c10::OperatorName(absl::StrCat("aten::", parts[1]),
                          parts[2] == "default" ? "" : parts[2]));
    if (!op) return No("LibTorch has no such operator");
    REFRACT_RETURN_IF_ERROR(MayRun(*op, node, operands));
    // Loaded after MayRun(), so that a model that is refused anyway does not
    // load libtorch_cuda with its memory on the GPU.
    if (options_.gpu >= 0 && streams_ == nullptr) {
      const absl::StatusOr<Streams*> streams = options_.load();
      if (!streams.ok()) return No(std::string(streams.status().message()));
      streams_ = *streams;
    }
    if (!op->hasComputedKernelForDispatchKey(options_.gpu < 0
                                                 ? c10::DispatchKey::CPU
                                                 : c10::DispatchKey::CUDA)) {
      return No("LibTorch has no kernel of it for this device");
    }
    runtime::aten::Bound bound;
    const std::string name = absl::StrCat(node.name, " (", node.op, ")");
    REFRACT_RETURN_IF_ERROR(runtime::aten::Guarded(name, [&]() -> absl::Status {
      const c10::InferenceMode no_gradient;
      REFRACT_ASSIGN_OR_RETURN(
          bound, runtime::aten::BindArguments(op->schema(), node));
      return absl::OkStatus();
    }));
    REFRACT_RETURN_IF_ERROR(Place(op->schema(), operands, bound));
    const IndexRule* const rule = FindIndexRule(node.op);
    const runtime::aten::OperatorRule sizes =
        runtime::aten::RuleOf(op->operator_name());
    // Guards of sizes run on the device, too. Guards of places were refused in
    // MayRun(), and guards of numbers are left out: a GPU does not trap at
    // integers that a processor cannot divide.
    const runtime::aten::Guard guard =
        sizes.looks_at == runtime::aten::LooksAt::kSizes ? sizes.guard
                                                         : nullptr;
    Made made;
    made.counts_faults = rule != nullptr;
    made.kernel = std::make_shared<AtenKernel>(
        name, *op, std::move(bound), rule, guard, options_.gpu, streams_);
    return made;
  }

 private:
  static absl::Status MayRun(const c10::OperatorHandle& op,
                             const models::Node& node,
                             absl::Span<const ForeignOperandFacts> operands) {
    for (const c10::Argument& argument : op.schema().arguments()) {
      if (argument.alias_info() != nullptr &&
          argument.alias_info()->isWrite()) {
        return No(
            absl::StrCat("it writes into its argument ", argument.name()));
      }
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded)) {
      return No("it draws random numbers");
    }
    const runtime::aten::OperatorRule checks =
        runtime::aten::RuleOf(op.operator_name());
    if (!checks.why_not.empty()) return No(checks.why_not);
    // Integers of weights are included: the check would wait for the device.
    if (checks.looks_at == runtime::aten::LooksAt::kPlaces) {
      return No(
          "it does not check integers such as offsets, and Refract checks them "
          "on CPUs only");
    }
    const IndexRule* const rule = FindIndexRule(node.op);
    // aten.index has the tag for its masks, which are refused below.
    if (rule == nullptr && (op.hasTag(at::Tag::dynamic_output_shape) ||
                            op.hasTag(at::Tag::data_dependent_output))) {
      return No("the size of its result depends on data");
    }
    // `index` and `index_put` take a list of indices, in which PyTorch also
    // accepts masks.
    const bool masks =
        rule != nullptr && rule->range == IndexRule::Range::kEach;
    // Element-wise operators compute with integers and never use them as
    // positions.
    const bool numbers = rule != nullptr || op.hasTag(at::Tag::pointwise) ||
                         IntegersAreNumbers(node.op);
    for (size_t i = 0; i < operands.size(); ++i) {
      const ForeignOperandFacts& operand = operands[i];
      if (!operand.is_tensor) continue;
      // The table comes first.
      if (masks && i > 0 && operand.dtype == base::DType::kBool) {
        return No(
            "one of its indices is a mask, so the size of its result depends "
            "on data");
      }
      const bool integers = operand.dtype != base::DType::kBool &&
                            !base::IsFloatingPoint(operand.dtype);
      if (integers && !operand.is_constant && !numbers) {
        return No(
            "it reads integers of the request, and no rule says whether they "
            "are indices: an index outside its table would end the GPU's work");
      }
    }
    return absl::OkStatus();
  }

  // Sets `device` arguments to this device, so that operators without a tensor
  // operand allocate there, and refuses number arguments that the device would
  // have to compute.
  absl::Status Place(const c10::FunctionSchema& schema,
                     absl::Span<const ForeignOperandFacts> operands,
                     runtime::aten::Bound& bound) const {
    const at::Device device =
        options_.gpu < 0
            ? at::Device(at::kCPU)
            : at::Device(at::kCUDA, static_cast<int8_t>(options_.gpu));
    for (size_t i = 0; i < bound.slots.size(); ++i) {
      Slot& slot = bound.slots[i];
      if (schema.arguments()[i].name() == "device") {
        slot = Slot();
        slot.constant = c10::IValue(device);
      }
      std::vector<size_t> numbers;
      if (slot.kind == Slot::Kind::kNumber) numbers.push_back(slot.operand);
      if (slot.kind == Slot::Kind::kIntList) {
        for (const Slot::Element& item : slot.elements) {
          if (item.operand >= 0) {
            numbers.push_back(static_cast<size_t>(item.operand));
          }
        }
      }
      for (const size_t operand : numbers) {
        if (operand < operands.size() && operands[operand].is_tensor) {
          return No(
              "one of its number arguments is computed on the device, but the "
              "call needs it on the CPU");
        }
      }
    }
    return absl::OkStatus();
  }

  const Options options_;
  Streams* streams_ = nullptr;
};

}  // namespace

std::unique_ptr<cuda_plan::ForeignOperators> MakeOperators(Options options) {
  return std::make_unique<AtenOperators>(std::move(options));
}

}  // namespace refract::runtime::cuda_aten
