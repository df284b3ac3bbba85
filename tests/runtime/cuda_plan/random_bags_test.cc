// Random parts with bags of ids on the emulated GPU, compared with the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda_plan/bag_nodes.h"
#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan {
namespace {

using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using testing::AddBag;
using testing::BagArgs;
using testing::DType;
using testing::Int;
using testing::Integers;
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
      // Bags of two tables with the same offsets.
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

  // PyTorch's form of bags of equal size: [b, length] ids, counted offsets.
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

TEST(RandomBagsTest, GiveWhatTheCpuGives) {
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

}  // namespace
}  // namespace refract::runtime::cuda_plan
