// Ids in bags as trainers lay them out: a row for each table, or pieces of a list.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/loadgen/made_requests.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Meta's DLRM: ids and offsets are matrices with a row for each table.
ServedModel FeatureMajor() {
  return {
      .name = "m",
      .inputs = {{"offsets", kInt64, {2, -1}}, {"ids", kInt64, {2, -1}}},
      .parameters = {{"batch_symbol", "b"},
                     {"shape.offsets", "2;b"},
                     {"shape.ids", "2;n"},
                     {"ids.ids", "table=t rows=100 row=0;table=u rows=3 row=1"},
                     {"bags.offsets", "ids=ids include_last=false"}}};
}

TEST(BagLayoutsTest, RowsOfOffsetsDivideRowsOfIds) {
  for (const bool told : {true, false}) {
    SCOPED_TRACE(told);
    ServedModel model = FeatureMajor();
    if (!told) {
      for (const char* key : {"batch_symbol", "shape.offsets", "shape.ids"}) {
        model.parameters.erase(key);
      }
    }
    const auto tensors = Made(MakerFor(model, "fixed:2"), 40);
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_THAT(tensors[0].dims(), ElementsAre(2, 40));
    EXPECT_THAT(tensors[1].dims(), ElementsAre(2, 80));
    const std::vector<int64_t> offsets = Ints(tensors[0]);
    const std::vector<int64_t> ids = Ints(tensors[1]);
    for (size_t i = 0; i < offsets.size(); ++i) {
      EXPECT_EQ(offsets[i], static_cast<int64_t>(i % 40 * 2));
    }
    EXPECT_GT(*std::max_element(ids.begin(), ids.begin() + 80), 50);
    EXPECT_EQ(*std::max_element(ids.begin() + 80, ids.end()), 2);
  }
}

TEST(BagLayoutsTest, RowsOfOffsetsDivideListsOfIds) {
  ServedModel model = FeatureMajor();
  model.inputs[1] = {"ids_0", kInt64, {-1}};
  model.inputs.push_back({"ids_1", kInt64, {-1}});
  model.parameters["ids.ids_0"] = "table=t rows=100";
  model.parameters["ids.ids_1"] = "table=u rows=3";
  model.parameters["shape.ids_0"] = "n";
  model.parameters["shape.ids_1"] = "k";
  model.parameters["bags.offsets"] =
      "ids=ids_0 include_last=false row=0;ids=ids_1 include_last=false row=1";
  const auto tensors = Made(MakerFor(model, "list:2,3"), 4);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_THAT(Ints(tensors[0]), ElementsAre(0, 2, 4, 6, 0, 3, 6, 9));
  EXPECT_THAT(tensors[1].dims(), ElementsAre(8));
  EXPECT_THAT(tensors[2].dims(), ElementsAre(12));

  // A single row.
  ServedModel one = model;
  one.inputs.pop_back();
  one.inputs[0].dims = {1, -1};
  one.parameters["shape.offsets"] = "1;b";
  one.parameters["bags.offsets"] = "ids=ids_0 include_last=false row=0";
  EXPECT_THAT(Ints(Made(MakerFor(one, "fixed:2"), 3)[0]),
              ElementsAre(0, 2, 4));

  // A row too few, and rows in another order.
  for (const char* bags :
       {"ids=ids_0 include_last=false row=0",
        "ids=ids_0 include_last=false row=1;ids=ids_1 include_last=false row=0",
        "ids=ids_0 row=0;ids=ids_0 row=1"}) {
    model.parameters["bags.offsets"] = bags;
    const auto refused = MakerFor(model).status();
    EXPECT_THAT(refused.message(), HasSubstr("names no list of ids of its own"))
        << bags;
  }
}

// TorchRec's KeyedJaggedTensor: the ids of all tables in one list, and a length
// for each table and item.
ServedModel Jagged() {
  return {.name = "m",
          .inputs = {{"values", kInt64, {-1}}, {"lengths", kInt64, {-1}}},
          .parameters = {
              {"batch_symbol", "b"},
              {"shape.values", "n"},
              {"shape.lengths", "2*b"},
              {"ids.values", "table=t rows=100 piece=0;table=u rows=3 piece=1"},
              {"lengths.lengths", "ids=values pieces=2"}}};
}

