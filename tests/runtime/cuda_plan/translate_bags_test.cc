// Bags of ids on the emulated GPU: random parts beside LibTorch and the CPU,
// requests with any number of entries, and what requests get wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan {
namespace {

using runtime::testing::Bool;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using runtime::testing::RunByLibTorch;
using testing::DType;
using ::testing::HasSubstr;
using testing::Int;
using ::testing::IsEmpty;
using testing::kMaxBatch;
using testing::kPrecisions;
using testing::Model;
using testing::Must;
using testing::OnDevice;
using testing::Ref;
using testing::Sym;
using testing::SymExpr;
using testing::ValueId;
using testing::Views;

base::Tensor Integers(DType dtype, const std::vector<int64_t>& values) {
  base::Tensor tensor = Must(
      base::Tensor::Allocate(dtype, {static_cast<int64_t>(values.size())}));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kInt64) {
      tensor.as<int64_t>()[i] = values[i];
    } else {
      tensor.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    }
  }
  return tensor;
}

struct BagArgs {
  ValueId table, ids, offsets;
  ValueId weights = models::kNoValue;
  int64_t mode = 0;
  bool include_last = false;
  std::optional<int64_t> padding;
};
ValueId AddBag(Model& m, const BagArgs& bag, int64_t dim,
               const SymExpr& rows = Sym("b")) {
  std::vector<models::NamedArgument> args = {
      Ref("weight", bag.table),
      Ref("indices", bag.ids),
      Ref("offsets", bag.offsets),
      Bool("scale_grad_by_freq", false),
      Int("mode", bag.mode),
      Bool("sparse", false),
      Bool("include_last_offset", bag.include_last)};
  if (bag.weights != models::kNoValue) {
    args.push_back(Ref("per_sample_weights", bag.weights));
  } else {
    args.push_back({"per_sample_weights", models::None{}});
  }
  if (bag.padding) {
    args.push_back(Int("padding_idx", *bag.padding));
  } else {
    args.push_back({"padding_idx", models::None{}});
  }
  std::vector<runtime::testing::GraphBuilder::Result> results(4);
  results[0] = {DType::kFloat32, {rows, dim}};
  for (size_t i = 1; i < results.size(); ++i) {
    results[i] = {DType::kInt64, {Sym("unread")}};
  }
  const auto values =
      m.Nodes("aten.embedding_bag.padding_idx", std::move(args), results);
  return values[0];
}

// Tables with bags of their own, or of one size, between dense layers.
class RandomBags {
 public:
  explicit RandomBags(std::mt19937& random) : random_(random), m_(random()) {
    m_.graph().batch_symbol = "b";
    const ValueId dense = m_.In("dense", {6});
    inputs_.push_back({Kind::kDense});
    std::vector<ValueId> parts = {
        m_.Layer(dense, 6, 8, {}, "aten.relu.default")};
    int64_t width = 8;
    const int64_t tables = 1 + Draw(4);
    for (int64_t i = 0; i < tables; ++i) {
      const int64_t dim = Pick({3, 8, 16});
      ValueId out = Add(i, dim);
      if (Draw(4) == 0) m_.Output(out);
      if (Draw(3) == 0) {
        out = m_.Op("aten.tanh.default", {Ref("self", out)}, {dim});
      }
      parts.push_back(out);
      width += dim;
    }
    const ValueId all = m_.Op("aten.cat.default",
                              {List("tensors", parts), Int("dim", 1)}, {width});
    m_.Output(m_.Layer(all, width, 5, {}, "aten.sigmoid.default"));
  }

  Model& model() { return m_; }
  const std::string& what() const { return what_; }

