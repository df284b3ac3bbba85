// Rows of many tables by ids, on the emulated GPU against the CPU, in as few
// launches as the graph allows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::ValueId;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using runtime::testing::Must;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;
using testing::ExpectSame;
using ::testing::HasSubstr;
using testing::kMaxBatch;
using testing::Model;
using testing::OnDevice;
using testing::OptionsFor;

template <typename Op>
std::vector<Op> OpsOf(const cuda::DeviceProgram& program) {
  std::vector<Op> found;
  for (const cuda::Op& op : program.ops) {
    if (const auto* one = std::get_if<Op>(&op.kind)) found.push_back(*one);
  }
  return found;
}

ValueId Embedding(Model& m, const std::string& table, int64_t width,
                  ValueId ids, const std::vector<int64_t>& inner) {
  std::vector<int64_t> out = inner;
  out.push_back(width);
  return m.Op("aten.embedding.default",
              {Ref("weight", m.Floats(table, {7, width})), Ref("indices", ids)},
              {out.begin(), out.end()});
}

// A random model of independent look-ups: one or several ids per item, separate
// inputs or columns of one input; results concatenated, pooled, or read before
// the next look-up.
class Mix {
 public:
  explicit Mix(std::mt19937& random) : random_(random) {
    const auto tables = static_cast<int>(1 + random() % 12);
    for (int i = 0; i < tables; ++i) AddTable(i);
    if (parts_.size() > 1 && random_() % 2 == 0) {
      m_.Output(m_.Op("aten.cat.default",
                      {List("tensors", parts_), Int("dim", 1)}, {width_}));
    } else {
      for (const ValueId part : parts_) m_.Output(part);
    }
  }
  Model& model() { return m_; }
  int tables() const { return static_cast<int>(parts_.size()); }

 private:
  void AddTable(int i) {
    const std::string table = absl::StrCat("table", i);
    const int64_t width = Pick({1, 4, 6, 16});
    const DType type = random_() % 2 == 0 ? DType::kInt64 : DType::kInt32;
    const std::string ids = absl::StrCat("ids", i);
    ValueId rows = 0;
    switch (random_() % 5) {
      case 0:
        rows = Embedding(m_, table, width, m_.In(ids, {}, type), {});
        break;
      case 1:
        rows = m_.Op("aten.view.default",
                     {Ref("self", Embedding(m_, table, width,
                                            m_.In(ids, {1}, type), {1})),
                      Ints("size", {-1, width})},
                     {width});
        break;
      case 2:
        rows = m_.Op("aten.sum.dim_IntList",
                     {Ref("self", Embedding(m_, table, width,
                                            m_.In(ids, {3}, type), {3})),
                      Ints("dim", {1})},
                     {width});
        break;
      case 3: {
        if (shared_ < 0) shared_ = m_.In("shared", {4}, DType::kInt64);
        const ValueId column =
            m_.Op("aten.select.int",
                  {Ref("self", shared_), Int("dim", 1),
                   Int("index", static_cast<int64_t>(random_() % 4))},
                  {}, DType::kInt64);
        rows = Embedding(m_, table, width, column, {});
        break;
      }
      default:
        rows = m_.Op("aten.index_select.default",
                     {Ref("self", m_.Floats(table, {7, width})), Int("dim", 0),
                      Ref("index", m_.In(ids, {}, type))},
                     {width});
    }
    if (random_() % 3 == 0) {
      rows = m_.Op("aten.tanh.default", {Ref("self", rows)}, {width});
    }
    parts_.push_back(rows);
    width_ += width;
  }
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }

  std::mt19937& random_;
  Model m_;
  ValueId shared_ = -1;
  std::vector<ValueId> parts_;
  int64_t width_ = 0;
};

TEST(TranslateTakesTest, RandomMixesAreOneLaunch) {
  std::mt19937 random(base::RandomSeed());
  for (int round = 0; round < 4; ++round) {
    const auto precision = static_cast<Precision>(random() % 4);
    SCOPED_TRACE(Name(precision));
    Mix mix(random);
    cuda::DeviceProgram program;
    ExpectSame(mix.model(), precision, &program);
    const auto takes = OpsOf<cuda::TakesOp>(program);
    ASSERT_EQ(takes.size(), 1u);
    EXPECT_EQ(takes[0].takes.size(), static_cast<size_t>(mix.tables()));
    EXPECT_EQ(OpsOf<cuda::LookUpOp>(program).size(), 0u);
  }
}

