#include "runtime/torch/op_library.h"

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::string_view kOwn = REFRACT_TEST_OPS;
constexpr absl::string_view kName = "refract_test_ops.so";

models::Node ScaleNode() {
  models::Node node;
  node.name = "scaled";
  node.op = "refract_test.scale.default";
  node.args = {{"x", models::ValueRef{0}}, {"by", 3.0}};
  node.outputs = {1};
  return node;
}

models::Graph ScaleGraph() {
  models::Graph graph;
  graph.AddValue({.name = "x"});
  graph.AddValue({.name = "scaled", .producer = 0});
  graph.inputs = {0};
  graph.outputs = {1};
  graph.output_names = {"output_0"};
  graph.nodes.push_back(ScaleNode());
  return graph;
}

// Tests run in file order, because a library stays loaded.
TEST(OpLibraryTest, MissingOperatorNamesTheFlag) {
  const auto caller = Caller::Create(ScaleNode());
  EXPECT_EQ(caller.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(caller.status().message(),
              AllOf(HasSubstr("refract_test.scale.default"),
                    HasSubstr("--op-library")));
}

TEST(OpLibraryTest, MissingLibraryNamesOperatorFileAndFlag) {
  models::Graph graph = ScaleGraph();
  graph.op_libraries = {{std::string(kName), {1, 2}}};
  const absl::Status status = CheckOpLibraries(graph, {0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("refract_test.scale.default"), HasSubstr(kName.data()),
            HasSubstr("--op-library"), Not(HasSubstr("another build"))));
  // A part without its operators does not need the library.
  EXPECT_TRUE(CheckOpLibraries(graph, {}).ok());
  graph.nodes[0].op = "aten.relu.default";
  EXPECT_TRUE(CheckOpLibraries(graph, {0}).ok());
}

TEST(OpLibraryTest, LoadedOperatorsAreCalled) {
  ASSERT_TRUE(LoadOpLibrary(std::string(kOwn)).ok());
  // Loading it again has no effect.
  ASSERT_TRUE(LoadOpLibrary(std::string(kOwn)).ok());
  ASSERT_EQ(LoadedOpLibraries().size(), 1);
  EXPECT_EQ(LoadedOpLibraries()[0].name, kName);

  const auto caller = Caller::Create(ScaleNode());
  ASSERT_TRUE(caller.ok()) << caller.status();
  base::Tensor x = *base::Tensor::Allocate(base::DType::kFloat32, {2});
  x.as<float>()[0] = 1;
  x.as<float>()[1] = -2;
  Operand operand;
  operand.kind = Operand::Kind::kTensor;
  operand.tensor = x.view();
  std::vector<Result> results;
  ASSERT_TRUE((*caller)->Call({operand}, results).ok());
  EXPECT_EQ(results[0].operand.tensor.as<float>()[1], -6);
}

TEST(OpLibraryTest, OtherBuildOfTheLibraryIsRefused) {
  ASSERT_TRUE(LoadOpLibrary(std::string(kOwn)).ok());
  models::Graph graph = ScaleGraph();
  graph.op_libraries = LoadedOpLibraries();
  EXPECT_TRUE(CheckOpLibraries(graph, {0}).ok());
  graph.op_libraries[0].name = "renamed.so";  // content counts, not the name
  EXPECT_TRUE(CheckOpLibraries(graph, {0}).ok());
  graph.op_libraries[0] = {std::string(kName), {1, 2}};
  EXPECT_THAT(CheckOpLibraries(graph, {0}).message(),
              AllOf(HasSubstr("another build"), HasSubstr("--op-library")));
}

TEST(OpLibraryTest, FileThatIsNoLibraryIsRefusedByName) {
  const std::string path = ::testing::TempDir() + "/not_a_library.so";
  std::ofstream(path) << "text";
  for (const std::string& file : {path, std::string("/nowhere/ops.so")}) {
    const absl::Status status = LoadOpLibrary(file);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(file));
    EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace refract::runtime::aten