TEST(BagLayoutsTest, LengthsAddUpToTheIdsOfEachPiece) {
  for (const bool told : {true, false}) {
    SCOPED_TRACE(told);
    ServedModel model = Jagged();
    if (!told) {
      for (const char* key :
           {"batch_symbol", "shape.values", "shape.lengths"}) {
        model.parameters.erase(key);
      }
    }
    const auto tensors = Made(MakerFor(model, "list:3,2"), 40);
    ASSERT_EQ(tensors.size(), 2u);
    const std::vector<int64_t> ids = Ints(tensors[0]);
    ASSERT_EQ(ids.size(), 200u);
    const std::vector<int64_t> lengths = Ints(tensors[1]);
    ASSERT_EQ(lengths.size(), 80u);
    for (size_t i = 0; i < 80; ++i) EXPECT_EQ(lengths[i], i < 40 ? 3 : 2);
    EXPECT_GT(*std::max_element(ids.begin(), ids.begin() + 120), 50);
    EXPECT_EQ(*std::max_element(ids.begin() + 120, ids.end()), 2);
  }
}

TEST(BagLayoutsTest, RaggedLengthsAddUpToTheIds) {
  const auto tensors = Made(MakerFor(Jagged(), "mean:2", {.seed = 3}), 50);
  ASSERT_EQ(tensors.size(), 2u);
  const std::vector<int64_t> lengths = Ints(tensors[1]);
  const auto first = std::accumulate(lengths.begin(), lengths.begin() + 50, 0);
  const auto all = std::accumulate(lengths.begin(), lengths.end(), 0);
  const std::vector<int64_t> ids = Ints(tensors[0]);
  ASSERT_EQ(static_cast<int>(ids.size()), all);
  EXPECT_LE(*std::max_element(ids.begin() + first, ids.end()), 2);
}

TEST(BagLayoutsTest, LengthsOfNothingAreRefused) {
  for (const char* text :
       {"ids=nothing pieces=2", "ids=values", "", "ids=values pieces=0",
        "ids=values pieces=99999999"}) {
    ServedModel model = Jagged();
    model.parameters["lengths.lengths"] = text;
    EXPECT_THAT(MakerFor(model).status().message(),
                HasSubstr("input lengths: its parameter lengths.lengths"))
        << text;
  }
  ServedModel model = Jagged();
  model.parameters["ids.values"] = "table=t rows=100 piece=2";
  EXPECT_THAT(MakerFor(model).status().message(), HasSubstr("names piece '2'"));
}

TEST(BagLayoutsTest, RowsOfEachFeatureMayBeGiven) {
  ServedModel model = FeatureMajor();
  model.parameters.erase("ids.ids");
  auto plan = PlanRequests(model, {{"ids", {7, 1}}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto tensors = Made(RequestMaker::Create(*std::move(plan), {}), 50);
  ASSERT_EQ(tensors.size(), 2u);
  const std::vector<int64_t> ids = Ints(tensors[1]);
  EXPECT_EQ(*std::max_element(ids.begin(), ids.begin() + 50), 6);
  EXPECT_EQ(*std::max_element(ids.begin() + 50, ids.end()), 0);
}

TEST(BagLayoutsTest, CriteoRowsFillFeatureMajorMatrices) {
  ServedModel model{.name = "m",
                    .inputs = {{"dense", kFloat, {-1, 13}},
                               {"offsets", kInt64, {26, -1}},
                               {"ids", kInt64, {26, -1}}},
                    .parameters = {{"batch_symbol", "b"},
                                   {"shape.dense", "b;13"},
                                   {"shape.offsets", "26;b"},
                                   {"shape.ids", "26;b"},
                                   {"bags.offsets", "ids=ids"}}};
  std::string& tables = model.parameters["ids.ids"];
  for (int i = 0; i < 26; ++i) {
    absl::StrAppend(&tables, i == 0 ? "" : ";", "table=t rows=1000 row=", i);
  }
  const auto tensors =
      Made(MakerFor(model, "fixed:1", {.criteo = ThreeRows()}), 3);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_THAT(tensors[2].dims(), ElementsAre(26, 3));
  // As the same rows by item: the category of the last feature differs.
  const auto by_item =
      Made(MakerFor(CriteoModel(), "fixed:1", {.criteo = ThreeRows()}), 3);
  ASSERT_EQ(by_item.size(), 53u);
  for (int feature = 0; feature < 26; ++feature) {
    const std::vector<int64_t> all = Ints(tensors[2]);
    EXPECT_EQ(
        std::vector(all.begin() + feature * 3, all.begin() + feature * 3 + 3),
        Ints(by_item[1 + 2 * feature]));
  }
}

}  // namespace
}  // namespace refract::loadgen
