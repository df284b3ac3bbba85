#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/half.h"
#include "runtime/cpu/look_ups/row_overlay.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::IdPolicy;
using models::SymExpr;
using testing::Bool;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::MakeTensor;
using testing::Must;
using testing::Ref;
using testing::Sym;

enum Mode { kSum = 0, kMean = 1, kMax = 2 };

// One look-up with all its parameters.
struct Bags {
  Mode mode = kSum;
  int64_t rows = 50;
  int64_t dim = 5;
  std::vector<float> table;
  std::vector<int64_t> ids;
  std::vector<int64_t> starts;  // of each bag
  std::vector<float> weights;   // per id, or empty
  bool include_last = false;
  int64_t padding = -1;
  IdPolicy policy = IdPolicy::kError;

  int64_t end(size_t bag) const {
    return bag + 1 < starts.size() ? starts[bag + 1]
                                   : static_cast<int64_t>(ids.size());
  }
};

Bags RandomBags(int64_t num_bags, int64_t dim, std::mt19937& random) {
  Bags bags;
  bags.dim = dim;
  bags.table = testing::RandomFloats(bags.rows * dim, random);
  for (int64_t b = 0; b < num_bags; ++b) {
    bags.starts.push_back(static_cast<int64_t>(bags.ids.size()));
    // Every third bag is empty, some are longer than the prefetch distance.
    const int64_t count = b % 3 == 1 ? 0 : random() % (b % 5 == 0 ? 70 : 4);
    for (int64_t i = 0; i < count; ++i) bags.ids.push_back(random() % 50);
  }
  return bags;
}

// The definition in embedding_bag.h, in double.
std::vector<double> Reference(const Bags& bags) {
  std::vector<double> out;
  for (size_t b = 0; b < bags.starts.size(); ++b) {
    for (int64_t d = 0; d < bags.dim; ++d) {
      std::vector<double> terms;
      for (int64_t i = bags.starts[b]; i < bags.end(b); ++i) {
        int64_t id = bags.ids[i];
        if (bags.padding >= 0 && id == bags.padding) continue;
        const bool inside = id >= 0 && id < bags.rows;
        if (!inside && bags.policy == IdPolicy::kDefaultRow) id = 0;
        const double value = !inside && bags.policy == IdPolicy::kZeroRow
                                 ? 0
                                 : bags.table[id * bags.dim + d];
        terms.push_back(bags.weights.empty() ? value : value * bags.weights[i]);
      }
      double result = 0;
      if (bags.mode == kMax && !terms.empty()) {
        result = *std::max_element(terms.begin(), terms.end());
      } else {
        for (double term : terms) result += term;
        if (bags.mode == kMean && !terms.empty()) {
          result /= static_cast<double>(terms.size());
        }
      }
      out.push_back(result);
    }
  }
  return out;
}

template <typename Id>
std::vector<Id> Narrow(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

// A graph of one operator over `bags`.
template <typename Id>
struct BagGraph {
  explicit BagGraph(const Bags& bags,
                    const std::string& op = "aten.embedding_bag.padding_idx") {
    const DType id_type = testing::DTypeOf<Id>();
    const auto table =
        builder.Weight("tables.3.weight", {bags.rows, bags.dim}, bags.table);
    const auto ids = builder.Input("ids", id_type, {Sym("n")});
    const SymExpr entries =
        bags.include_last ? Sym("b") + SymExpr(1) : Sym("b");
    const auto offsets = builder.Input("offsets", id_type, {entries});
    std::vector<models::NamedArgument> args = {
        Ref("weight", table),
        Ref("indices", ids),
        Ref("offsets", offsets),
        Bool("scale_grad_by_freq", false),
        Bool("sparse", false),
        Int("mode", bags.mode),
        Bool("include_last_offset", bags.include_last)};
    const auto count = static_cast<int64_t>(bags.ids.size());
    auto all_offsets = bags.starts;
    if (bags.include_last) all_offsets.push_back(count);
    inputs.push_back(MakeTensor<Id>({count}, Narrow<Id>(bags.ids)));
    inputs.push_back(MakeTensor<Id>({static_cast<int64_t>(all_offsets.size())},
                                    Narrow<Id>(all_offsets)));
    if (!bags.weights.empty()) {
      const auto weights =
          builder.Input("weights", DType::kFloat32, {Sym("n")});
      args.push_back(Ref("per_sample_weights", weights));
      inputs.push_back(MakeTensor<float>({count}, bags.weights));
    } else {
      args.push_back({"per_sample_weights", models::None{}});
    }
    if (op != "aten.embedding_bag.default" && bags.padding >= 0) {
      args.push_back(Int("padding_idx", bags.padding));
    } else if (op == "aten.embedding_bag.padding_idx") {
      args.push_back({"padding_idx", models::None{}});
    }
    const auto results = builder.Nodes(op, args,
                                       {{DType::kFloat32, {Sym("b"), bags.dim}},
                                        {id_type, {Sym("x")}},
                                        {id_type, {Sym("y")}},
                                        {id_type, {Sym("z")}}});
    builder.Output(results[0]);
    builder.graph().batch_symbol = "b";
    options.config.default_id_policy = bags.policy;
  }

  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
  CompileOptions options;
};

void ExpectNear(absl::Span<const float> actual,
                const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
  }
}

