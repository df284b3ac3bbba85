#include "partitioner/split/hn_look_ups.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::ValueId;
using models::ValueRef;
using testing::ElementsAre;

// Look-ups by the same ids, each in a table of its own.
class HnLookUpsTest : public testing::Test {
 protected:
  HnLookUpsTest() {
    ids_ = Add("ids", base::DType::kInt64);
    graph_.inputs = {ids_};
  }

  ValueId Add(std::string name, base::DType dtype) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    return graph_.AddValue(std::move(value));
  }

  // A table of `rows` × 16 floats, 64 bytes per row.
  ValueId Table(const std::string& name, int64_t rows) {
    const ValueId id = Add("p_" + name, base::DType::kFloat32);
    graph_.values[id].weight = name;
    graph_.values[id].has_shape = true;
    graph_.values[id].shape = {models::SymExpr(rows), models::SymExpr(16)};
    return id;
  }

  void LookUp(const std::string& op, ValueId table) {
    models::Node node;
    node.name = "n" + std::to_string(graph_.nodes.size());
    node.op = op;
    node.args = {{"weight", ValueRef{table}}, {"indices", ValueRef{ids_}}};
    const ValueId out = Add(node.name + "_out", base::DType::kFloat32);
    graph_.values[out].producer =
        static_cast<models::NodeId>(graph_.nodes.size());
    node.outputs = {out};
    graph_.nodes.push_back(std::move(node));
  }

  Graph graph_;
  models::ModelConfig config_;
  ValueId ids_;
};

TEST_F(HnLookUpsTest, TablesUpToTheLimitMayGo) {
  LookUp("aten.embedding.default", Table("small", 10));
  LookUp("aten.embedding_bag.padding_idx", Table("bags", 10));
  LookUp("aten.embedding.default", Table("large", 11));
  LookUp("aten.linear.default", Table("dense", 1));
  EXPECT_THAT(HnLookUps(graph_, config_, 640),
              ElementsAre(true, true, false, false));
  EXPECT_THAT(HnLookUps(graph_, config_, 639),
              ElementsAre(false, false, false, false));
  EXPECT_THAT(HnLookUps(graph_, config_, 0),
              ElementsAre(false, false, false, false));
}

TEST_F(HnLookUpsTest, WhatTheCnMustDoItselfStays) {
  LookUp("fbgemm.bounds_check_indices.default", Table("many", 1));
  LookUp("aten.embedding.default", Add("computed", base::DType::kFloat32));
  const ValueId shapeless = Add("p_shapeless", base::DType::kFloat32);
  graph_.values[shapeless].weight = "shapeless";
  LookUp("aten.embedding.default", shapeless);
  EXPECT_THAT(HnLookUps(graph_, config_, 1e9),
              ElementsAre(false, false, false));
}

TEST_F(HnLookUpsTest, TablesInRowFormatsStay) {
  const ValueId table = Table("encoded", 1);
  graph_.values[table].row_bytes = 32;
  LookUp("aten.embedding.default", table);
  EXPECT_THAT(HnLookUps(graph_, config_, 1e9), ElementsAre(false));
}

TEST_F(HnLookUpsTest, TablesWhoseUnknownIdsAreReplacedStay) {
  LookUp("aten.embedding.default", Table("strict", 1));
  LookUp("aten.embedding.default", Table("lenient", 1));
  config_.id_policies["lenient"] = models::IdPolicy::kZeroRow;
  EXPECT_THAT(HnLookUps(graph_, config_, 1e9), ElementsAre(true, false));
  config_.default_id_policy = models::IdPolicy::kZeroRow;
  config_.id_policies["strict"] = models::IdPolicy::kError;
  EXPECT_THAT(HnLookUps(graph_, config_, 1e9), ElementsAre(true, false));
}

}  // namespace
}  // namespace refract::partitioner
