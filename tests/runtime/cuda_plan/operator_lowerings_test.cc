// Walks the operator table: back ends compute what a record says they can, and
// with LibTorch's results. A record with a new lowering needs a sample here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/operators/operator.h"
#include "runtime/cpu/elements/instruction.h"
#include "runtime/cuda/kernels/strided.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/testing/expect_right.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::IntegerCode;
using models::Lowering;
using models::NamedArgument;
using models::Operator;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::Ref;
using runtime::testing::Sym;
using testing::Model;

using Args = std::vector<NamedArgument>;

// The only lowerings that LibTorch computes on the CPU or on the device.
const std::set<Lowering> kLibTorchs = {
    Lowering::kBroadcastTo, Lowering::kRepeat,      Lowering::kTril,
    Lowering::kTriu,        Lowering::kAmax,        Lowering::kAmin,
    Lowering::kAny,         Lowering::kAll,         Lowering::kLogSoftmax,
    Lowering::kSoftplus,    Lowering::kHardsigmoid,
};
const std::set<Lowering> kNotOnDevice = {
    Lowering::kHstack,      Lowering::kConv1d,   Lowering::kGru,
    Lowering::kLstm,        Lowering::kRnnTanh,  Lowering::kRnnRelu,
    Lowering::kGruCell,     Lowering::kLstmCell, Lowering::kRnnTanhCell,
    Lowering::kRnnReluCell,
};
// Integers that are LibTorch's on the CPU.
bool IsLibTorchs(IntegerCode code) {
  switch (code) {
    case IntegerCode::kAdd:
    case IntegerCode::kSubtract:
    case IntegerCode::kMultiply:
    case IntegerCode::kMinimum:
    case IntegerCode::kMaximum:
    case IntegerCode::kEqual:
    case IntegerCode::kNotEqual:
    case IntegerCode::kLess:
    case IntegerCode::kLessEqual:
    case IntegerCode::kGreater:
    case IntegerCode::kGreaterEqual:
      return false;
    default:
      return true;
  }
}

// A model of one node of the record's operator.
class Sample {
 public:
  explicit Sample(const Operator& op) : op_(op) {}

  Model& model() { return m_; }