template <typename Id>
void ExpectMatchesReference(
    const Bags& bags,
    const std::string& op = "aten.embedding_bag.padding_idx") {
  BagGraph<Id> graph(bags, op);
  const std::vector<base::Tensor> out =
      Must(testing::RunWhole(graph.builder, graph.inputs, graph.options));
  const base::TensorView view = out[0].view();
  ExpectNear(view.as<float>(), Reference(bags), 2e-5);
}

TEST(EmbeddingBagTest, MatchesTheDefinitionForOddSizes) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int64_t dim : {1, 3, 8, 16, 63, 64, 65, 128, 200}) {
    for (Mode mode : {kSum, kMean, kMax}) {
      for (int64_t num_bags : {1, 2, 33}) {
        SCOPED_TRACE(
            absl::StrCat("dim ", dim, " mode ", mode, " bags ", num_bags));
        Bags bags = RandomBags(num_bags, dim, random);
        bags.mode = mode;
        bags.include_last = num_bags % 2 == 0;
        bags.padding = num_bags == 33 ? 7 : -1;
        ExpectMatchesReference<int64_t>(bags);
        ExpectMatchesReference<int32_t>(bags);
      }
    }
  }
}

TEST(EmbeddingBagTest, ReadsChangedRowsOfItsStateAlone) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  // Dims with a loop of their own and without, padding, replaced ids.
  for (int64_t dim : {5, 16, 64, 70}) {
    for (int64_t padding : {-1, 7}) {
      for (IdPolicy policy :
           {IdPolicy::kError, IdPolicy::kZeroRow, IdPolicy::kDefaultRow}) {
        SCOPED_TRACE(absl::StrCat("seed ", seed, " dim ", dim, " padding ",
                                  padding, " policy ",
                                  static_cast<int>(policy)));
        Bags bags = RandomBags(33, dim, random);
        bags.padding = padding;
        bags.policy = policy;
        if (policy != IdPolicy::kError) bags.ids[0] = bags.ids[1] = 1000;
        BagGraph<int64_t> graph(bags);
        const auto row_bytes = static_cast<size_t>(dim) * sizeof(float);
        cpu::RowOverlay overlay(bags.rows, row_bytes);
        graph.options.overlays["tables.3.weight"] = &overlay;
        // Row 0 stands for ids outside with kDefaultRow.
        std::vector<Bags> states = {bags};
        for (uint64_t state = 1; state <= 3; ++state) {
          overlay.Reserve(12, state);
          for (int64_t row = 0; row < 50; row += 4 + state) {
            const auto values = testing::RandomFloats(dim, random);
            std::copy(values.begin(), values.end(),
                      bags.table.begin() + row * dim);
            overlay.Put(
                row, state,
                {reinterpret_cast<const std::byte*>(values.data()), row_bytes});
          }
          states.push_back(bags);
        }
        const auto program = Must(Program::Compile(
            graph.builder.graph(), Part::Whole(graph.builder.graph()),
            graph.builder.Weights(), graph.options));
        EXPECT_TRUE(program->steps()[0].look_up);
        RunContext context(*program);
        for (uint64_t state = 0; state <= 3; ++state) {
          SCOPED_TRACE(absl::StrCat("state ", state));
          context.set_tables_at(state);
          std::vector<base::TensorView> outputs;
          ASSERT_TRUE(
              program->Run(testing::Views(graph.inputs), {}, context, outputs)
                  .ok());
          ExpectNear(outputs[0].as<float>(), Reference(states[state]), 2e-5);
        }
      }
    }
  }
}