  std::vector<base::Tensor> Request(int64_t batch) {
    std::vector<base::Tensor> inputs;
    std::vector<int64_t> ends;
    for (const Input& input : inputs_) {
      std::vector<int64_t> values;
      switch (input.kind) {
        case Kind::kDense:
          inputs.push_back(MakeTensor<float>(
              {batch, 6},
              testing::RandomFloats(static_cast<size_t>(batch) * 6, random_)));
          continue;
        case Kind::kOffsets: {
          int64_t at = 0;
          const bool all_empty = Draw(8) == 0;
          for (int64_t row = 0; row < batch; ++row) {
            values.push_back(at);
            at += all_empty ? 0 : Pick({0, 1, 2, 5, 20});
          }
          if (input.include_last) values.push_back(at);
          ends.push_back(at);
          break;
        }
        case Kind::kMatrix: {
          base::Tensor ids =
              Must(base::Tensor::Allocate(input.dtype, {batch, input.length}));
          Ids(batch * input.length, input.rows, values);
          const base::Tensor flat = Integers(input.dtype, values);
          if (flat.bytes() > 0) {
            std::memcpy(ids.data(), flat.data(), flat.bytes());
          }
          inputs.push_back(std::move(ids));
          continue;
        }
        case Kind::kIds:
          Ids(ends[static_cast<size_t>(input.group)], input.rows, values);
          break;
        case Kind::kWeights: {
          const int64_t count = ends[static_cast<size_t>(input.group)];
          inputs.push_back(MakeTensor<float>(
              {count},
              testing::RandomFloats(static_cast<size_t>(count), random_)));
          continue;
        }
      }
      inputs.push_back(Integers(input.dtype, values));
    }
    return inputs;
  }

 private:
  enum class Kind { kDense, kOffsets, kIds, kWeights, kMatrix };
  struct Input {
    Kind kind;
    DType dtype = DType::kFloat32;
    int group = 0;
    int64_t rows = 0, length = 0;
    bool include_last = false;
  };

  int64_t Draw(unsigned of) { return static_cast<int64_t>(random_() % of); }
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  void Ids(int64_t count, int64_t rows, std::vector<int64_t>& values) {
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(Draw(static_cast<unsigned>(rows)));
    }
  }

  ValueId Add(int64_t i, int64_t dim) {
    BagArgs bag;
    const int64_t rows = Pick({1, 7, 30});
    bag.table = m_.Floats(absl::StrCat("table", i), {rows, dim});
    bag.mode = Draw(3);
    if (Draw(3) == 0) bag.padding = Pick({0, rows - 1, -1});
    const DType type = Draw(2) == 0 ? DType::kInt32 : DType::kInt64;
    absl::StrAppend(&what_, "table ", i, ": ", rows, " rows, mode ", bag.mode);
    if (Draw(3) == 0) {
      AddMatrix(i, rows, type, bag);
      return AddBag(m_, bag, dim);
    }
    const SymExpr entries = Sym(absl::StrCat("n", i));
    if (group_ >= 0 && Draw(3) == 0) {
      // Bags of two tables told by the same offsets.
      bag.offsets = offsets_;
      bag.include_last = include_last_;
    } else {
      bag.include_last = include_last_ = Draw(2) == 0;
      offsets_ = bag.offsets =
          m_.Input(absl::StrCat("offsets", i), type,
                   {bag.include_last ? Sym("b") + SymExpr(1) : Sym("b")});
      ++group_;
      group_type_ = type;
      group_entries_ = entries;
      inputs_.push_back({.kind = Kind::kOffsets,
                         .dtype = type,
                         .include_last = bag.include_last});
    }
    bag.ids = m_.Input(absl::StrCat("ids", i), group_type_, {*group_entries_});
    inputs_.push_back({.kind = Kind::kIds,
                       .dtype = group_type_,
                       .group = group_,
                       .rows = rows});
    if (bag.mode == 0 && Draw(2) == 0) {
      bag.weights = m_.Input(absl::StrCat("weights", i), DType::kFloat32,
                             {*group_entries_});
      inputs_.push_back({.kind = Kind::kWeights, .group = group_});
    }
    absl::StrAppend(&what_, ", bags ", group_, "\n");
    return AddBag(m_, bag, dim);
  }

  // As PyTorch writes bags of one size: [b, length] ids, counted offsets.
  void AddMatrix(int64_t i, int64_t rows, DType type, BagArgs& bag) {
    const int64_t length = Pick({1, 4});
    const ValueId ids = m_.In(absl::StrCat("ids", i), {length}, type);
    inputs_.push_back(
        {.kind = Kind::kMatrix, .dtype = type, .rows = rows, .length = length});
    const SymExpr count = Sym("b") * SymExpr(length);
    bag.ids = m_.Node("aten.reshape.default",
                      {Ref("self", ids), Ints("shape", {-1})}, {type, {count}});
    const ValueId number =
        m_.Node("aten.sym_size.int", {Ref("self", bag.ids), Int("dim", 0)},
                {DType::kInt64, {}, models::ValueKind::kSymInt});
    m_.graph().values[number].sym_value = count;
    bag.offsets = m_.Node("aten.arange.start_step",
                          {Int("start", 0),
                           Ref("end", number),
                           Int("step", length),
                           {"dtype", type}},
                          {type, {Sym("b")}});
    absl::StrAppend(&what_, ", ", length, " each\n");
  }

  std::mt19937& random_;
  Model m_;
  std::vector<Input> inputs_;
  std::string what_;
  int group_ = -1;
  bool include_last_ = false;
  DType group_type_ = DType::kInt64;
  std::optional<SymExpr> group_entries_;
  ValueId offsets_ = models::kNoValue;
};