  // Samples of float32, or of truth values.
  void Floats() {
    const ValueId x = m_.In("x", {3, 4});
    const ValueId flat = m_.In("flat", {4});
    switch (op_.lowering) {
      case Lowering::kNone:
        return;
      case Lowering::kAlias:
        return Give("default", {Ref("self", x)}, {3, 4});
      case Lowering::kDropout:
        return Give("default",
                    {Ref("input", x), Float("p", 0.5), Bool("train", false)},
                    {3, 4});
      case Lowering::kReshape:
        return Give("default",
                    {Ref("self", x),
                     Ints(op_.name == "reshape" ? "shape" : "size", {-1, 12})},
                    {12});
      case Lowering::kFlatten:
        return Give("using_ints",
                    {Ref("self", x), Int("start_dim", 1), Int("end_dim", 2)},
                    {12});
      case Lowering::kUnflatten:
        return Give("int",
                    {Ref("self", x), Int("dim", 2), Ints("sizes", {2, 2})},
                    {3, 2, 2});
      case Lowering::kSqueeze:
        return Give("dims",
                    {Ref("self", m_.In("one", {1, 4})), Ints("dim", {1})}, {4});
      case Lowering::kUnsqueeze:
        return Give("default", {Ref("self", x), Int("dim", 1)}, {1, 3, 4});
      case Lowering::kExpand:
      case Lowering::kBroadcastTo:
        return Give(
            "default",
            {Ref("self", m_.In("one", {1, 4})), Ints("size", {-1, 3, 4})},
            {3, 4});
      case Lowering::kExpandAs:
        return Give("default",
                    {Ref("self", m_.In("one", {1, 4})), Ref("other", x)},
                    {3, 4});
      case Lowering::kPermute:
        return Give("default", {Ref("self", x), Ints("dims", {0, 2, 1})},
                    {4, 3});
      case Lowering::kTranspose:
        return Give("int", {Ref("self", x), Int("dim0", 1), Int("dim1", 2)},
                    {4, 3});
      case Lowering::kMatrixTranspose: {
        // Transposed twice.
        const ValueId turned = m_.Node("aten.t.default", {Ref("self", flat)},
                                       {DType::kFloat32, {4, Sym("b")}});
        return Give("default", {Ref("self", turned)}, {4});
      }
      case Lowering::kSlice:
        return Give("Tensor",
                    {Ref("self", x), Int("dim", 1), Int("start", 1),
                     Int("end", 3), Int("step", 1)},
                    {2, 4});
      case Lowering::kSelectIndex:
        return Give("int", {Ref("self", x), Int("dim", 1), Int("index", 1)},
                    {4});
      case Lowering::kNarrow:
        return Give(
            "default",
            {Ref("self", x), Int("dim", 1), Int("start", 1), Int("length", 2)},
            {2, 4});
      case Lowering::kUnbind:
        return GiveAll("int", {Ref("self", x), Int("dim", 1)}, {{4}, {4}, {4}});
      case Lowering::kSplit:
        if (op_.name == "split") {
          return GiveAll("Tensor",
                         {Ref("self", x), Int("split_size", 2), Int("dim", 1)},
                         {{2, 4}, {1, 4}});
        }
        return GiveAll(
            "default",
            {Ref("self", x), Ints("split_sizes", {1, 2}), Int("dim", 1)},
            {{1, 4}, {2, 4}});
      case Lowering::kChunk:
        return GiveAll("default",
                       {Ref("self", x), Int("chunks", 3), Int("dim", 1)},
                       {{1, 4}, {1, 4}, {1, 4}});
      case Lowering::kRepeat:
        return Give("default",
                    {Ref("self", x),
                     Ints(op_.name == "tile" ? "dims" : "repeats", {1, 2, 1})},
                    {6, 4});
      case Lowering::kCat:
        return Give("default", {List("tensors", {x, x}), Int("dim", 1)},
                    {6, 4});
      case Lowering::kStack:
        return Give("default", {List("tensors", {x, x}), Int("dim", 1)},
                    {2, 3, 4});
      case Lowering::kHstack:
        return Give("default", {List("tensors", {x, x})}, {6, 4});
      case Lowering::kCast:
        return Give(op_.name == "to" ? "dtype" : "default",
                    {Ref("self", Ids(4)), {"dtype", DType::kFloat32}}, {4});
      case Lowering::kCastLike:
        return Give("default", {Ref("self", Ids(4)), Ref("other", x)}, {4});
      case Lowering::kZeros:
      case Lowering::kOnes:
      case Lowering::kFull: {
        Args args = {Ints("size", {3, 4})};
        if (op_.name.substr(0, 4) == "new_") {
          args.insert(args.begin(), Ref("self", x));
        }
        if (op_.lowering == Lowering::kFull) {
          args.push_back(Float("fill_value", 2.5));
        }
        return Plus(x,
                    m_.Node(Name("default"), args, {DType::kFloat32, {3, 4}}),
                    DType::kFloat32);
      }
      case Lowering::kZerosLike:
      case Lowering::kOnesLike:
        return Give("default", {Ref("self", x)}, {3, 4});
      case Lowering::kFullLike:
        return Give("default", {Ref("self", x), Float("fill_value", 2.5)},
                    {3, 4});
      case Lowering::kArange:
        return Plus(Ids(4),
                    m_.Node(Name("start"), {Int("start", 1), Int("end", 5)},
                            {DType::kInt64, {4}}),
                    DType::kInt64);
      case Lowering::kTril:
      case Lowering::kTriu:
        return Give("default", {Ref("self", x), Int("diagonal", 1)}, {3, 4});
      case Lowering::kEmbedding:
        return Give(
            "default",
            {Ref("weight", m_.Floats("w", {5, 4})), Ref("indices", Ids(3))},
            {3, 4});
      case Lowering::kEmbeddingBag: {
        const ValueId ids = m_.Input("ids", DType::kInt64, {Sym("n")});
        const ValueId offsets = m_.In("offsets", {}, DType::kInt64);
        const auto results =
            m_.Nodes(Name("default"),
                     {Ref("weight", m_.Floats("w", {5, 4})),
                      Ref("indices", ids), Ref("offsets", offsets)},
                     {{DType::kFloat32, {Sym("b"), 4}},
                      {DType::kInt64, {Sym("n")}},
                      {DType::kInt64, {Sym("b")}},
                      {DType::kInt64, {Sym("b")}}});
        return m_.Output(results[0]);
      }
      case Lowering::kIndexSelect:
        return Give("default",
                    {Ref("self", x), Int("dim", 1), Ref("index", Places())},
                    {2, 4});
      case Lowering::kIndex:
        return Give(
            "Tensor",
            {Ref("self", x), List("indices", {models::kNoValue, Places()})},
            {2, 4});
      case Lowering::kGather:
        return Give("default",
                    {Ref("self", m_.In("five", {5})), Int("dim", 1),
                     Ref("index", Ids(3))},
                    {3});
      case Lowering::kSum:
        return Give("dim_IntList", {Ref("self", x), Ints("dim", {1})}, {4});
      case Lowering::kMean:
        return Give("dim", {Ref("self", x), Ints("dim", {1})}, {4});
      case Lowering::kAmax:
      case Lowering::kAmin:
        return Give("default", {Ref("self", x), Ints("dim", {1})}, {4});
      case Lowering::kAny:
      case Lowering::kAll:
        return Give("dim", {Ref("self", Truths()), Int("dim", 1)}, {4},
                    DType::kBool);
      case Lowering::kSoftmax:
      case Lowering::kLogSoftmax: {
        Args args = {Ref("self", x), Int("dim", 2)};
        if (op_.name[0] == '_') args.push_back(Bool("half_to_float", false));
        return Give(op_.name[0] == '_' ? "default" : "int", args, {3, 4});
      }
      case Lowering::kLayerNorm: {
        const Args args = {Ref("input", x), Ints("normalized_shape", {4}),
                           Ref("weight", m_.Floats("g", {4})),
                           Ref("bias", m_.Floats("h", {4})),
                           Float("eps", 1e-3)};
        if (op_.name == "layer_norm") return Give("default", args, {3, 4});
        return m_.Output(m_.Nodes(Name("default"), args,
                                  {{DType::kFloat32, {Sym("b"), 3, 4}},
                                   {DType::kFloat32, {Sym("b"), 3, 1}},
                                   {DType::kFloat32, {Sym("b"), 3, 1}}})[0]);
      }
      case Lowering::kLinear:
        return Give("default",
                    {Ref("input", x), Ref("weight", m_.Floats("w", {5, 4})),
                     Ref("bias", m_.Floats("bias", {5}))},
                    {3, 5});
      case Lowering::kAddmm:
        return Give("default",
                    {Ref("self", m_.Floats("bias", {5})), Ref("mat1", flat),
                     Ref("mat2", m_.Floats("w", {4, 5}))},
                    {5});
      case Lowering::kMm:
        return Give("default",
                    {Ref("self", flat), Ref("mat2", m_.Floats("w", {4, 5}))},
                    {5});
      case Lowering::kBmm:
        return Give("default",
                    {Ref("self", x), Ref("mat2", m_.In("y", {4, 5}))}, {3, 5});
      case Lowering::kMatmul:
        return Give("default",
                    {Ref("self", x), Ref("other", m_.Floats("w", {4, 5}))},
                    {3, 5});
      case Lowering::kEinsum:
        return Give("default",
                    {{"equation", std::string("bij,jk->bik")},
                     List("tensors", {x, m_.Floats("w", {4, 5})})},
                    {3, 5});
      case Lowering::kTensordot:
        return Give("default",
                    {Ref("self", x), Ref("other", m_.Floats("w", {4, 5})),
                     Ints("dims_self", {2}), Ints("dims_other", {0})},
                    {3, 5});
      case Lowering::kConv1d:
        return Give("default",
                    {Ref("input", x), Ref("weight", m_.Floats("w", {5, 3, 1}))},
                    {5, 4});
      case Lowering::kAttention:
        return Give("default",
                    {Ref("query", x), Ref("key", m_.In("key", {5, 4})),
                     Ref("value", m_.In("value", {5, 6}))},
                    {3, 6});
      case Lowering::kGru:
        return Layers(3, 1);
      case Lowering::kLstm:
        return Layers(4, 2);
      case Lowering::kRnnTanh:
      case Lowering::kRnnRelu:
        return Layers(1, 1);
      case Lowering::kGruCell:
        return Cell(3, 1);
      case Lowering::kLstmCell:
        return Cell(4, 2);
      case Lowering::kRnnTanhCell:
      case Lowering::kRnnReluCell:
        return Cell(1, 1);
      case Lowering::kUnary:
        return Give("default", {Ref("self", x)}, {3, 4});
      case Lowering::kBinary: {
        const Args args = {Ref("self", x), Ref("other", flat_in_three())};
        return Give(
            Known({"Tensor", "default"}, args), args, {3, 4},
            op_.Has(models::kGivesTruth) ? DType::kBool : DType::kFloat32);
      }
      case Lowering::kReverseSubtract:
        return Give("Tensor", {Ref("self", x), Ref("other", flat_in_three())},
                    {3, 4});
      case Lowering::kAddProduct:
        return Give("default",
                    {Ref("self", x), Ref("tensor1", flat_in_three()),
                     Ref("tensor2", m_.In("z", {3, 4}))},
                    {3, 4});
      case Lowering::kLogical: {
        Args args = {Ref("self", Truths())};
        if (op_.name != "logical_not") {
          args.push_back(Ref("other", m_.In("u", {3, 4}, DType::kBool)));
        }
        return Give("default", args, {3, 4}, DType::kBool);
      }
      case Lowering::kPow:
        return Give("Tensor_Scalar", {Ref("self", x), Float("exponent", 2.0)},
                    {3, 4});
      case Lowering::kClamp:
        return Give("default",
                    {Ref("self", x), Float("min", -0.5), Float("max", 0.25)},
                    {3, 4});
      case Lowering::kClampMin:
        return Give("default", {Ref("self", x), Float("min", -0.5)}, {3, 4});
      case Lowering::kClampMax:
        return Give("default", {Ref("self", x), Float("max", 0.25)}, {3, 4});
      case Lowering::kHardtanh:
      case Lowering::kRelu6:
      case Lowering::kHardsigmoid:
      case Lowering::kSoftplus:
      case Lowering::kLeakyRelu:
      case Lowering::kElu:
      case Lowering::kGelu:
        return Give("default", {Ref("self", x)}, {3, 4});
      case Lowering::kPrelu:
        return Give("default",
                    {Ref("self", x), Ref("weight", m_.Floats("w", {1}))},
                    {3, 4});
      case Lowering::kBatchNorm:
        return Give("default",
                    {Ref("input", flat), Ref("weight", m_.Floats("g", {4})),
                     Ref("bias", m_.Floats("h", {4})),
                     Ref("running_mean", m_.Floats("mean", {4})),
                     Ref("running_var",
                         m_.Weight<float>("variance", {4}, {1, 2, 3, 4})),
                     Bool("training", false), Float("momentum", 0.1),
                     Float("eps", 1e-5), Bool("cudnn_enabled", false)},
                    {4});
      case Lowering::kWhere:
        return Give("self",
                    {Ref("condition", Truths()), Ref("self", x),
                     Ref("other", m_.In("z", {3, 4}))},
                    {3, 4});
      case Lowering::kMaskedFill:
        return Give(
            "Scalar",
            {Ref("self", x), Ref("mask", Truths()), Float("value", -9.0)},
            {3, 4});
    }
  }