// Rows as a test has them, which are not where the table's weight is.
class TestSource final : public cpu::RowSource {
 public:
  explicit TestSource(const Bags& bags) : bags_(bags) {}
  absl::Status Fetch(absl::Span<const cpu::WantedRows> wanted,
                     RunStats& /*stats*/) const override {
    ++calls;
    for (const cpu::WantedRows& some : wanted) {
      EXPECT_EQ(some.table, 5);
      auto* to = reinterpret_cast<float*>(some.to);
      for (const uint64_t row : some.rows) {
        EXPECT_LT(row, static_cast<uint64_t>(bags_.rows));
        if (row == fails_at) return absl::DataLossError("row is lost");
        to = std::copy_n(bags_.table.data() + row * bags_.dim, bags_.dim, to);
      }
    }
    return absl::OkStatus();
  }
  mutable int calls = 0;
  uint64_t fails_at = ~uint64_t{0};

 private:
  const Bags& bags_;
};

TEST(EmbeddingBagTest, ReadsRowsOfASourceAndChangesOverThem) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int64_t dim : {5, 64}) {
    for (int64_t padding : {-1, 7}) {
      for (IdPolicy policy :
           {IdPolicy::kError, IdPolicy::kZeroRow, IdPolicy::kDefaultRow}) {
        for (bool changed : {false, true}) {
          SCOPED_TRACE(absl::StrCat("seed ", seed, " dim ", dim, " padding ",
                                    padding, " policy ",
                                    static_cast<int>(policy)));
          Bags bags = RandomBags(33, dim, random);
          bags.padding = padding;
          bags.policy = policy;
          if (policy != IdPolicy::kError) bags.ids[0] = bags.ids[1] = -9;
          const Bags in_source = bags;
          Bags unread = bags;
          std::fill(unread.table.begin(), unread.table.end(), NAN);
          BagGraph<int64_t> graph(unread);
          TestSource source(in_source);
          const auto row_bytes = static_cast<size_t>(dim) * sizeof(float);
          cpu::RowOverlay overlay(bags.rows, row_bytes);
          overlay.SetSource({&source, 5});
          graph.options.overlays["tables.3.weight"] = &overlay;
          if (changed) {
            overlay.Reserve(17, 1);
            for (int64_t row = 0; row < 50; row += 3) {
              const auto values = testing::RandomFloats(dim, random);
              std::copy(values.begin(), values.end(),
                        bags.table.begin() + row * dim);
              overlay.Put(row, 1,
                          {reinterpret_cast<const std::byte*>(values.data()),
                           row_bytes});
            }
          }
          const auto out = Must(testing::RunWhole(graph.builder, graph.inputs,
                                                  graph.options));
          ExpectNear(out[0].view().as<float>(), Reference(bags), 2e-5);
          EXPECT_EQ(source.calls, 1);
          if (changed || policy != IdPolicy::kError) continue;
          source.fails_at = static_cast<uint64_t>(bags.ids[0]);
          EXPECT_EQ(testing::RunWhole(graph.builder, graph.inputs,
                                      graph.options)
                        .status()
                        .code(),
                    absl::StatusCode::kDataLoss);
        }
      }
    }
  }
}

TEST(EmbeddingBagTest, FindsRowsByTheirIds) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 ids_random(seed);
  std::mt19937 random(seed);
  for (int64_t dim : {5, 64}) {
    for (IdPolicy policy :
         {IdPolicy::kError, IdPolicy::kZeroRow, IdPolicy::kDefaultRow}) {
      Bags bags = RandomBags(33, dim, random);
      bags.policy = policy;
      bags.padding = 3;  // a row
      std::vector<int64_t> id_of;
      for (int64_t row = 0; row < bags.rows; ++row) {
        id_of.push_back(static_cast<int64_t>(ids_random()));
      }
      if (policy != IdPolicy::kError) bags.ids[4] = bags.ids[0] = -1;
      bags.ids[5] = bags.padding;
      BagGraph<int64_t> graph(bags);
      std::vector<int64_t> given;
      for (const int64_t row : bags.ids) {
        given.push_back(row < 0 ? 17 : id_of[row]);
      }
      graph.inputs[0] =
          MakeTensor<int64_t>({static_cast<int64_t>(given.size())}, given);
      const auto index = Must(models::IdIndex::Build(id_of));
      cpu::RowOverlay overlay(bags.rows, static_cast<size_t>(dim) * 4);
      overlay.SetIds(index.get());
      graph.options.overlays["tables.3.weight"] = &overlay;
      const auto expect_reference = [&] {
        RunStats stats;
        const auto out = Must(testing::RunWhole(graph.builder, graph.inputs,
                                                graph.options, &stats));
        ExpectNear(out[0].view().as<float>(), Reference(bags), 2e-5);
        EXPECT_EQ(stats.replaced_ids, policy == IdPolicy::kError ? 0u : 2u);
      };
      expect_reference();
      // Bags leave out the padding row's id also after the row is gone.
      overlay.Reserve(1, 1);
      overlay.Remove(static_cast<uint64_t>(bags.padding), 1);
      expect_reference();
      if (policy != IdPolicy::kError) continue;
      given[6] = 123456789012345;
      graph.inputs[0] =
          MakeTensor<int64_t>({static_cast<int64_t>(given.size())}, given);
      EXPECT_EQ(std::string(testing::RunWhole(graph.builder, graph.inputs,
                                              graph.options)
                                .status()
                                .message()),
                "table 'tables.3.weight': id 123456789012345 at position 6 has "
                "no row");
    }
  }
}

