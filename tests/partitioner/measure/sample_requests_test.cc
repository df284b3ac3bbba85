#include "partitioner/measure/sample_requests.h"

#include <cstring>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using testing::HasSubstr;
using tools::MakeTensor;
using tools::TempFolder;
using tools::TinyModel;
using tools::WriteTensors;

class SampleRequestsTest : public testing::Test {
 protected:
  SampleRequestsTest() {
    model_.name = "tiny";
    model_.graph = TinyModel::Make(folder_).graph;
  }

  std::string Write(int64_t dense_items, int64_t ids) {
    const base::Tensor dense =
        MakeTensor<float>(base::DType::kFloat32, {dense_items, 2},
                          std::vector<float>(dense_items * 2, 1));
    const base::Tensor list = MakeTensor<int64_t>(base::DType::kInt64, {ids},
                                                  std::vector<int64_t>(ids, 1));
    const std::string path = folder_ / "sample.safetensors";
    WriteTensors(path, {{"dense", &dense}, {"ids", &list}});
    return path;
  }

  TempFolder folder_;
  models::LoadedModel model_;
};

TEST_F(SampleRequestsTest, ASampleTellsItsSizes) {
  const auto samples = ReadSamples({Write(3, 3)}, model_.graph);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->requests.size(), 1u);
  const auto sizes = CommonSizes(model_.graph, *samples);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->at(model_.graph.batch_symbol), 3);
}

TEST_F(SampleRequestsTest, ASampleThatContradictsItselfIsRefused) {
  const auto samples = ReadSamples({Write(3, 4)}, model_.graph);
  ASSERT_TRUE(samples.ok()) << samples.status();
  const auto sizes = CommonSizes(model_.graph, *samples);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sizes.status().ToString(), HasSubstr("sample.safetensors"));
}

TEST_F(SampleRequestsTest, SamplesOfOtherSizesThanTheFirstAreRefused) {
  auto samples = ReadSamples({Write(3, 3)}, model_.graph);
  auto other = ReadSamples({Write(4, 4)}, model_.graph);
  ASSERT_TRUE(samples.ok() && other.ok());
  samples->requests.push_back(std::move(other->requests[0]));
  EXPECT_THAT(CommonSizes(model_.graph, *samples).status().ToString(),
              HasSubstr("its sizes differ from those of"));
}

TEST_F(SampleRequestsTest, DrawnRequestsHaveTheAskedSizeAndFreshValues) {
  const auto drawn = DrawRequests(model_.graph, 16, {}, 3, /*seed=*/1);
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  EXPECT_EQ(CommonSizes(model_.graph, *drawn)->at(model_.graph.batch_symbol),
            16);
  ASSERT_EQ(drawn->requests.size(), 3u);
  const base::Tensor& a = drawn->requests[0].inputs[0];
  const base::Tensor& b = drawn->requests[1].inputs[0];
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.bytes()), 0);
}

}  // namespace
}  // namespace refract::partitioner