  // Samples of int64, for records with an integer code. No divisor is 0.
  void Integers() {
    Args args = {Ref("self", Ids(4))};
    std::vector<const char*> overloads = {"default"};
    if (*op_.integer >= IntegerCode::kAdd) {
      args.push_back(
          Ref("other", m_.Weight<int64_t>("other", {4}, {1, 2, -3, 4})));
      overloads = {"Tensor", "default"};
    }
    if (op_.name == "div") {
      args.push_back({"rounding_mode", std::string("trunc")});
      overloads = {"Tensor_mode"};
    }
    const std::string overload = Known(overloads, args);
    Give(overload, args, {4},
         op_.Has(models::kGivesTruth) ? DType::kBool : DType::kInt64);
  }

 private:
  std::string Name(absl::string_view overload) const {
    return absl::StrCat("aten.", op_.name, ".", overload);
  }
  // The first overload that LibTorch has.
  std::string Known(const std::vector<const char*>& overloads,
                    const Args& args) const {
    for (const char* overload : overloads) {
      models::Node node;
      node.op = Name(overload);
      node.args = args;
      node.outputs = {0};
      if (runtime::aten::Caller::Create(node).ok()) return overload;
    }
    return "";
  }
  ValueId Ids(int64_t count) { return m_.In("ids", {count}, DType::kInt64); }
  ValueId Truths() { return m_.In("truths", {3, 4}, DType::kBool); }
  ValueId Places() { return m_.Weight<int64_t>("places", {2}, {2, 0}); }
  // Broadcasts against [b, 3, 4].
  ValueId flat_in_three() { return m_.In("row", {1, 4}); }

