#include "models/table_ids.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model that looks columns of the input "ids", [2, 2], up in tables.
class TableIdsTest : public ::testing::Test {
 protected:
  TableIdsTest() {
    input_ = graph_.AddValue({.name = "ids",
                              .dtype = base::DType::kInt64,
                              .has_shape = true,
                              .shape = {SymExpr(2), SymExpr(2)}});
    graph_.inputs = {input_};
    AddTable("a", {2, 0, 1});
    AddTable("b", {70, 80, 90});
  }

  void AddTable(const std::string& name, const std::vector<int64_t>& ids) {
    WeightEntry& entry = ids_[name];
    entry.file = dir_.Write(
        name, absl::string_view(reinterpret_cast<const char*>(ids.data()),
                                ids.size() * sizeof(int64_t)));
    entry.sizes = {static_cast<int64_t>(ids.size())};
    tables_[name] = graph_.AddValue({.name = name, .weight = name});
  }

  ValueId Call(std::string op, std::vector<NamedArgument> args) {
    const auto node = static_cast<NodeId>(graph_.nodes.size());
    const ValueId result = graph_.AddValue({.name = op, .producer = node});
    graph_.nodes.push_back(
        {.op = std::move(op), .args = std::move(args), .outputs = {result}});
    return result;
  }

  ValueId Column(int64_t column) { return Part(1, column); }

  ValueId Part(int64_t dim, int64_t index) {
    return Call("aten.select.int",
                {{"self", ValueRef{input_}}, {"dim", dim}, {"index", index}});
  }

  void LookUp(const std::string& table, ValueId ids) {
    Call("aten.embedding.default",
         {{"weight", ValueRef{tables_.at(table)}}, {"indices", ValueRef{ids}}});
  }

  // The request {{2, 1}, {0, 2}} by ids; empty where it is refused.
  std::vector<int64_t> Changed() {
    base::Tensor tensor = *base::Tensor::Allocate(base::DType::kInt64, {2, 2});
    const absl::Span<int64_t> values = tensor.as<int64_t>();
    values[0] = 2;
    values[1] = 1;
    values[2] = 0;
    values[3] = 2;
    status_ = RowNumbersToIds(graph_, ids_, absl::MakeSpan(&tensor, 1));
    if (!status_.ok()) return {};
    return {values.begin(), values.end()};
  }

  testing::TempDir dir_;
  Graph graph_;
  ValueId input_ = kNoValue;
  TableIds ids_;
  std::map<std::string, ValueId> tables_;
  absl::Status status_;
};

TEST_F(TableIdsTest, EachColumnHasTheIdsOfItsTable) {
  LookUp("a", Column(0));
  LookUp("b", Column(1));
  LookUp("a", Column(0));
  EXPECT_THAT(Changed(), ElementsAre(1, 80, 2, 90)) << status_;
}

TEST_F(TableIdsTest, EachRowHasTheIdsOfItsTable) {
  LookUp("a", Part(0, 0));
  LookUp("b", Part(0, 1));
  LookUp("a", Part(0, 0));
  EXPECT_THAT(Changed(), ElementsAre(1, 0, 70, 90)) << status_;
}

TEST_F(TableIdsTest, OneRowOfTwoTablesIsRefused) {
  LookUp("a", Part(0, 0));
  LookUp("b", Part(0, 0));
  Changed();
  EXPECT_THAT(status_.message(), HasSubstr("tables a and b, whose ids differ"));
}

TEST_F(TableIdsTest, ColumnsCountFromTheEnd) {
  LookUp("a", Column(0));
  LookUp("b", Column(-1));
  EXPECT_THAT(Changed(), ElementsAre(1, 80, 2, 90)) << status_;
}

TEST_F(TableIdsTest, AMatrixAndItsColumnsChangeOnce) {
  LookUp("a", Column(1));
  LookUp("a", input_);
  LookUp("a", Column(0));
  ids_.erase("b");
  EXPECT_THAT(Changed(), ElementsAre(1, 0, 2, 1)) << status_;
}

TEST_F(TableIdsTest, ColumnsOfOneTableAndTheMatrixOfAnotherAreRefused) {
  LookUp("b", Column(1));
  LookUp("a", input_);
  Changed();
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status_.message(), HasSubstr("tables a and b, whose ids differ"));
}

TEST_F(TableIdsTest, DimensionOneOfThreeIsNoColumn) {
  graph_.values[input_].shape = {SymExpr(1), SymExpr(2), SymExpr(2)};
  LookUp("a", Column(0));
  LookUp("b", Column(1));
  Changed();
  EXPECT_THAT(status_.message(), HasSubstr("whose ids differ"));
}

}  // namespace
}  // namespace refract::models