TEST(EmbeddingBagTest, WeighsSamples) {
  std::mt19937 random(1);
  Bags bags = RandomBags(20, 70, random);
  bags.weights = testing::RandomFloats(bags.ids.size(), random);
  ExpectMatchesReference<int64_t>(bags);
  bags.padding = 3;
  ExpectMatchesReference<int64_t>(bags);
}

TEST(EmbeddingBagTest, AllSpellingsOfTheOperatorAreNative) {
  std::mt19937 random(2);
  const Bags bags = RandomBags(9, 12, random);
  for (const char* op :
       {"aten.embedding_bag.default", "aten.embedding_bag.padding_idx",
        "aten._embedding_bag.default",
        "aten._embedding_bag_forward_only.default"}) {
    SCOPED_TRACE(op);
    // The internal overloads take -1, not None, for no padding.
    BagGraph<int64_t> graph(bags, op);
    EXPECT_THAT(testing::KernelsOf(graph.builder),
                ElementsAre("embedding_bag/sum"));
    ExpectMatchesReference<int64_t>(bags, op);
  }
}

TEST(EmbeddingBagTest, AgreesWithLibTorch) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (Mode mode : {kSum, kMean, kMax}) {
    for (bool include_last : {false, true}) {
      Bags bags = RandomBags(25, 48, random);
      bags.mode = mode;
      bags.include_last = include_last;
      BagGraph<int64_t> graph(bags);
      const auto own = Must(testing::RunWhole(graph.builder, graph.inputs));
      const auto torch =
          Must(testing::RunByLibTorch(graph.builder, graph.inputs));
      ASSERT_EQ(own[0].dims(), torch[0].dims());
      const auto expected = torch[0].view().as<float>();
      ExpectNear(own[0].view().as<float>(), {expected.begin(), expected.end()},
                 1e-5);
    }
  }
}

TEST(EmbeddingBagTest, SumsSmallTypesInFloatAndRoundsOnce) {
  std::mt19937 random(3);
  const Bags source = RandomBags(12, 33, random);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(base::Name(dtype));
    Bags bags = source;
    std::vector<uint16_t> stored;
    for (float& value : bags.table) {
      if (dtype == DType::kFloat16) {
        cpu::Float16 half;
        cpu::FromFloat(value, half);
        stored.push_back(half.bits);
        value = cpu::ToFloat(half);
      } else {
        cpu::BFloat16 half;
        cpu::FromFloat(value, half);
        stored.push_back(half.bits);
        value = cpu::ToFloat(half);
      }
    }
    GraphBuilder builder;
    const auto table = builder.RawWeight("t", dtype, {bags.rows, bags.dim},
                                         stored.data(), stored.size() * 2);
    const auto ids = builder.Input("ids", DType::kInt64, {Sym("n")});
    const auto offsets = builder.Input("offsets", DType::kInt64, {Sym("b")});
    const auto results = builder.Nodes(
        "aten.embedding_bag.default",
        {Ref("weight", table), Ref("indices", ids), Ref("offsets", offsets)},
        {{dtype, {Sym("b"), bags.dim}}});
    builder.graph().nodes[0].outputs.resize(4, models::kNoValue);
    builder.Output(results[0]);
    std::vector<base::Tensor> inputs;
    const auto count = static_cast<int64_t>(bags.ids.size());
    inputs.push_back(MakeTensor<int64_t>({count}, bags.ids));
    inputs.push_back(MakeTensor<int64_t>({12}, bags.starts));
    const auto out = Must(testing::RunWhole(builder, inputs));
    ASSERT_EQ(out[0].dtype(), dtype);
    const auto expected = Reference(bags);
    const auto bits = out[0].view().as<uint16_t>();
    ASSERT_EQ(bits.size(), expected.size());
    // Half a unit in the last place, plus the error of the float sum.
    const double unit = dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    for (size_t i = 0; i < bits.size(); ++i) {
      const float value = dtype == DType::kFloat16
                              ? cpu::ToFloat(cpu::Float16{bits[i]})
                              : cpu::ToFloat(cpu::BFloat16{bits[i]});
      ASSERT_NEAR(value, expected[i], std::fabs(expected[i]) * unit + 1e-5);
    }
  }
}

