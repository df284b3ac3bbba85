#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "runtime/fusion/lower.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::Lowering;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool GivesTruth(ElementCode code) {
  return code == ElementCode::kNot ||
         (code >= ElementCode::kEqual && code <= ElementCode::kOr);
}

// Reads one node's arguments into a chain of one operator. Inputs are numbered
// as they are added and instructions after all inputs, whose number is known
// only at the end: until Finish() the result of instruction n is kInstructions
// + n.
class Reader {
 public:
  explicit Reader(const KernelRequest& request) : request_(request) {}

  // An argument as an input: a tensor of `dtype`, a size or a literal. -1 when
  // it is neither.
  int Input(absl::string_view name, DType dtype = DType::kFloat32) {
    const int operand = request_.args.OperandOf(name);
    if (operand != kNoOperand) {
      if (request_.operand(operand).kind == models::ValueKind::kTensor &&
          !request_.IsTensor(operand, dtype)) {
        return -1;
      }
      return Add({operand, 0.0f});
    }
    const auto number = Number(name);
    return number ? Add({kNoOperand, *number}) : -1;
  }

  int AddNumber(float number) { return Add({kNoOperand, number}); }

  // A literal; nullopt when it is something else or absent.
  std::optional<float> Number(absl::string_view name) const {
    const models::Argument* argument = request_.node().FindArg(name);
    if (argument == nullptr) return std::nullopt;
    if (const auto* i = std::get_if<int64_t>(argument)) {
      return static_cast<float>(*i);
    }
    if (const auto* f = std::get_if<double>(argument)) {
      return static_cast<float>(*f);
    }
    if (const auto* b = std::get_if<bool>(argument)) return *b ? 1.0f : 0.0f;
    return std::nullopt;
  }

  // A literal, or `missing` where it is absent or None; nullopt when it comes
  // with a request.
  std::optional<float> NumberOr(absl::string_view name, float missing) const {
    return request_.args.Has(name) ? Number(name) : missing;
  }

  bool IsTensor(absl::string_view name, DType dtype) const {
    const int operand = request_.args.OperandOf(name);
    return operand != kNoOperand && request_.IsTensor(operand, dtype);
  }

  // Instructions come after all inputs: an argument is an input, or
  // Result(n) for the n-th instruction.
  int Result(int instruction) const { return kInstructions + instruction; }
  void Run(ElementInstruction instruction) {
    chain_.code.push_back(instruction);
  }

  std::optional<ElementChainOp> Finish() {
    const int num_inputs = static_cast<int>(chain_.inputs.size());
    for (ElementInstruction& instruction : chain_.code) {
      for (int* argument : {&instruction.a, &instruction.b, &instruction.c}) {
        if (*argument >= kInstructions) {
          *argument += num_inputs - kInstructions;
        }
      }
    }
    const bool truth = GivesTruth(chain_.code.back().code);
    const models::Value& output =
        request_.graph.value(request_.node().outputs[0]);
    // LibTorch promotes some results to other types (float64 numbers, int64
    // tensors), which chains do not compute.
    const DType promised = truth ? DType::kBool : DType::kFloat32;
    if (output.dtype != promised) return std::nullopt;
    chain_.outputs.push_back({static_cast<int>(chain_.code.size()) - 1, truth});
    return std::move(chain_);
  }

 private:
  static constexpr int kInstructions = 1 << 16;
  int Add(ElementInput input) {
    chain_.inputs.push_back(input);
    return static_cast<int>(chain_.inputs.size()) - 1;
  }

  const KernelRequest& request_;
  ElementChainOp chain_;
};

using Chain = std::optional<ElementChainOp>;

Chain Unary(Reader& reader, ElementInstruction instruction,
            DType dtype = DType::kFloat32) {
  if (!reader.IsTensor("self", dtype)) return std::nullopt;
  instruction.a = reader.Input("self", dtype);
  reader.Run(instruction);
  return reader.Finish();
}

