#include "models/repository/requests/golden.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"

namespace refract::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// x [b, 2] → y [b], z [b].
Graph MakeGraph() {
  Graph graph;
  const SymExpr batch = SymExpr::Symbol("b");
  graph.inputs = {graph.AddValue({.name = "x",
                                  .dtype = base::DType::kFloat32,
                                  .has_shape = true,
                                  .shape = {batch, SymExpr(2)}})};
  graph.output_names = {"y", "z"};
  return graph;
}

base::Tensor Floats(base::Dims dims, std::vector<float> values) {
  base::Tensor tensor = *base::Tensor::Allocate(base::DType::kFloat32, dims);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

class GoldenTest : public ::testing::Test {
 protected:
  GoldenTest() {
    path_ = (std::filesystem::path(::testing::TempDir()) /
             ("request_files." + std::to_string(getpid())))
                .string();
  }
  ~GoldenTest() override { std::filesystem::remove(path_); }

  void Write(const std::vector<std::pair<std::string, base::TensorView>>& all) {
    const absl::Status status = WriteSafetensors(path_, all);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string Refusal() {
    const auto read = ReadGolden(path_, MakeGraph());
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  }

  std::string path_;
};

TEST_F(GoldenTest, GoldenRequestsComeBackInTheirOrder) {
  const Graph graph = MakeGraph();
  std::vector<GoldenRequest> written(12);  // "10" sorts before "2"
  for (size_t i = 0; i < written.size(); ++i) {
    const float value = static_cast<float>(i);
    written[i].inputs.push_back(Floats({1, 2}, {value, -value}));
    written[i].outputs.push_back(Floats({1}, {10 * value}));
    written[i].outputs.emplace_back();  // not known
  }
  ASSERT_TRUE(WriteGolden(path_, graph, written).ok());
  const auto read = ReadGolden(path_, graph);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), written.size());
  for (size_t i = 0; i < read->size(); ++i) {
    const GoldenRequest& request = (*read)[i];
    EXPECT_EQ(request.inputs[0].view().as<float>()[0], static_cast<float>(i));
    EXPECT_EQ(request.outputs[0].view().as<float>()[0],
              10 * static_cast<float>(i));
    EXPECT_EQ(request.outputs[1].dtype(), base::DType::kUnknown);
  }
}

TEST_F(GoldenTest, NoFileIsNoRequestAndABadOneIsNamed) {
  const auto none = ReadGolden(path_, MakeGraph());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
  const base::Tensor x = Floats({1, 2}, {1, 2});
  const base::Tensor y = Floats({1}, {1});
  Write({{"0/inputs/x", x.view()}});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr(path_), HasSubstr("holds no output")));
  Write({{"0/outputs/y", y.view()}});
  EXPECT_THAT(Refusal(), HasSubstr("input 0/inputs/x is missing"));
  Write({{"0/inputs/x", y.view()}, {"0/outputs/y", y.view()}});
  EXPECT_THAT(Refusal(), HasSubstr("input x has 1 dimensions"));
  Write({{"0/inputs/x", x.view()},
         {"0/outputs/y", y.view()},
         {"something", y.view()}});
  EXPECT_THAT(Refusal(), HasSubstr("input 1/inputs/x is missing"));
}

TEST_F(GoldenTest, ExpectedAnswersLieBesideTheirInputs) {
  const base::Tensor x = Floats({1, 2}, {1, 2});
  const base::Tensor z = Floats({1}, {3});
  Write({{"x", x.view()}, {"z", z.view()}});
  const auto read = ReadExpected(path_, MakeGraph());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->outputs[0].dtype(), base::DType::kUnknown);
  EXPECT_EQ(read->outputs[1].view().as<float>()[0], 3);
  Write({{"x", x.view()}});
  EXPECT_THAT(std::string(ReadExpected(path_, MakeGraph()).status().message()),
              HasSubstr("holds no output; the model gives y, z"));
  Write({{"x", x.view()}, {"z", z.view()}, {"w", z.view()}});
  EXPECT_THAT(std::string(ReadExpected(path_, MakeGraph()).status().message()),
              HasSubstr("neither an input nor an output w"));
  Graph graph = MakeGraph();
  graph.output_names = {"x", "z"};
  Write({{"x", x.view()}, {"z", z.view()}});
  EXPECT_THAT(std::string(ReadExpected(path_, graph).status().message()),
              HasSubstr("x is the name of an input and of an output"));
}

}  // namespace
}  // namespace refract::models