TEST(EmbeddingBagTest, FollowsThePolicyForIdsOutsideTheTable) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (IdPolicy policy : {IdPolicy::kZeroRow, IdPolicy::kDefaultRow}) {
    for (Mode mode : {kSum, kMean, kMax}) {
      SCOPED_TRACE(absl::StrCat("mode ", mode));
      Bags bags = RandomBags(21, 70, random);
      bags.mode = mode;
      bags.policy = policy;
      bags.ids.resize(std::max<size_t>(bags.ids.size(), 30), 1);
      uint64_t outside = 0;
      for (size_t i = 0; i < bags.ids.size(); i += 3) {
        bags.ids[i] = i % 2 == 0 ? 50 + static_cast<int64_t>(i) : -1;
        ++outside;
      }
      BagGraph<int64_t> graph(bags);
      RunStats stats;
      const auto out = Must(testing::RunWhole(graph.builder, graph.inputs,
                                              graph.options, &stats));
      ExpectNear(out[0].view().as<float>(), Reference(bags), 2e-5);
      EXPECT_EQ(stats.replaced_ids, outside);
    }
  }
}

// The error message of a request with these ids and offsets.
std::string ErrorOf(const std::vector<int64_t>& ids,
                    const std::vector<int64_t>& offsets, bool include_last) {
  Bags bags;
  std::mt19937 random(4);
  bags = RandomBags(3, 5, random);
  bags.include_last = include_last;
  BagGraph<int64_t> graph(bags);
  graph.inputs[0] =
      MakeTensor<int64_t>({static_cast<int64_t>(ids.size())}, ids);
  graph.inputs[1] =
      MakeTensor<int64_t>({static_cast<int64_t>(offsets.size())}, offsets);
  const auto out = testing::RunWhole(graph.builder, graph.inputs);
  EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(out.status().message());
}

TEST(EmbeddingBagTest, NamesTableIdAndPosition) {
  EXPECT_EQ(ErrorOf({1, 2, 12345}, {0, 1}, false),
            "table 'tables.3.weight': id 12345 at position 2 is outside "
            "[0, 50)");
  EXPECT_EQ(ErrorOf({1, -2, 3}, {0, 1}, false),
            "table 'tables.3.weight': id -2 at position 1 is outside [0, 50)");
  // Ids that no bag reads are checked, too.
  EXPECT_THAT(ErrorOf({1, 2, 50}, {0, 2}, true), HasSubstr("id 50"));
}

TEST(EmbeddingBagTest, NamesOffsetsAndPosition) {
  EXPECT_EQ(ErrorOf({1, 2, 3}, {1, 2}, false),
            "offsets 'offsets': 1 at position 0, "
            "but the first offset must be 0");
  EXPECT_EQ(ErrorOf({1, 2, 3}, {0, 2, 1}, false),
            "offsets 'offsets': 1 at position 2 is less than 2 before it");
  EXPECT_EQ(ErrorOf({1, 2, 3}, {0, 4, 9}, false),
            "offsets 'offsets': 4 at position 1 is past the end of 3 ids");
  EXPECT_EQ(ErrorOf({1, 2, 3}, {0, 2, 4}, true),
            "offsets 'offsets': 4 at position 2 is past the end of 3 ids");
  EXPECT_THAT(ErrorOf({1}, {0, -1}, false), HasSubstr("less than 0"));
}

TEST(EmbeddingBagTest, LibTorchDoesOtherResultsButIdsAreStillChecked) {
  std::mt19937 random(5);
  Bags bags = RandomBags(4, 5, random);
  bags.ids = {1, 2, 50, 4};
  bags.starts = {0, 1, 2};
  BagGraph<int64_t> graph(bags);
  // offset2bag is read, too.
  graph.builder.Output(graph.builder.graph().nodes[0].outputs[1]);
  EXPECT_THAT(testing::KernelsOf(graph.builder), ElementsAre("libtorch"));
  const auto out = testing::RunWhole(graph.builder, graph.inputs);
  EXPECT_EQ(out.status().message(),
            "table 'tables.3.weight': id 50 at position 2 is outside [0, 50)");

  graph.options.config.default_id_policy = IdPolicy::kZeroRow;
  const auto refused =
      testing::RunWhole(graph.builder, graph.inputs, graph.options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("tables.3.weight"));
}

}  // namespace
}  // namespace refract::runtime