  void Give(absl::string_view overload, const Args& args,
            std::vector<models::SymExpr> rest, DType dtype = DType::kFloat32) {
    m_.Output(m_.Op(Name(overload), args, std::move(rest), dtype));
  }
  void GiveAll(absl::string_view overload, const Args& args,
               const std::vector<std::vector<int64_t>>& rests) {
    std::vector<Model::Result> results;
    for (const auto& rest : rests) {
      results.push_back({DType::kFloat32, {Sym("b")}});
      for (const int64_t size : rest) results.back().shape.push_back(size);
    }
    for (const ValueId id : m_.Nodes(Name(overload), args, results)) {
      m_.Output(id);
    }
    m_.graph().nodes.back().output_is_list = true;
  }
  void Plus(ValueId batch, ValueId made, DType dtype) {
    const auto& shape = m_.graph().value(batch).shape;
    m_.Output(m_.Op("aten.add.Tensor", {Ref("self", batch), Ref("other", made)},
                    {shape.begin() + 1, shape.end()}, dtype));
  }
  std::vector<ValueId> Weights(int64_t gates) {
    return {m_.Floats("w_ih", {gates * 5, 4}),
            m_.Floats("w_hh", {gates * 5, 5}), m_.Floats("b_ih", {gates * 5}),
            m_.Floats("b_hh", {gates * 5})};
  }
  void Layers(int64_t gates, int num_states) {
    std::vector<ValueId> states;
    std::vector<Model::Result> results = {{DType::kFloat32, {3, Sym("b"), 5}}};
    for (int i = 0; i < num_states; ++i) {
      states.push_back(
          m_.Input(absl::StrCat("h", i), DType::kFloat32, {1, Sym("b"), 5}));
      results.push_back({DType::kFloat32, {1, Sym("b"), 5}});
    }
    const ValueId x = m_.Input("steps", DType::kFloat32, {3, Sym("b"), 4});
    const auto outputs = m_.Nodes(
        Name("input"),
        {Ref("input", x),
         num_states == 1 ? Ref("hx", states[0]) : List("hx", states),
         List("params", Weights(gates)), Bool("has_biases", true),
         Int("num_layers", 1), Float("dropout", 0.0), Bool("train", false),
         Bool("bidirectional", false), Bool("batch_first", false)},
        results);
    for (const ValueId id : outputs) m_.Output(id);
  }
  void Cell(int64_t gates, int num_states) {
    std::vector<ValueId> states;
    std::vector<Model::Result> results;
    for (int i = 0; i < num_states; ++i) {
      states.push_back(m_.In(absl::StrCat("h", i), {5}));
      results.push_back({DType::kFloat32, {Sym("b"), 5}});
    }
    const std::vector<ValueId> w = Weights(gates);
    const auto outputs =
        m_.Nodes(Name("default"),
                 {Ref("input", m_.In("step", {4})),
                  num_states == 1 ? Ref("hx", states[0]) : List("hx", states),
                  Ref("w_ih", w[0]), Ref("w_hh", w[1]), Ref("b_ih", w[2]),
                  Ref("b_hh", w[3])},
                 results);
    for (const ValueId id : outputs) m_.Output(id);
  }

