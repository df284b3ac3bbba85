#include "cpu_node/catalog.h"

#include <string>

#include "gmock/gmock.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/stored_model.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::StoredModels;

TEST(StoredWeightsTest, BothNodesRefuseDenseWeightsThatWereReplacedInPlace) {
  StoredModels cn;
  StoredModels hn;
  cn.Add("ctr");
  hn.Add("ctr");
  const auto catalog = Catalog::Load(cn.repository(), {});
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const auto served = catalog->Find("ctr", "");
  ASSERT_TRUE(served.ok()) << served.status();
  {
    const auto fine = gpu_node::DeviceModels::Load(hn.repository());
    ASSERT_TRUE(fine.ok()) << fine.status();
    EXPECT_TRUE(fine->Match((*served)->offer()).ok());
  }

  // The weights of the linear layer: all that the GPU node computes with.
  hn.Damage("ctr/1/tables/dense.weights");
  const auto models = gpu_node::DeviceModels::Load(hn.repository());
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_EQ(models->size(), 0);
  const absl::Status refused = models->Match((*served)->offer()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(hn.File("ctr/1/tables/dense.weights")),
                    HasSubstr("differs")));

  cn.Damage("ctr/1/tables/dense.weights");
  const auto without = Catalog::Load(cn.repository(), {});
  ASSERT_TRUE(without.ok()) << without.status();
  const absl::Status absent = without->Find("ctr", "").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr(cn.File("ctr/1/tables/dense.weights")),
                    HasSubstr("differs")));
}

}  // namespace
}  // namespace refract::cpu_node
