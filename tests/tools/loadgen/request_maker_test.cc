#include "tools/loadgen/request_maker.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "runtime/cpu/half.h"
#include "tests/tools/loadgen/made_requests.h"

namespace refract::loadgen {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As `refract import` describes a model with two bags: DLRM's layout.
ServedModel TwoBags() {
  return {.name = "m",
          .inputs = {{"dense", kFloat, {-1, 13}},
                     {"ids_0", kInt64, {-1}},
                     {"ids_1", kInt64, {-1}},
                     {"offsets_0", kInt64, {-1}},
                     {"offsets_1", kInt64, {-1}}},
          .parameters = {{"batch_symbol", "s0"},
                         {"shape.dense", "s0;13"},
                         {"shape.ids_0", "s1"},
                         {"shape.ids_1", "s2"},
                         {"shape.offsets_0", "s0 + 1"},
                         {"shape.offsets_1", "s0 + 1"},
                         {"ids.ids_0", "table=t0 rows=100"},
                         {"ids.ids_1", "table=t1 rows=3"},
                         {"offsets.offsets_0", "table=t0 rows=100"},
                         {"offsets.offsets_1", "table=t1 rows=3"},
                         {"bags.offsets_0", "ids=ids_0 include_last=true"},
                         {"bags.offsets_1", "ids=ids_1 include_last=true"}}};
}

TEST(RequestMakerTest, OneIdPerBagByDefault) {
  const auto tensors = Made(MakerFor(TwoBags()), 4);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_THAT(tensors[0].dims(), ElementsAre(4, 13));
  EXPECT_THAT(tensors[1].dims(), ElementsAre(4));
  EXPECT_THAT(Ints(tensors[3]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Ints(tensors[4]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Ints(tensors[2]),
              Each(testing::AllOf(testing::Ge(0), testing::Lt(3))));
}

// Element i as a number, by its type.
double ValueOf(const base::Tensor& tensor, size_t i) {
  using runtime::cpu::BFloat16;
  using runtime::cpu::Float16;
  const base::TensorView view = tensor.view();
  switch (tensor.dtype()) {
    case base::DType::kBool:
    case base::DType::kUInt8:
      return view.as<uint8_t>()[i];
    case base::DType::kInt8:
      return view.as<int8_t>()[i];
    case base::DType::kInt16:
      return view.as<int16_t>()[i];
    case base::DType::kInt32:
      return view.as<int32_t>()[i];
    case base::DType::kInt64:
      return static_cast<double>(view.as<int64_t>()[i]);
    case base::DType::kFloat16:
      return ToFloat(view.as<Float16>()[i]);
    case base::DType::kBFloat16:
      return ToFloat(view.as<BFloat16>()[i]);
    case base::DType::kFloat32:
      return view.as<float>()[i];
    case base::DType::kFloat64:
      return view.as<double>()[i];
    case base::DType::kUnknown:
      break;
  }
  ADD_FAILURE();
  return 0;
}

TEST(RequestMakerTest, EveryTypeThatAModelCanHaveIsMade) {
  for (int code = 1; code < base::kNumDTypes; ++code) {
    const auto dtype = static_cast<base::DType>(code);
    SCOPED_TRACE(std::string(base::KServeName(dtype)));
    const auto plain = Made(
        MakerFor(
            {.name = "m", .inputs = {{"x", dtype, {-1}}}, .parameters = {}},
            "fixed:1", {.length = 1000}),
        400);
    ASSERT_EQ(plain.size(), 1u);
    ASSERT_EQ(plain[0].dtype(), dtype);
    double sum = 0, squares = 0, least = 0, most = 0;
    for (size_t i = 0; i < 400; ++i) {
      const double value = ValueOf(plain[0], i);
      sum += value;
      squares += value * value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (base::IsFloatingPoint(dtype)) {
      // Standard normal, five standard deviations of the mean and more.
      EXPECT_NEAR(sum / 400, 0, 0.25);
      EXPECT_NEAR(squares / 400, 1, 0.4);
      continue;
    }
    const double largest =
        dtype == base::DType::kBool
            ? 1
            : std::min<double>(1000, static_cast<double>(LargestOf(dtype)));
    EXPECT_EQ(least, 0);
    EXPECT_LE(most, largest);
    EXPECT_GE(most, 0.9 * largest);
    if (dtype == base::DType::kBool) continue;
    const auto ids =
        Made(MakerFor({.name = "m",
                       .inputs = {{"x", dtype, {-1}}},
                       .parameters = {{"ids.x", "table=t rows=60000"}}}),
             400);
    ASSERT_EQ(ids.size(), 1u);
    for (size_t i = 0; i < 400; ++i) {
      ASSERT_GE(ValueOf(ids[0], i), 0);
      ASSERT_LT(ValueOf(ids[0], i), 60000);
    }
  }
}

TEST(RequestMakerTest, ListedBagSizesGoToTheirInputs) {
  const auto tensors = Made(MakerFor(TwoBags(), "list:2,0"), 3);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_THAT(tensors[1].dims(), ElementsAre(6));
  EXPECT_THAT(tensors[2].dims(), ElementsAre(0));
  EXPECT_THAT(Ints(tensors[3]), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(Ints(tensors[4]), ElementsAre(0, 0, 0, 0));
}

TEST(RequestMakerTest, RaggedBagsAgreeWithTheirOffsets) {
  auto maker = MakerFor(TwoBags(), "mean:5");
  ASSERT_TRUE(maker.ok()) << maker.status();
  int64_t ids = 0;
  bool empty_bag = false;
  for (int i = 0; i < 50; ++i) {
    const auto tensors = maker->Make(20);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const std::vector<int64_t> offsets = Ints((*tensors)[3]);
    ASSERT_EQ(offsets.size(), 21u);
    EXPECT_EQ(offsets.front(), 0);
    EXPECT_EQ(offsets.back(), (*tensors)[1].dims()[0]);
    for (size_t k = 1; k < offsets.size(); ++k) {
      EXPECT_GE(offsets[k], offsets[k - 1]);
      EXPECT_LE(offsets[k], offsets[k - 1] + 10);
      empty_bag |= offsets[k] == offsets[k - 1];
    }
    ids += offsets.back();
  }
  EXPECT_TRUE(empty_bag);
  // 1000 bags of mean 5 and variance 10: five deviations.
  EXPECT_NEAR(ids / 1000.0, 5, 0.5);
}

TEST(RequestMakerTest, OffsetsWithoutALastOne) {
  ServedModel model = TwoBags();
  model.parameters["bags.offsets_1"] = "ids=ids_1 include_last=false";
  model.parameters["shape.offsets_1"] = "s0";
  const auto tensors = Made(MakerFor(model, "fixed:2"), 3);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_THAT(Ints(tensors[3]), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(Ints(tensors[4]), ElementsAre(0, 2, 4));
  EXPECT_THAT(tensors[2].dims(), ElementsAre(6));
}

// A two-tower model: one user, many items, one bag for the user.
TEST(RequestMakerTest, FixedSizesStay) {
  const ServedModel model{
      .name = "m",
      .inputs = {{"history", kInt64, {-1}},
                 {"history_offsets", kInt64, {2}},
                 {"user", kFloat, {1, 4}},
                 {"item_fields", kInt64, {-1, 2}}},
      .parameters = {{"batch_symbol", "b"},
                     {"shape.history", "h"},
                     {"shape.history_offsets", "2"},
                     {"shape.user", "1;4"},
                     {"shape.item_fields", "b;2"},
                     {"ids.history", "table=i rows=10"},
                     {"bags.history_offsets", "ids=history include_last=true"},
                     {"ids.item_fields",
                      "table=a rows=1000 column=0;table=b rows=2 column=1;"
                      "table=c rows=7 column=0"}}};
  const auto tensors = Made(MakerFor(model, "fixed:6"), 200);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_THAT(tensors[0].dims(), ElementsAre(6));
  EXPECT_THAT(Ints(tensors[1]), ElementsAre(0, 6));
  EXPECT_THAT(tensors[2].dims(), ElementsAre(1, 4));
  EXPECT_THAT(tensors[3].dims(), ElementsAre(200, 2));
  // Column 0 feeds two tables: the smaller one binds.
  int64_t largest[2] = {};
  const std::vector<int64_t> fields = Ints(tensors[3]);
  for (size_t i = 0; i < fields.size(); ++i) {
    largest[i % 2] = std::max(largest[i % 2], fields[i]);
  }
  EXPECT_EQ(largest[0], 6);
  EXPECT_EQ(largest[1], 1);
}

TEST(RequestMakerTest, SequencesHaveTheLengthAsked) {
  const ServedModel model{
      .name = "m",
      .inputs = {{"history", kInt64, {-1, -1}}, {"lengths", kInt64, {-1}}},
      .parameters = {{"batch_symbol", "s0"},
                     {"shape.history", "s0;s1"},
                     {"shape.lengths", "s0"},
                     {"ids.history", "table=i rows=10"}}};
  const auto tensors = Made(MakerFor(model, "fixed:1", {.length = 7}), 300);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_THAT(tensors[0].dims(), ElementsAre(300, 7));
  const std::vector<int64_t> lengths = Ints(tensors[1]);
  EXPECT_EQ(*std::min_element(lengths.begin(), lengths.end()), 0);
  EXPECT_EQ(*std::max_element(lengths.begin(), lengths.end()), 7);
}

// DeepFM adds a constant to its ids, so import cannot tell their table.
TEST(RequestMakerTest, MatricesOfUnknownIntegersAreZero) {
  ServedModel model{
      .name = "m",
      .inputs = {{"ids", kInt64, {-1, 3}}},
      .parameters = {{"batch_symbol", "s0"}, {"shape.ids", "s0;3"}}};
  const auto plan = PlanRequests(model, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(HasUnknownIntegers(plan->inputs[0]));
  const auto tensors = Made(MakerFor(model), 100);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_THAT(Ints(tensors[0]), Each(0));

  const auto told = PlanRequests(model, {{"ids", {5, 6, 7}}});
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_FALSE(HasUnknownIntegers(told->inputs[0]));
}

// A two-tower model: torch.export may give the users a size of their own.
TEST(RequestMakerTest, RowsBesideTheItemsAreAsMany) {
  ServedModel model = TwoBags();
  model.parameters["shape.offsets_0"] = "users + 1";
  model.inputs.push_back({"user", kFloat, {-1, 2}});
  model.parameters["shape.user"] = "users;2";
  for (const char* name : {"age", "country"}) {
    model.inputs.push_back({name, kFloat, {-1}});
    model.parameters[absl::StrCat("shape.", name)] = "others";
  }
  const auto tensors = Made(MakerFor(model), 4);
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_THAT(tensors[3].dims(), ElementsAre(5));
  EXPECT_THAT(tensors[5].dims(), ElementsAre(4, 2));
  EXPECT_THAT(tensors[6].dims(), ElementsAre(4));
  // A user for all candidates, and a length below --length.
  model.parameters["size_limits"] = "users=1-2;steps=0-20";
  model.inputs.push_back({"history", kFloat, {-1, -1}});
  model.parameters["shape.history"] = "s0;steps";
  const auto limited = Made(MakerFor(model), 4);
  ASSERT_EQ(limited.size(), 9u);
  EXPECT_THAT(limited[3].dims(), ElementsAre(2));
  EXPECT_THAT(limited[5].dims(), ElementsAre(1, 2));
  EXPECT_THAT(limited[8].dims(), ElementsAre(4, 20));
}

TEST(RequestMakerTest, IndicesAreInTheirRange) {
  const ServedModel model{.name = "m",
                          .inputs = {{"steps", kFloat, {-1, -1}},
                                     {"length", kInt64, {-1}},
                                     {"matrix", kInt64, {-1, 2}},
                                     {"hashed", kInt64, {-1}},
                                     {"packed", kFloat, {-1}}},
                          .parameters = {{"batch_symbol", "s0"},
                                         {"shape.steps", "s0;t"},
                                         {"shape.length", "s0"},
                                         {"shape.matrix", "s0;2"},
                                         {"shape.hashed", "s0"},
                                         {"shape.packed", "s0"},
                                         {"integers.length", "1;t + 1"},
                                         {"integers.matrix", "2;4"},
                                         {"integers.hashed", "3;?"},
                                         {"integers.packed", "0;?"}}};
  RequestOptions options;
  options.length = 3;
  const auto tensors = Made(MakerFor(model, "fixed:1", options), 100);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_THAT(Ints(tensors[3]), Each(3));
  EXPECT_THAT(tensors[4].view().as<float>(), Each(0));
  const std::vector<int64_t> lengths = Ints(tensors[1]);
  EXPECT_THAT(std::set<int64_t>(lengths.begin(), lengths.end()),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(Ints(tensors[2]), Each(testing::AnyOf(2, 3)));
  for (const char* bad : {"1", "x;4", "-1;4", "1;4;"}) {
    ServedModel other = model;
    other.parameters["integers.length"] = bad;
    EXPECT_FALSE(PlanRequests(other, {}).ok()) << bad;
  }
}

TEST(RequestMakerTest, ServersWithoutExpressionsAreGuessed) {
  ServedModel model = TwoBags();
  for (auto it = model.parameters.begin(); it != model.parameters.end();) {
    it = it->first.rfind("shape.", 0) == 0 || it->first == "batch_symbol"
             ? model.parameters.erase(it)
             : std::next(it);
  }
  const auto tensors = Made(MakerFor(model, "list:2,1"), 3);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_THAT(tensors[0].dims(), ElementsAre(3, 13));
  EXPECT_THAT(tensors[1].dims(), ElementsAre(6));
  EXPECT_THAT(Ints(tensors[3]), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(Ints(tensors[4]), ElementsAre(0, 1, 2, 3));
}

TEST(RequestMakerTest, SeedDecidesTheValues) {
  const auto values = [](uint64_t seed) {
    return Ints(Made(MakerFor(TwoBags(), "fixed:1", {.seed = seed}), 50)[1]);
  };
  EXPECT_EQ(values(1), values(1));
  EXPECT_NE(values(1), values(2));
}

TEST(RequestMakerTest, CriteoRowsFollowOneAnotherAndComeRound) {
  auto maker = MakerFor(CriteoModel(), "fixed:1", {.criteo = ThreeRows()});
  ASSERT_TRUE(maker.ok()) << maker.status();
  auto first = maker->Make(2);
  auto second = maker->Make(2);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto dense = [](const std::vector<base::Tensor>& request, int item) {
    return request[0].view().as<float>()[item * 13 + 12];
  };
  EXPECT_EQ(dense(*first, 0), 0);
  EXPECT_EQ(dense(*first, 1), 1);
  EXPECT_EQ(dense(*second, 0), 2);
  EXPECT_EQ(dense(*second, 1), 0);
  // The last input pair is ids_25, offsets_25.
  EXPECT_THAT(Ints((*second)[51]), ElementsAre(2, 0));
  EXPECT_THAT(Ints((*second)[52]), ElementsAre(0, 1, 2));
  EXPECT_THAT(Ints((*second)[1]), ElementsAre(0, 0));  // absent categories
}

TEST(RequestMakerTest, CriteoFillsAMatrixOfColumns) {
  ServedModel model{
      .name = "m",
      .inputs = {{"dense", kFloat, {-1, 13}}, {"ids", kInt64, {-1, 26}}},
      .parameters = {{"ids.ids", "table=t rows=2000"}}};
  const auto tensors =
      Made(MakerFor(model, "fixed:1", {.criteo = ThreeRows()}), 2);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(Ints(tensors[1])[25], 1000);
  EXPECT_EQ(Ints(tensors[1])[51], 1001);
  EXPECT_EQ(Ints(tensors[1])[0], 0);
}

TEST(RequestMakerTest, CriteoNeedsItsShape) {
  const auto maker = MakerFor(TwoBags(), "fixed:1", {.criteo = ThreeRows()});
  EXPECT_EQ(maker.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(maker.status().message()), HasSubstr("--criteo"));
}

TEST(RequestMakerTest, BagListMustFitTheModel) {
  EXPECT_THAT(std::string(MakerFor(TwoBags(), "mlperf").status().message()),
              HasSubstr("26 bags, the model has 2"));
  EXPECT_TRUE(MakerFor(CriteoModel(), "mlperf").ok());
  const auto tensors = Made(MakerFor(CriteoModel(), "mlperf"), 1);
  int64_t ids = 0;
  for (size_t i = 1; i < tensors.size(); i += 2) ids += tensors[i].dims()[0];
  EXPECT_EQ(ids, 214);
}

TEST(BagSizesTest, RefusesOtherTexts) {
  for (const char* bad : {"", "1", "fixed:", "fixed:-1", "fixed:1,2",
                          "mean:1,2", "list:", "list:1,,2", "fixed:1000000"}) {
    EXPECT_EQ(BagSizes::Parse(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

// DeepCTR-Torch packs ids and dense features into one matrix of floats.
TEST(PlanRequestsTest, ColumnsOfFloatsAreIdsOrFeatures) {
  const ServedModel model{.name = "m",
                          .inputs = {{"x", kFloat, {-1, 5}}},
                          .parameters = {{"batch_symbol", "b"},
                                         {"shape.x", "b;5"},
                                         {"ids.x",
                                          "table=t rows=30 column=1-2;"
                                          "table=u rows=3 column=2-3"}}};
  const auto tensors = Made(MakerFor(model), 200);
  ASSERT_EQ(tensors.size(), 1u);
  const auto values = tensors[0].view().as<float>();
  std::vector<float> most(5, 0), least(5, 0);
  std::vector<bool> whole(5, true);
  for (size_t i = 0; i < values.size(); ++i) {
    most[i % 5] = std::max(most[i % 5], values[i]);
    least[i % 5] = std::min(least[i % 5], values[i]);
    if (values[i] != std::round(values[i])) whole[i % 5] = false;
  }
  EXPECT_THAT(whole, ElementsAre(false, true, true, true, false));
  EXPECT_EQ(most[1], 29);
  EXPECT_EQ(most[2], 2);
  EXPECT_EQ(most[3], 2);
  EXPECT_EQ(least[1], 0);
  EXPECT_LT(least[0], 0);
  EXPECT_LT(least[4], 0);
  for (const char* bad :
       {"column=3-", "column=-1", "column=2-1", "column=3-5"}) {
    ServedModel other = model;
    other.parameters["ids.x"] = absl::StrCat("table=t rows=30 ", bad);
    EXPECT_FALSE(PlanRequests(other, {}).ok()) << bad;
  }
}

TEST(PlanRequestsTest, RowsOfTheCommandLineBind) {
  const auto rows = ParseRows({"ids_0=7", "ids_1=9"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto plan = PlanRequests(TwoBags(), *rows);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->inputs[1].rows, ElementsAre(7));
  EXPECT_THAT(plan->inputs[2].rows, ElementsAre(9));
  for (const char* bad : {"", "ids_0", "ids_0=", "ids_0=0", "ids_0=1,x"}) {
    EXPECT_FALSE(ParseRows({bad}).ok()) << bad;
  }
}

// A file with the ids of tables, whose first id is `first`.
TableIds IdsOf(const std::vector<std::pair<std::string, int64_t>>& tables,
               int64_t first) {
  std::vector<std::vector<int64_t>> values;
  std::vector<std::pair<std::string, base::TensorView>> tensors;
  for (const auto& [table, rows] : tables) {
    std::vector<int64_t>& ids = values.emplace_back();
    for (int64_t row = 0; row < rows; ++row) ids.push_back(first - 7 * row);
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    base::TensorView view;
    view.dtype = kInt64;
    view.dims = {tables[i].second};
    view.data = reinterpret_cast<const std::byte*>(values[i].data());
    view.bytes = values[i].size() * sizeof(int64_t);
    tensors.emplace_back(tables[i].first + ".ids", view);
  }
  const std::string path = testing::TempDir() + "/table_ids.safetensors";
  EXPECT_TRUE(models::WriteSafetensors(path, tensors).ok());
  auto ids = TableIds::Open({path});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *std::move(ids);
}

TEST(PlanRequestsTest, IdsOfTablesTakeThePlaceOfTheirRows) {
  const TableIds ids = IdsOf({{"t0", 100}}, -5);
  ServedModel model = TwoBags();
  model.inputs.push_back({"matrix", kInt64, {-1, 3}});
  model.parameters["shape.matrix"] = "s0;3";
  model.parameters["ids.matrix"] =
      "table=t1 rows=40 column=0;table=t0 rows=100 column=2";
  auto rows_plan = PlanRequests(model, {});
  auto ids_plan = PlanRequests(model, {}, ids);
  ASSERT_TRUE(rows_plan.ok()) << rows_plan.status();
  ASSERT_TRUE(ids_plan.ok()) << ids_plan.status();
  const auto rows = Made(RequestMaker::Create(*rows_plan, {}), 20);
  const auto made = Made(RequestMaker::Create(*ids_plan, {}), 20);
  ASSERT_EQ(made.size(), rows.size());
  for (size_t i = 1; i < rows.size(); ++i) {
    std::vector<int64_t> expected = Ints(rows[i]);
    for (size_t k = 0; k < expected.size(); ++k) {
      const bool of_t0 = i == 1 || (i == 5 && k % 3 == 2);
      if (of_t0) expected[k] = -5 - 7 * expected[k];
    }
    EXPECT_EQ(Ints(made[i]), expected) << "input " << i;
  }
}

TEST(TableIdsTest, NamesFileAndTensorThatAreNoIds) {
  const std::string path = testing::TempDir() + "/no_ids.safetensors";
  const std::vector<int64_t> values(6);
  base::TensorView view;
  view.dtype = kInt64;
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.bytes = values.size() * sizeof(int64_t);
  const auto error = [&](const std::string& name, base::Dims dims) {
    view.dims = dims;
    EXPECT_TRUE(models::WriteSafetensors(path, {{name, view}}).ok());
    return std::string(TableIds::Open({path}).status().message());
  };
  EXPECT_THAT(
      error("t0.ids", {2, 3}),
      HasSubstr("no_ids.safetensors: tensor t0.ids: is int64[2, 3]; the "
                "ids of this table are int64[rows]"));
  EXPECT_THAT(error("t0", {6}),
              HasSubstr("no_ids.safetensors: has no tensor TABLE.ids"));
  EXPECT_EQ(error("t0.ids", {6}), "");
  const auto twice = TableIds::Open({path, path});
  EXPECT_THAT(std::string(twice.status().message()),
              HasSubstr("tensor t0.ids: is in another file, too"));
}

TEST(PlanRequestsTest, NamesTheInputWhoseIdsDoNotFit) {
  const auto error = [](const TableIds& ids, auto change) {
    ServedModel model = TwoBags();
    change(model);
    return std::string(PlanRequests(model, {}, ids).status().message());
  };
  const auto none = [](ServedModel&) {};
  EXPECT_THAT(error(IdsOf({{"t0", 99}}, 0), none),
              HasSubstr("input ids_0: table t0 has 100 rows; --table-ids has "
                        "99 ids"));
  EXPECT_THAT(error(IdsOf({{"t", 100}}, 0), none),
              HasSubstr("no input of m is looked up in a table"));
  EXPECT_THAT(
      error(IdsOf({{"t0", 100}}, 0),
            [](ServedModel& m) { m.inputs[1].dtype = base::DType::kInt32; }),
      HasSubstr("input ids_0: is int32; table t0 has ids of int64"));
  EXPECT_THAT(error(IdsOf({{"t1", 100}}, 0),
                    [](ServedModel& m) {
                      m.parameters["ids.ids_0"] =
                          "table=t0 rows=100;table=t1 rows=100";
                    }),
              HasSubstr("input ids_0: is looked up in tables t0 and t1"));
}

TEST(PlanRequestsTest, NamesTheInputThatCannotBeFilled) {
  struct Case {
    std::string what;
    ServedModel model;
    std::vector<std::string> rows;
    std::string named;
  };
  std::vector<Case> cases;
  const auto add = [&](std::string what, std::string named, auto change,
                       std::vector<std::string> rows = {}) {
    ServedModel model = TwoBags();
    change(model);
    cases.push_back({what, model, rows, named});
  };
  add("unknown dtype", "input ids_0", [](ServedModel& m) {
    m.inputs[1].dtype = base::DType::kUnknown;
    m.inputs[1].unknown_type = "BYTES";
  });
  add("unknown dtype", "'BYTES'", [](ServedModel& m) {
    m.inputs[1].dtype = base::DType::kUnknown;
    m.inputs[1].unknown_type = "BYTES";
  });
  add("small offsets", "input offsets_1",
      [](ServedModel& m) { m.inputs[4].dtype = base::DType::kInt16; });
  add("no rows", "input ids_0",
      [](ServedModel& m) { m.parameters["ids.ids_0"] = "table=t0"; });
  add("column outside", "input ids_0", [](ServedModel& m) {
    m.parameters["ids.ids_0"] = "table=t0 rows=4 column=3";
  });
  add("bags of nothing", "input offsets_1", [](ServedModel& m) {
    m.parameters["bags.offsets_1"] = "ids=nothing include_last=true";
  });
  add("two offsets for one input", "input offsets_1", [](ServedModel& m) {
    m.parameters["bags.offsets_1"] = "ids=ids_0 include_last=true";
  });
  add("no bags", "input offsets_1",
      [](ServedModel& m) { m.parameters.erase("bags.offsets_1"); });
  add("wrong rank", "input dense",
      [](ServedModel& m) { m.parameters["shape.dense"] = "s0"; });
  add("no expression", "input dense",
      [](ServedModel& m) { m.parameters["shape.dense"] = "s0;(("; });
  add("rows of no input", "no ids input other", [](ServedModel&) {},
      {"other=5"});
  add("rows of a float", "no ids input dense", [](ServedModel&) {},
      {"dense=5"});
  add("too many columns", "input ids_0", [](ServedModel&) {}, {"ids_0=5,6"});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const auto rows = ParseRows(c.rows);
    ASSERT_TRUE(rows.ok());
    const auto plan = PlanRequests(c.model, *rows);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(c.named));
  }
}

}  // namespace
}  // namespace refract::loadgen
