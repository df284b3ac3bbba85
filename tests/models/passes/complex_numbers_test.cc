#include "models/passes/complex_numbers.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// x [B, 6, 8] → rfft along `dim` [B, 4, 8] → · filter [4, 8] → irfft → x's
// shape; and the size of a dimension of the spectrum.
struct Filter {
  explicit Filter(int64_t dim = 1, int64_t size_of = -1) {
    graph.batch_symbol = "B";
    x = Add("x", base::DType::kFloat32, {"B", "6", "8"});
    graph.inputs = {x};
    filter = Add("filter", kComplex64, {"4", "8"});
    graph.values[filter].weight = "filter";
    spectrum = Add("spectrum", kComplex64, {"B", "4", "8"});
    product = Add("product", kComplex64, {"B", "4", "8"});
    y = Add("y", base::DType::kFloat32, {"B", "6", "8"});
    size = Add("size", base::DType::kUnknown, {});
    graph.values[size].kind = ValueKind::kSymInt;
    graph.values[size].sym_value = *SymExpr::Parse("8");
    Put("aten.fft_rfft.default", {{"self", ValueRef{x}}, {"dim", dim}},
        spectrum);
    Put("aten.sym_size.int", {{"self", ValueRef{spectrum}}, {"dim", size_of}},
        size);
    Put("aten.mul.Tensor",
        {{"self", ValueRef{spectrum}}, {"other", ValueRef{filter}}}, product);
    Put("aten.fft_irfft.default",
        {{"self", ValueRef{product}}, {"n", int64_t{6}}, {"dim", dim}}, y);
    Return(y);
  }

  ValueId Add(const std::string& name, base::DType dtype,
              const std::vector<std::string>& shape) {
    Value value;
    value.name = name;
    value.dtype = dtype;
    value.has_shape = true;
    for (const std::string& size : shape) {
      value.shape.push_back(*SymExpr::Parse(size));
    }
    return graph.AddValue(std::move(value));
  }
  void Put(const std::string& op, std::vector<NamedArgument> args,
           ValueId output) {
    Node node;
    node.name = op;
    node.op = op;
    node.args = std::move(args);
    node.outputs = {output};
    graph.values[output].producer = static_cast<NodeId>(graph.nodes.size());
    graph.nodes.push_back(std::move(node));
  }
  void Return(ValueId id) {
    graph.outputs = {id};
    graph.output_names = {"output_0"};
  }
  std::string Shape(ValueId id) const {
    std::string text;
    for (const SymExpr& size : graph.value(id).shape) {
      text += size.ToString() + " ";
    }
    return text;
  }
  BoolList Flags(size_t node, absl::string_view name) const {
    return std::get<BoolList>(*graph.nodes[node].FindArg(name));
  }

  Graph graph;
  ValueId x, filter, spectrum, product, y, size;
};

TEST(ComplexToPairsTest, TensorsGetAPairsDimensionAndOperatorsAreMarked) {
  Filter model;
  ASSERT_TRUE(ComplexToPairs(model.graph).ok());
  ASSERT_TRUE(ValidateGraph(model.graph).ok());
  for (const ValueId id : {model.filter, model.spectrum, model.product}) {
    EXPECT_EQ(model.graph.value(id).dtype, base::DType::kFloat32);
  }
  EXPECT_EQ(model.Shape(model.spectrum), "B 4 8 2 ");
  EXPECT_EQ(model.Shape(model.filter), "4 8 2 ");
  EXPECT_EQ(model.Shape(model.y), "B 6 8 ");
  EXPECT_EQ(model.graph.nodes[0].op, "complex.fft_rfft.default");
  EXPECT_THAT(model.Flags(0, kComplexOperandsArg), ElementsAre(false));
  EXPECT_THAT(model.Flags(0, kComplexResultsArg), ElementsAre(true));
  EXPECT_THAT(model.Flags(2, kComplexOperandsArg), ElementsAre(true, true));
  EXPECT_THAT(model.Flags(3, kComplexOperandsArg), ElementsAre(true));
  EXPECT_THAT(model.Flags(3, kComplexResultsArg), ElementsAre(false));
}

TEST(ComplexToPairsTest, SizesAreCountedWithoutThePairs) {
  Filter last;
  ASSERT_TRUE(ComplexToPairs(last.graph).ok());
  EXPECT_EQ(last.graph.nodes[1].op, "aten.sym_size.int");
  EXPECT_EQ(std::get<int64_t>(*last.graph.nodes[1].FindArg("dim")), -2);
  Filter first(1, 0);
  ASSERT_TRUE(ComplexToPairs(first.graph).ok());
  EXPECT_EQ(std::get<int64_t>(*first.graph.nodes[1].FindArg("dim")), 0);
}