TEST(TranslateBagsTest, RandomPartsGiveWhatTheCpuGives) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 12 && !::testing::Test::HasFailure(); ++round) {
    RandomBags bags(random);
    Model& m = bags.model();
    SCOPED_TRACE(bags.what());
    const models::Graph& graph = m.graph();
    const Part part = Part::Whole(graph);
    const auto weights = m.Weights();
    const auto cpu = Must(Program::Compile(graph, part, weights, {}));
    const Precision precision = kPrecisions[round % 4];
    auto translation =
        Translate(graph, part, weights, testing::OptionsFor(precision));
    ASSERT_TRUE(translation.ok()) << translation.status();
    auto device =
        Must(OnDevice::Load(*std::move(translation), kMaxBatch, random()));
    for (const int64_t batch : testing::kBatches) {
      const std::vector<base::Tensor> inputs = bags.Request(batch);
      RunContext context(*cpu);
      std::vector<base::TensorView> want;
      ASSERT_EQ(cpu->Run(Views(inputs),
                         std::vector<std::byte*>(part.outputs.size(), nullptr),
                         context, want),
                absl::OkStatus());
      ASSERT_EQ(device->Check(Views(inputs)), absl::OkStatus());
      const auto got = device->Run(Views(inputs), batch);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(got->size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_LE(testing::Difference((*got)[i], want[i]),
                  testing::Tolerance(precision))
            << Name(precision) << ", output " << i << ", batch " << batch;
      }
    }
    EXPECT_THAT(device->violations(), IsEmpty());
  }
}

// Tables that do not need each other are read together.
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

// What is wrong with a request, in the CPU's words, and as the CPU sees it: ids
// as the table's policy says, offsets never otherwise than in order.
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
        // Ids that no bag has are the host's to look at.
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
    // Of the program's inputs, in the group's order.
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

// Several groups share the memory: those that want less leave it to others.
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

// Ids that the part computes have a program for each number of them; their
// offsets are looked at on the device.
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

// So many entries per row, told by offsets: what a bucket has beyond a request
// is in no bag.
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
    // The largest first: its ids stay behind those of the others.
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
    testing::ExpectRefused(s.m, "it gives float64");
  }
  {
    Small s;
    const ValueId out = AddBag(s.m, s.bag, Small::kDim);
    s.m.Output(out);
    s.m.Output(s.m.graph().nodes[0].outputs[2]);
    testing::ExpectRefused(s.m, "its bookkeeping is read");
  }
  {
    Small s;
    s.m.Output(AddBag(s.m, s.bag, Small::kDim));
    s.bag.ids = s.m.In("one_each", {}, DType::kInt64);
    s.m.Output(AddBag(s.m, s.bag, Small::kDim));
    testing::ExpectRefused(s.m, "its offsets are those of other bags, too");
  }
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
