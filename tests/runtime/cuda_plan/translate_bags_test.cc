// Bags of ids on the emulated GPU: requests with any number of entries, what
// requests get wrong, and which graphs have no form. (Random parts:
// random_bags_test.)

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda_plan/bag_nodes.h"
#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan {
namespace {

using runtime::testing::Ints;
using runtime::testing::RunByLibTorch;
using testing::AddBag;
using testing::BagArgs;
using testing::DType;
using testing::Integers;
using ::testing::IsEmpty;
using testing::kMaxBatch;
using testing::Model;
using testing::Must;
using testing::OnDevice;
using testing::Ref;
using testing::Sym;
using testing::SymExpr;
using testing::ValueId;
using testing::Views;

// Independent tables are read together.
TEST(TranslateBagsTest, ManyTablesAreFewOperators) {
  Model m;
  m.graph().batch_symbol = "b";
  for (int i = 0; i < 40; ++i) {
    const SymExpr entries = Sym(absl::StrCat("n", i));
    m.Output(AddBag(
        m,
        {.table = m.Floats(absl::StrCat("table", i), {3, 4}),
         .ids = m.Input(absl::StrCat("ids", i), DType::kInt64, {entries}),
         .offsets =
             m.Input(absl::StrCat("offsets", i), DType::kInt64, {Sym("b")})},
        4));
  }
  const models::Graph& graph = m.graph();
  const auto translation =
      Must(Translate(graph, Part::Whole(graph), m.Weights(),
                     testing::OptionsFor(Precision::kFloat32)));
  ASSERT_EQ(translation.program.ops.size(), 2u);
  EXPECT_EQ(std::get<cuda::BagsOp>(translation.program.ops[0].kind).bags.size(),
            static_cast<size_t>(cuda::kMaxBagTables));
  EXPECT_EQ(translation.bags.size(), 40u);
  EXPECT_EQ(translation.bag_checks.size(), 40u);
}

// One table.
struct Small {
  explicit Small(bool include_last = true, int64_t declared = 0) {
    m.graph().batch_symbol = "b";
    m.graph().symbols = {{"b", 1, 1000}};
    if (declared > 0) m.graph().symbols.push_back({"n", 0, declared});
    table = m.Floats("table", {kRows, kDim});
    ids = m.Input("ids", DType::kInt64, {Sym("n")});
    offsets = m.Input("offsets", DType::kInt64,
                      {include_last ? Sym("b") + SymExpr(1) : Sym("b")});
    bag = {.table = table,
           .ids = ids,
           .offsets = offsets,
           .include_last = include_last};
  }
  std::vector<base::Tensor> Request(const std::vector<int64_t>& id_list,
                                    const std::vector<int64_t>& offset_list) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(Integers(DType::kInt64, id_list));
    inputs.push_back(Integers(DType::kInt64, offset_list));
    return inputs;
  }
  static constexpr int64_t kRows = 6;
  static constexpr int64_t kDim = 4;
  Model m;
  ValueId table, ids, offsets;
  BagArgs bag;
};

TEST(TranslateBagsTest, AgreesWithLibTorch) {
  std::mt19937 random(base::RandomSeed());
  for (const int64_t mode : {0, 1, 2}) {
    for (const bool include_last : {false, true}) {
      Small s(include_last);
      s.bag.mode = mode;
      s.bag.padding = 2;
      s.m.Output(AddBag(s.m, s.bag, Small::kDim));
      const models::Graph& graph = s.m.graph();
      auto device = Must(OnDevice::Load(
          Must(Translate(graph, Part::Whole(graph), s.m.Weights(),
                         testing::OptionsFor(Precision::kFloat32))),
          kMaxBatch, random()));
      for (int round = 0; round < 10; ++round) {
        std::vector<int64_t> ids, offsets = {0};
        const auto batch = static_cast<int64_t>(1 + random() % 9);
        for (int64_t row = 0; row < batch; ++row) {
          for (unsigned n = random() % 4; n > 0; --n) {
            ids.push_back(static_cast<int64_t>(random() % Small::kRows));
          }
          offsets.push_back(static_cast<int64_t>(ids.size()));
        }
        if (!include_last) offsets.pop_back();
        const auto inputs = s.Request(ids, offsets);
        const auto want = Must(RunByLibTorch(s.m, inputs));
        const auto got = Must(device->Run(Views(inputs), batch));
        EXPECT_LE(testing::Difference(got[0], want[0].view()), 1e-6);
      }
      EXPECT_THAT(device->violations(), IsEmpty());
    }
  }
}