// Each would have too few blocks of the launch.
TEST(TranslateTakesTest, HistoriesAreApartFromSingleIds) {
  Model m;
  const ValueId single = m.In("single", {}, DType::kInt64);
  const ValueId history = m.In("history", {20}, DType::kInt64);
  for (int i = 0; i < 3; ++i) {
    m.Output(Embedding(m, absl::StrCat("single", i), 8, single, {}));
    m.Output(Embedding(m, absl::StrCat("history", i), 8, history, {20}));
  }
  cuda::DeviceProgram program;
  ExpectSame(m, Precision::kFloat32, &program);
  const auto takes = OpsOf<cuda::TakesOp>(program);
  ASSERT_EQ(takes.size(), 2u);
  EXPECT_EQ(takes[0].takes.size(), 3u);
  EXPECT_EQ(takes[1].takes.size(), 3u);
}

// Looked-up rows are written directly into their concatenation: no copy.
TEST(TranslateTakesTest, ConcatenationsAreWrittenInPlace) {
  Model m;
  std::vector<ValueId> parts;
  for (int i = 0; i < 5; ++i) {
    parts.push_back(Embedding(m, absl::StrCat("table", i), 4,
                              m.In(absl::StrCat("ids", i), {}, DType::kInt64),
                              {}));
  }
  const ValueId cat =
      m.Op("aten.cat.default", {List("tensors", parts), Int("dim", 1)}, {20});
  m.Output(m.Layer(cat, 20, 3, {}));
  cuda::DeviceProgram program;
  ExpectSame(m, Precision::kFloat32, &program);
  EXPECT_EQ(program.ops.size(), 2u);
}

// Histories with strided ids, and rows that are not contiguous: look-ups with
// any strides, together with others.
TEST(TranslateTakesTest, OtherLookUpsStayAlone) {
  Model m;
  const ValueId deep = m.In("deep", {2, 3}, DType::kInt64);
  const ValueId turned =
      m.Op("aten.permute.default", {Ref("self", deep), Ints("dims", {0, 2, 1})},
           {3, 2}, DType::kInt64);
  m.Output(Embedding(m, "turned", 4, turned, {3, 2}));
  m.Output(Embedding(m, "deep", 4, deep, {2, 3}));
  const ValueId columns =
      m.Op("aten.index_select.default",
           {Ref("self", m.In("x", {6})), Int("dim", 1),
            Ref("index", m.RawWeight("picks", DType::kInt64, {2},
                                     std::vector<int64_t>{4, 1}.data(), 16))},
           {2});
  m.Output(columns);
  cuda::DeviceProgram program;
  ExpectSame(m, Precision::kFloat32, &program);
  EXPECT_EQ(OpsOf<cuda::TakesOp>(program).size(), 1u);
  EXPECT_EQ(OpsOf<cuda::LookUpOp>(program).size(), 2u);
}

// A wrong id of any table fails the request, with the message for a single
// table.
TEST(TranslateTakesTest, WrongIdsOfAnyTableFailTheRequest) {
  std::mt19937 random(base::RandomSeed());
  Model m;
  m.graph().batch_symbol = "b";
  for (int i = 0; i < 3; ++i) {
    m.Output(Embedding(m, absl::StrCat("table", i), 4,
                       m.In(absl::StrCat("ids", i), {}, DType::kInt64), {}));
  }
  const models::Graph& graph = m.graph();
  auto device =
      Must(OnDevice::Load(Must(Translate(graph, Part::Whole(graph), m.Weights(),
                                         OptionsFor(Precision::kFloat32))),
                          kMaxBatch, random()));
  const auto run = [&](const std::vector<std::vector<int64_t>>& ids) {
    std::vector<base::Tensor> inputs;
    for (const auto& list : ids) {
      inputs.push_back(MakeTensor<int64_t>({2}, list));
    }
    return device->Run(Views(inputs), 2).status();
  };
  EXPECT_TRUE(run({{0, 1}, {6, 2}, {3, 4}}).ok());
  EXPECT_THAT(std::string(run({{0, 7}, {6, 2}, {-1, 4}}).message()),
              HasSubstr("2 ids are outside their tables"));
  EXPECT_TRUE(run({{0, 1}, {6, 2}, {3, 4}}).ok());
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