TEST(ComplexToPairsTest, TypesInArgumentsHaveNames) {
  Filter model;
  model.graph.nodes[0].op = "aten.to.dtype";
  model.graph.nodes[0].args = {{"self", ValueRef{model.x}},
                               {"dtype", kComplex64}};
  ASSERT_TRUE(ComplexToPairs(model.graph).ok());
  EXPECT_EQ(model.graph.nodes[0].op, "complex.to.dtype");
  EXPECT_EQ(std::get<std::string>(*model.graph.nodes[0].FindArg("dtype")),
            "complex64");
}

TEST(ComplexToPairsTest, NothingComplexComesOrGoes) {
  Filter in;
  in.graph.values[in.x].dtype = kComplex128;
  EXPECT_THAT(ComplexToPairs(in.graph).message(), HasSubstr("input x"));
  Filter out;
  out.Return(out.product);
  EXPECT_THAT(ComplexToPairs(out.graph).message(), HasSubstr("output_0"));
}

TEST(ComplexToPairsTest, ForeignOperatorsAreNamed) {
  Filter model;
  model.graph.nodes[2].op = "fbgemm.mul.default";
  const absl::Status status = ComplexToPairs(model.graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("fbgemm.mul.default"));
}

TEST(ComplexToPairsTest, OperatorsRunOnTheCnAndRandomOnesAreKnown) {
  EXPECT_FALSE(MayRunOnHn(ClassOf("complex.mul.Tensor")));
  EXPECT_FALSE(MayRunOnHn(ClassOf("complex.view_as_real.default")));
  EXPECT_EQ(ClassOf("complex.randn.default"), OpClass::kRandom);
}

TEST(ComplexToPairsTest, WeightsAreDescribedAsPairs) {
  WeightEntry entry;
  entry.dtype = kComplex128;
  entry.sizes = {4, 8};
  entry.strides = {1, 4};
  entry.storage_offset = 3;
  MakePairs(entry);
  EXPECT_EQ(entry.dtype, base::DType::kFloat64);
  EXPECT_THAT(entry.sizes, ElementsAre(4, 8, 2));
  EXPECT_THAT(entry.strides, ElementsAre(2, 8, 1));
  EXPECT_EQ(entry.storage_offset, 6);
}

TEST(GivesComplexTest, ByNameAndByOperands) {
  const Filter model;
  const auto gives = [&](const std::string& op, ValueId self) {
    Node node;
    node.op = op;
    node.args = {{"self", ValueRef{self}}};
    return GivesComplex(model.graph, node);
  };
  EXPECT_TRUE(gives("aten.fft_rfft.default", model.x));
  EXPECT_TRUE(gives("aten.view_as_complex.default", model.x));
  EXPECT_TRUE(gives("aten.transpose.int", model.spectrum));
  EXPECT_FALSE(gives("aten.transpose.int", model.x));
  EXPECT_FALSE(gives("aten.fft_irfft.default", model.spectrum));
  EXPECT_FALSE(gives("aten.abs.default", model.spectrum));
  EXPECT_FALSE(gives("fbgemm.fft_rfft.default", model.x));
}

TEST(ComplexRowsTest, TransformsWithinARowKeepRowsApart) {
  Filter model;
  ASSERT_TRUE(ComplexToPairs(model.graph).ok());
  EXPECT_EQ(FindRowDependence(model.graph).use, RowUse::kAlone);
  // The last but one dimension of what is transformed, pairs not counted.
  Filter negative(-2);
  ASSERT_TRUE(ComplexToPairs(negative.graph).ok());
  EXPECT_EQ(FindRowDependence(negative.graph).use, RowUse::kAlone);
}

TEST(ComplexRowsTest, TransformsOverTheBatchMixRows) {
  for (const int64_t dim : {0, -3}) {
    Filter model(dim);
    ASSERT_TRUE(ComplexToPairs(model.graph).ok());
    const RowDependence rows = FindRowDependence(model.graph);
    EXPECT_EQ(rows.use, RowUse::kTogether) << dim;
    EXPECT_EQ(rows.node, "aten.fft_rfft.default") << dim;
  }
}

TEST(ComplexRowsTest, ShiftsAreAlongAllDimensionsUnlessTheySay) {
  for (const bool all : {true, false}) {
    Filter model;
    Node& node = model.graph.nodes[2];
    node.op = "aten.fft_fftshift.default";
    node.args = {{"self", ValueRef{model.spectrum}}};
    if (!all)
      node.args.push_back({"dim", IntList{{1, kNoValue}, {2, kNoValue}}});
    ASSERT_TRUE(ComplexToPairs(model.graph).ok());
    EXPECT_EQ(FindRowDependence(model.graph).use,
              all ? RowUse::kTogether : RowUse::kAlone);
  }
}

TEST(ComplexRowsTest, OperatorsWithoutARuleAreNotKnownToKeepRowsApart) {
  Filter model;
  model.graph.nodes[2].op = "aten.matmul.default";
  ASSERT_TRUE(ComplexToPairs(model.graph).ok());
  EXPECT_EQ(FindRowDependence(model.graph).use, RowUse::kUnknown);
}

}  // namespace
}  // namespace refract::models