// The CPU's error for a wrong request: ids by the table's policy, offsets only
// in order.
TEST(TranslateBagsTest, WrongIdsAndOffsetsAreTheCpus) {
  struct Case {
    std::vector<int64_t> ids, offsets;
  };
  const Case cases[] = {
      {{0, 1, 2, 5}, {0, 1, 4}},
      {{0, 6, 2, 5}, {0, 1, 4}},
      {{0, -1, 2, 5}, {0, 1, 4}},
      {{0, 1, 2, 5}, {1, 1, 4}},
      {{0, 1, 2, 5}, {0, 3, 2}},
      {{0, 1, 2, 5}, {0, 1, 5}},
      {{0, 1, 2, 5}, {0, -3, 4}},
      {{0, 1, 2, 5}, {0, 1, 3}},
      {{0, 1, 2, 99}, {0, 1, 3}},
      {{}, {0, 0, 0}},
      {{7}, {0, 0, 0}},
      {{0, 1, 2, 5}, {0, int64_t{1} << 40, 4}},
      {{int64_t{1} << 32, 1, 1, 1}, {0, 1, 4}},
  };
  for (const models::IdPolicy policy :
       {models::IdPolicy::kError, models::IdPolicy::kZeroRow,
        models::IdPolicy::kDefaultRow}) {
    for (const int64_t mode : {0, 1, 2}) {
      Small s;
      s.bag.mode = mode;
      s.m.Output(AddBag(s.m, s.bag, Small::kDim));
      const models::Graph& graph = s.m.graph();
      const Part part = Part::Whole(graph);
      const auto weights = s.m.Weights();
      TranslateOptions options = testing::OptionsFor(Precision::kFloat32);
      options.compile.config.default_id_policy = policy;
      const auto cpu =
          Must(Program::Compile(graph, part, weights, options.compile));
      auto device = Must(OnDevice::Load(
          Must(Translate(graph, part, weights, options)), kMaxBatch, 1));
      for (const Case& c : cases) {
        const auto inputs = s.Request(c.ids, c.offsets);
        RunContext context(*cpu);
        std::vector<base::TensorView> want;
        const absl::Status ran =
            cpu->Run(Views(inputs), {nullptr}, context, want);
        EXPECT_EQ(device->Check(Views(inputs)), ran);
        const auto got = device->Run(Views(inputs), 2);
        // The host checks ids that no bag has.
        if (ran.ok()) {
          ASSERT_TRUE(got.ok()) << got.status();
          EXPECT_LE(testing::Difference((*got)[0], want[0]), 1e-6);
        } else if (c.offsets[2] >= static_cast<int64_t>(c.ids.size())) {
          EXPECT_FALSE(got.ok()) << ran;
        }
      }
      EXPECT_THAT(device->violations(), IsEmpty());
    }
  }
}