Chain Binary(const KernelRequest& request, Reader& reader, ElementCode code) {
  const auto alpha = reader.NumberOr("alpha", 1.0f);
  if (!alpha || !reader.IsTensor("self", DType::kFloat32)) return std::nullopt;
  // div(…, rounding_mode) is another function.
  if (request.args.Has("rounding_mode")) return std::nullopt;
  const int self = reader.Input("self");
  int other = reader.Input("other");
  if (other < 0) return std::nullopt;
  int done = 0;
  if (*alpha != 1.0f) {
    reader.Run({ElementCode::kScale, other, -1, -1, *alpha});
    other = reader.Result(done++);
  }
  reader.Run({code, self, other});
  return reader.Finish();
}

// other − alpha × self
Chain ReverseSubtract(Reader& reader) {
  const auto alpha = reader.NumberOr("alpha", 1.0f);
  if (!alpha || !reader.IsTensor("self", DType::kFloat32)) return std::nullopt;
  int self = reader.Input("self");
  const int other = reader.Input("other");
  if (other < 0) return std::nullopt;
  if (*alpha != 1.0f) {
    reader.Run({ElementCode::kScale, self, -1, -1, *alpha});
    self = reader.Result(0);
  }
  reader.Run({ElementCode::kSubtract, other, self});
  return reader.Finish();
}

Chain Power(Reader& reader) {
  const auto exponent = reader.Number("exponent");
  if (!exponent || !reader.IsTensor("self", DType::kFloat32)) {
    return std::nullopt;
  }
  ElementCode code;
  if (*exponent == 2.0f) {
    // LibTorch computes these exponents by the same operations and not by
    // pow().
    code = ElementCode::kSquare;
  } else if (*exponent == 0.5f) {
    code = ElementCode::kSqrt;
  } else if (*exponent == -0.5f) {
    code = ElementCode::kReciprocalSqrt;
  } else if (*exponent == -1.0f) {
    code = ElementCode::kReciprocal;
  } else {
    return std::nullopt;
  }
  return Unary(reader, {code});
}

// A bound that is NaN makes every result NaN in LibTorch; kClamp would ignore
// it.
Chain Clamp(Reader& reader, std::optional<float> low,
            std::optional<float> high) {
  if (!low || !high || std::isnan(*low) || std::isnan(*high)) {
    return std::nullopt;
  }
  return Unary(reader, {ElementCode::kClamp, -1, -1, -1, *low, *high});
}

Chain Gelu(const KernelRequest& request, Reader& reader) {
  const models::Argument* how = request.node().FindArg("approximate");
  const auto* text = how == nullptr ? nullptr : std::get_if<std::string>(how);
  if (how != nullptr && text == nullptr) return std::nullopt;
  const bool tanh = text != nullptr && *text == "tanh";
  if (text != nullptr && !tanh && *text != "none") return std::nullopt;
  return Unary(reader, {tanh ? ElementCode::kGeluTanh : ElementCode::kGelu});
}

// where(condition, self, other), masked_fill(self, mask, value)
Chain Select(Reader& reader, absl::string_view condition,
             absl::string_view then, absl::string_view otherwise) {
  if (!reader.IsTensor(condition, DType::kBool)) return std::nullopt;
  const int a = reader.Input(condition, DType::kBool);
  const int b = reader.Input(then);
  const int c = reader.Input(otherwise);
  if (b < 0 || c < 0) return std::nullopt;
  reader.Run({ElementCode::kSelect, a, b, c});
  return reader.Finish();
}

Chain Logical(const KernelRequest& request, Reader& reader, ElementCode code) {
  if (!request.args.Has("other")) return Unary(reader, {code}, DType::kBool);
  if (!reader.IsTensor("self", DType::kBool) ||
      !reader.IsTensor("other", DType::kBool)) {
    return std::nullopt;
  }
  const int a = reader.Input("self", DType::kBool);
  const int b = reader.Input("other", DType::kBool);
  reader.Run({code, a, b});
  return reader.Finish();
}