  const Operator& op_;
  Model m_;
};

// The node alone: on the CPU native where it should be and LibTorch's where
// not, in values LibTorch's; on the device as on the CPU.
void Check(Sample& sample, bool native, bool on_device, bool bags = false) {
  Model& m = sample.model();
  const auto kernels = runtime::testing::KernelsOf(m);
  EXPECT_EQ(::testing::Value(kernels, ::testing::Contains("libtorch")), !native)
      << ::testing::PrintToString(kernels);
  m.graph().batch_symbol.assign(1, 'b');
  if (bags) return;  // requests have to fit: translate_bags_test.cc
  if (on_device) {
    testing::ExpectSame(m);
  } else {
    const models::Graph& graph = m.graph();
    EXPECT_EQ(Translate(graph, Part::Whole(graph), m.Weights(),
                        testing::OptionsFor(Precision::kFloat32))
                  .status()
                  .code(),
              absl::StatusCode::kUnimplemented);
  }
}

void CheckValues(Sample& sample) {
  std::mt19937 random(testing::Seed());
  Model& m = sample.model();
  std::vector<base::Tensor> inputs;
  for (const ValueId id : m.graph().inputs) {
    inputs.push_back(testing::Request(m.graph().value(id), 3, random));
  }
  runtime::testing::ExpectLibTorchs(m, inputs, 1e-5f);
}