TEST(TranslateBagsTest, RoomForEntries) {
  const auto room = [](int64_t declared, TranslateOptions options) {
    Small s(true, declared);
    s.bag.weights = s.m.Input("weights", DType::kFloat32, {Sym("n")});
    s.m.Output(AddBag(s.m, s.bag, Small::kDim));
    const models::Graph& graph = s.m.graph();
    const auto translation =
        Must(Translate(graph, Part::Whole(graph), s.m.Weights(), options));
    EXPECT_EQ(translation.bags.size(), 1u);
    EXPECT_EQ(translation.bags[0].entries, "ids");
    // Indexes of the program's inputs, in the group's order.
    for (const size_t i : translation.bags[0].entry_inputs) {
      const cuda::Value& value =
          translation.program.value(translation.program.inputs[i]);
      EXPECT_TRUE(value.counted);
      EXPECT_EQ(value.cols, translation.bags[0].capacity);
    }
    return std::pair(translation.bags[0].capacity,
                     translation.bags[0].declared);
  };
  TranslateOptions options = testing::OptionsFor(Precision::kFloat32);
  options.max_size = 100;
  EXPECT_EQ(room(0, options), std::pair(100 * kMaxBatch, false));
  EXPECT_EQ(room(70, options), std::pair(int64_t{70}, true));
  EXPECT_EQ(room(1 << 20, options), std::pair(100 * kMaxBatch, false));
  options.entry_memory = 12 * 50 + 11;  // ids of 8 bytes, weights of 4
  EXPECT_EQ(room(0, options), std::pair(int64_t{50}, false));
  EXPECT_EQ(room(50, options), std::pair(int64_t{50}, true));
  EXPECT_EQ(room(51, options), std::pair(int64_t{50}, false));
  options.entry_memory = 0;
  EXPECT_EQ(room(0, options), std::pair(int64_t{1}, false));
  options.max_size = std::numeric_limits<int64_t>::max();
  options.entry_memory = int64_t{1} << 62;
  EXPECT_EQ(room(9, options), std::pair(int64_t{9}, true));
}

// Several groups share the memory; groups with fewer entries leave it to the
// others.
TEST(TranslateBagsTest, RoomIsShared) {
  models::Graph graph;
  graph.batch_symbol = "b";
  graph.symbols = {{"few", 0, 10}};
  std::vector<BagInputs> bags;
  Part part;
  for (const char* const symbol : {"few", "x", "y"}) {
    bags.push_back({.offsets = 0, .entries = {part.inputs.size()}});
    part.inputs.push_back(graph.AddValue({.name = symbol,
                                          .dtype = DType::kInt64,
                                          .has_shape = true,
                                          .shape = {Sym(symbol)}}));
  }
  const auto rooms = RoomForBags(graph, part, bags, 1000, 8 * (10 + 2 * 300));
  EXPECT_EQ(rooms[0].capacity, 10);
  EXPECT_TRUE(rooms[0].declared);
  EXPECT_EQ(rooms[1].capacity, 300);
  EXPECT_EQ(rooms[2].capacity, 300);
}

// Computed ids have a program per number of ids; the device checks their
// offsets.
TEST(TranslateBagsTest, ComputedIdsHaveAProgramForEachNumber) {
  Small s(false);
  const ValueId same = s.m.Node("aten.reshape.default",
                                {Ref("self", s.ids), Ints("shape", {-1})},
                                {DType::kInt64, {Sym("n")}});
  s.bag.ids = same;
  s.m.Output(AddBag(s.m, s.bag, Small::kDim));
  const models::Graph& graph = s.m.graph();
  const Part part = Part::Whole(graph);
  const auto weights = s.m.Weights();
  const auto cpu = Must(Program::Compile(graph, part, weights, {}));
  const auto translator = Must(Translator::Create(
      graph, part, weights, testing::OptionsFor(Precision::kFloat32)));
  EXPECT_THAT(translator->bags(), IsEmpty());
  ASSERT_EQ(translator->sizes().all().size(), 1u);
  auto device =
      Must(OnDevice::Load(Must(translator->Translate({4})), kMaxBatch, 1));
  for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 1, 4},
                                              {0, 0, 0},
                                              {0, 3, 2},
                                              {0, 1, 5},
                                              {1, 2, 3},
                                              {0, -1, 2}}) {
    const auto inputs = s.Request({5, 0, 3, 3}, offsets);
    RunContext context(*cpu);
    std::vector<base::TensorView> want;
    const absl::Status ran = cpu->Run(Views(inputs), {nullptr}, context, want);
    EXPECT_EQ(device->Check(Views(inputs)), ran);
    const auto got = device->Run(Views(inputs), 3);
    ASSERT_EQ(got.ok(), ran.ok()) << ran;
    if (ran.ok()) {
      EXPECT_LE(testing::Difference((*got)[0], want[0]), 1e-6);
    }
  }
  EXPECT_THAT(device->violations(), IsEmpty());
}