// addcmul, addcdiv with value 1: self + tensor1 × tensor2, self + tensor1 ÷
// tensor2.
Chain AddProduct(Reader& reader, ElementCode code) {
  const auto value = reader.NumberOr("value", 1.0f);
  if (!value || *value != 1.0f || !reader.IsTensor("self", DType::kFloat32) ||
      !reader.IsTensor("tensor1", DType::kFloat32) ||
      !reader.IsTensor("tensor2", DType::kFloat32)) {
    return std::nullopt;
  }
  const int self = reader.Input("self");
  const int a = reader.Input("tensor1");
  const int b = reader.Input("tensor2");
  reader.Run({code, a, b});
  reader.Run({ElementCode::kAdd, self, reader.Result(0)});
  return reader.Finish();
}

// bool → float32
Chain Cast(const KernelRequest& request, Reader& reader) {
  if (request.operands.empty() || !request.IsTensor(0, DType::kBool)) {
    return std::nullopt;
  }
  return Unary(reader, {ElementCode::kScale, -1, -1, -1, 1.0f}, DType::kBool);
}

// Batch norm with given statistics, over the last of two dimensions:
// (x − mean) × 1/√(var + eps) × weight + bias.
Chain BatchNorm(const KernelRequest& request, Reader& reader) {
  const NodeArgs& args = request.args;
  const int input = args.OperandOf("input");
  if (input == kNoOperand || !request.IsTensor(input, DType::kFloat32) ||
      request.rank(input) != 2 || args.BoolLiteral("training") != false) {
    return std::nullopt;
  }
  const auto epsilon = reader.Number("eps");
  for (absl::string_view name : {"running_mean", "running_var"}) {
    if (!reader.IsTensor(name, DType::kFloat32)) return std::nullopt;
  }
  if (!epsilon) return std::nullopt;
  const int x = reader.Input("input");
  const int mean = reader.Input("running_mean");
  const int variance = reader.Input("running_var");
  const int eps = reader.AddNumber(*epsilon);
  reader.Run({ElementCode::kSubtract, x, mean});
  reader.Run({ElementCode::kAdd, variance, eps});
  reader.Run({ElementCode::kReciprocalSqrt, reader.Result(1)});
  reader.Run({ElementCode::kMultiply, reader.Result(0), reader.Result(2)});
  int done = 4;
  const struct {
    absl::string_view name;
    ElementCode code;
  } affine[] = {{"weight", ElementCode::kMultiply},
                {"bias", ElementCode::kAdd}};
  for (const auto& [name, code] : affine) {
    if (!args.Has(name)) continue;
    if (!reader.IsTensor(name, DType::kFloat32)) return std::nullopt;
    reader.Run({code, reader.Result(done - 1), reader.Input(name)});
    ++done;
  }
  return reader.Finish();
}

// x > 0 ? x : weight × x, of one weight or one per column.
Chain Prelu(const KernelRequest& request, Reader& reader) {
  const int self = request.args.OperandOf("self");
  const int weight = request.args.OperandOf("weight");
  if (!reader.IsTensor("self", DType::kFloat32) ||
      !reader.IsTensor("weight", DType::kFloat32) || request.rank(weight) > 1) {
    return std::nullopt;
  }
  // Columns are LibTorch's dimension 1.
  const bool is_single = request.rank(weight) == 0 ||
                         request.operand(weight).shape[0].constant() == 1;
  if (!is_single && request.rank(self) != 2) return std::nullopt;
  const int x = reader.Input("self");
  const int slope = reader.Input("weight");
  const int zero = reader.AddNumber(0.0f);
  reader.Run({ElementCode::kGreater, x, zero});
  reader.Run({ElementCode::kMultiply, slope, x});
  reader.Run({ElementCode::kSelect, reader.Result(0), x, reader.Result(1)});
  return reader.Finish();
}