TEST(OperatorLoweringsTest, BackEndsComputeWhatRecordsSay) {
  for (const Operator& op : models::AtenOperators()) {
    if (op.lowering == Lowering::kNone || op.name == "lift_fresh") continue;
    SCOPED_TRACE(std::string(op.name));
    const bool of_floats = op.element || !op.integer;
    if (of_floats || op.lowering == Lowering::kReverseSubtract) {
      Sample sample(op);
      sample.Floats();
      // The statistics of native_layer_norm are LibTorch's.
      Check(sample,
            !kLibTorchs.contains(op.lowering) && op.name != "native_layer_norm",
            !kNotOnDevice.contains(op.lowering),
            op.lowering == Lowering::kEmbeddingBag);
      if (op.lowering != Lowering::kEmbeddingBag) CheckValues(sample);
    }
    if (op.integer && op.lowering != Lowering::kLogical) {
      Sample sample(op);
      sample.Integers();
      Check(sample,
            op.lowering == Lowering::kBinary && !IsLibTorchs(*op.integer),
            true);
      CheckValues(sample);
    }
  }
}

// The CPU's code of each function against the device's, which emulated kernels
// share: written apart, so a code that either lacks shows.
TEST(ElementCodesTest, CpuAndDeviceComputeTheSame) {
  std::mt19937 random(testing::Seed());
  constexpr int kCount = 64;
  float a[kCount], b[kCount], c[kCount];
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(random() % 4096) / 1024 - 1;
    // Whole powers, so that negative bases have them.
    b[i] = static_cast<float>(random() % 5) - 2;
    c[i] = static_cast<float>(random() % 4096) / 1024 - 1;
    if (i % 8 == 0) a[i] = b[i];
    if (i % 8 == 1) a[i] = 0;
  }
  for (int n = 0; n < models::kNumElementCodes; ++n) {
    const auto code = static_cast<ElementCode>(n);
    SCOPED_TRACE(models::kElementNames[n]);
    float out[kCount];
    std::fill_n(out, kCount, 12345.0f);
    cpu::RunInstruction({code, 0, 1, 2, 0.5f, 0.75f}, a, b, c, kCount, out);
    for (int i = 0; i < kCount; ++i) {
      float want[1] = {12345.0f};
      cuda::Compute<1>({code, 0, 1, 2, 0.5f, 0.75f}, {a[i]}, {b[i]}, {c[i]},
                       want);
      ASSERT_NE(out[i], 12345.0f) << "no code on the CPU";
      ASSERT_NE(want[0], 12345.0f) << "no code on the device";
      if (std::isnan(want[0])) {
        ASSERT_TRUE(std::isnan(out[i])) << a[i] << ", " << b[i];
      } else if (std::isinf(want[0])) {
        ASSERT_EQ(out[i], want[0]) << a[i] << ", " << b[i];
      } else {
        ASSERT_NEAR(out[i], want[0], 2e-6 * std::max(1.0f, std::abs(want[0])))
            << a[i] << ", " << b[i];
      }
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