// A fixed number of entries per row, with offsets: unused entries of a bucket
// are in no bag.
TEST(TranslateBagsTest, EntriesThatGrowWithTheBatch) {
  std::mt19937 random(base::RandomSeed());
  for (const int64_t mode : {0, 1, 2}) {
    Model m(random());
    m.graph().batch_symbol = "b";
    m.graph().symbols = {{"b", 1, 1000}};
    constexpr int64_t kEach = 3;
    const BagArgs bag = {
        .table = m.Floats("table", {6, 4}),
        .ids = m.Input("ids", DType::kInt64, {Sym("b") * SymExpr(kEach)}),
        .offsets = m.Input("offsets", DType::kInt64, {Sym("b")}),
        .mode = mode};
    m.Output(AddBag(m, bag, 4));
    const models::Graph& graph = m.graph();
    const Part part = Part::Whole(graph);
    const auto weights = m.Weights();
    const auto cpu = Must(Program::Compile(graph, part, weights, {}));
    auto device = Must(OnDevice::Load(
        Must(Translate(graph, part, weights,
                       testing::OptionsFor(Precision::kFloat32))),
        kMaxBatch, random()));
    // The largest request first, so that its ids remain behind those of the
    // others.
    for (const int64_t batch : {40, 33, 5, 4, 3, 1}) {
      for (const int64_t beyond : {0, 1}) {
        std::vector<int64_t> ids, offsets;
        for (int64_t row = 0; row < batch; ++row) {
          offsets.push_back(row == 0 ? 0 : row * kEach - random() % kEach);
        }
        if (batch > 1) offsets.back() += beyond * 2 * kEach;
        for (int64_t i = 0; i < batch * kEach; ++i) {
          ids.push_back(static_cast<int64_t>(random() % 6));
        }
        std::vector<base::Tensor> inputs;
        inputs.push_back(Integers(DType::kInt64, ids));
        inputs.push_back(Integers(DType::kInt64, offsets));
        RunContext context(*cpu);
        std::vector<base::TensorView> want;
        const absl::Status ran =
            cpu->Run(Views(inputs), {nullptr}, context, want);
        EXPECT_EQ(ran.ok(), beyond == 0 || batch == 1);
        const auto got = device->Run(Views(inputs), batch);
        ASSERT_EQ(got.ok(), ran.ok()) << "batch " << batch << ": " << ran;
        if (ran.ok()) {
          EXPECT_LE(testing::Difference((*got)[0], want[0]), 1e-6)
              << "batch " << batch;
        }
      }
    }
    EXPECT_THAT(device->violations(), IsEmpty());
  }
}

TEST(TranslateBagsTest, WhatHasNoFormIsRefusedByName) {
  {
    Small s;
    const double table[Small::kRows * Small::kDim] = {};
    s.bag.table =
        s.m.RawWeight("doubles", DType::kFloat64, {Small::kRows, Small::kDim},
                      table, sizeof(table));
    const ValueId out = AddBag(s.m, s.bag, Small::kDim);
    s.m.graph().values[out].dtype = DType::kFloat64;
    s.m.Output(out);
    testing::ExpectRefused(s.m, "its result is float64");
  }
  {
    Small s;
    const ValueId out = AddBag(s.m, s.bag, Small::kDim);
    s.m.Output(out);
    s.m.Output(s.m.graph().nodes[0].outputs[2]);
    testing::ExpectRefused(s.m, "the model reads its other results");
  }
  {
    Small s;
    s.m.Output(AddBag(s.m, s.bag, Small::kDim));
    s.bag.ids = s.m.In("one_each", {}, DType::kInt64);
    s.m.Output(AddBag(s.m, s.bag, Small::kDim));
    testing::ExpectRefused(s.m,
                           "its offsets also belong to bags of other inputs");
  }
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