// zeros_like, ones_like, full_like: a number in the shape of `self`, whatever
// its elements are.
Chain Filled(Reader& reader, std::optional<float> number) {
  if (!number || !reader.IsTensor("self", DType::kFloat32)) {
    return std::nullopt;
  }
  const int self = reader.Input("self");
  const int yes = reader.AddNumber(1.0f);
  reader.Run({ElementCode::kSelect, yes, reader.AddNumber(*number), self});
  return reader.Finish();
}

bool RanksAreKnown(const KernelRequest& request) {
  for (size_t i = 0; i < request.operands.size(); ++i) {
    const int operand = static_cast<int>(i);
    if (request.operand(operand).kind == models::ValueKind::kTensor &&
        !request.HasRank(operand)) {
      return false;
    }
  }
  return !request.operands.empty();
}

}  // namespace

std::optional<ElementChainOp> LowerElements(const KernelRequest& request) {
  const models::Operator& op = models::OperatorOf(request.node().op);
  const models::Lowering lowering = request.lowering();
  if (lowering == Lowering::kNone || !RanksAreKnown(request)) {
    return std::nullopt;
  }
  Reader reader(request);
  switch (lowering) {
    case Lowering::kUnary:
      return op.element ? Unary(reader, {*op.element}) : std::nullopt;
    case Lowering::kBinary:
      return op.element ? Binary(request, reader, *op.element) : std::nullopt;
    case Lowering::kReverseSubtract:
      return ReverseSubtract(reader);
    case Lowering::kAddProduct:
      return AddProduct(reader, *op.element);
    case Lowering::kLogical:
      return Logical(request, reader, *op.element);
    case Lowering::kPow:
      return Power(reader);
    case Lowering::kClamp:
      return Clamp(reader, reader.NumberOr("min", -kInfinity),
                   reader.NumberOr("max", kInfinity));
    case Lowering::kClampMin:
      return Clamp(reader, reader.NumberOr("min", -kInfinity), kInfinity);
    case Lowering::kClampMax:
      return Clamp(reader, -kInfinity, reader.NumberOr("max", kInfinity));
    case Lowering::kHardtanh:
      return Clamp(reader, reader.NumberOr("min_val", -1.0f),
                   reader.NumberOr("max_val", 1.0f));
    case Lowering::kRelu6:
      return Clamp(reader, 0.0f, 6.0f);
    case Lowering::kLeakyRelu: {
      const auto slope = reader.NumberOr("negative_slope", 0.01f);
      if (!slope) return std::nullopt;
      return Unary(reader, {ElementCode::kLeakyRelu, -1, -1, -1, *slope});
    }
    case Lowering::kElu: {
      const auto alpha = reader.NumberOr("alpha", 1.0f);
      if (!alpha || reader.NumberOr("scale", 1.0f) != 1.0f ||
          reader.NumberOr("input_scale", 1.0f) != 1.0f) {
        return std::nullopt;
      }
      return Unary(reader, {ElementCode::kElu, -1, -1, -1, *alpha});
    }
    case Lowering::kPrelu:
      return Prelu(request, reader);
    case Lowering::kGelu:
      return Gelu(request, reader);
    case Lowering::kBatchNorm:
      return BatchNorm(request, reader);
    case Lowering::kWhere:
      return Select(reader, "condition", "self", "other");
    case Lowering::kMaskedFill:
      return Select(reader, "mask", "value", "self");
    case Lowering::kZerosLike:
      return Filled(reader, 0.0f);
    case Lowering::kOnesLike:
      return Filled(reader, 1.0f);
    case Lowering::kFullLike:
      return Filled(reader, reader.Number("fill_value"));
    case Lowering::kCast:
      return Cast(request, reader);
    default:
      // Operators that do not work element by element, or that LibTorch
      // computes on the CPU (kHardsigmoid, kSoftplus): the table's test lists
      // them.
      return std::nullopt;
  }
}

}  // namespace refract::runtime
