#include "models/repository/split_plan.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/split_plan.pb.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr base::Digest kModel{.low = 7, .high = 8};

// ids → emb → flat → d → post → (output), with a size of `ids` for `flat`.
class SplitPlanTest : public ::testing::Test {
 protected:
  enum : ValueId { kIds, kTable, kEmb, kSize, kFlat, kDense, kPost };

  SplitPlanTest() {
    AddValue("ids", kNoNode, base::DType::kInt64);
    AddValue("p_table", kNoNode, base::DType::kFloat32).weight = "table";
    graph_.inputs = {kIds};
    AddNode("emb", "aten.embedding.default", {kTable, kIds});
    AddNode("size", "aten.sym_size.int", {kIds});
    graph_.values[kSize].kind = ValueKind::kSymInt;
    AddNode("flat", "aten.view.default", {kEmb, kSize});
    AddNode("d", "aten.linear.default", {kFlat});
    AddNode("post", "aten.topk.default", {kDense});
    graph_.outputs = {kPost};
    graph_.output_names = {"output_0"};
    graph_.values[kEmb].has_shape = true;
    graph_.values[kEmb].shape = {SymExpr::Symbol("s0"), 16};

    plan_.model = kModel;
    plan_.method = "by hand";
    plan_.stages = {Stage::kCnPre, Stage::kCnPre, Stage::kHn, Stage::kHn,
                    Stage::kCnPost};
    ComputeCrossings(graph_, plan_);
    path_ = ::testing::TempDir() + "/split_plan_test." +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  ~SplitPlanTest() override { std::remove(path_.c_str()); }

  Value& AddValue(std::string name, NodeId producer, base::DType dtype) {
    Value value;
    value.name = std::move(name);
    value.producer = producer;
    value.dtype = dtype;
    graph_.values.push_back(std::move(value));
    return graph_.values.back();
  }

  void AddNode(std::string name, std::string op, ValueList operands) {
    AddValue(name, static_cast<NodeId>(graph_.nodes.size()),
             base::DType::kFloat32);
    Node node;
    node.name = std::move(name);
    node.op = std::move(op);
    node.args.push_back({"tensors", std::move(operands)});
    node.outputs = {static_cast<ValueId>(graph_.values.size()) - 1};
    graph_.nodes.push_back(std::move(node));
  }

  std::string Refusal(const SplitPlan& plan) {
    const absl::Status status = ValidatePlan(graph_, kModel, plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  // Writes the plan after `edit` and returns the error of reading it back.
  template <typename Edit>
  std::string LoadError(Edit edit) {
    EXPECT_TRUE(SavePlan(graph_, plan_, path_).ok());
    proto::SplitPlan stored;
    {
      std::ifstream file(path_, std::ios::binary);
      EXPECT_TRUE(stored.ParseFromIstream(&file));
    }
    edit(stored);
    {
      std::ofstream file(path_, std::ios::binary | std::ios::trunc);
      EXPECT_TRUE(stored.SerializeToOstream(&file));
    }
    const absl::StatusOr<SplitPlan> loaded = LoadPlan(graph_, path_);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(path_));
    return std::string(loaded.status().message());
  }

  Graph graph_;
  SplitPlan plan_;
  std::string path_;
};

TEST_F(SplitPlanTest, CrossingsFollowFromTheStages) {
  EXPECT_THAT(plan_.up, ElementsAre(kEmb, kSize));
  EXPECT_THAT(plan_.down, ElementsAre(kDense));
  EXPECT_TRUE(ValidatePlan(graph_, kModel, plan_).ok());
  EXPECT_TRUE(plan_.uses_hn());
}

TEST_F(SplitPlanTest, InputThatTheHnReadsCrossesAndWeightsDoNot) {
  plan_.stages = {Stage::kCnPre, Stage::kHn, Stage::kHn, Stage::kHn,
                  Stage::kCnPost};
  std::get<ValueList>(graph_.nodes[3].args[0].value).push_back(kTable);
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(plan_.up, ElementsAre(kIds, kEmb));
}

TEST_F(SplitPlanTest, OutputMadeOnTheHnComesDown) {
  graph_.outputs.push_back(kFlat);
  graph_.output_names.push_back("output_1");
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(plan_.down, ElementsAre(kFlat, kDense));
}

TEST_F(SplitPlanTest, AllCnPlanHasNoCrossing) {
  plan_.stages.assign(5, Stage::kCnPre);
  ComputeCrossings(graph_, plan_);
  EXPECT_FALSE(plan_.uses_hn());
  EXPECT_THAT(plan_.up, IsEmpty());
  EXPECT_THAT(plan_.down, IsEmpty());
  EXPECT_TRUE(ValidatePlan(graph_, kModel, plan_).ok());
}

TEST_F(SplitPlanTest, AMessageHasRoomForSoManyValues) {
  plan_.up.assign(kMaxMessageTensors, kEmb);
  EXPECT_TRUE(CheckMessageRoom(plan_).ok());
  plan_.up.push_back(kEmb);
  EXPECT_THAT(std::string(CheckMessageRoom(plan_).message()),
              HasSubstr("sends 257 tensors from CN to HN"));
  plan_.down.assign(300, kDense);
  EXPECT_THAT(std::string(CheckMessageRoom(plan_).message()),
              HasSubstr("sends 300 tensors from HN to CN"));
}

TEST_F(SplitPlanTest, RefusesWhatIsWrongByName) {
  SplitPlan plan = plan_;
  plan.model.low ^= 1;
  EXPECT_THAT(Refusal(plan), HasSubstr(kModel.ToHex()));

  plan = plan_;
  plan.stages.pop_back();
  EXPECT_THAT(Refusal(plan), HasSubstr("4 stages"));

  plan = plan_;
  plan.stages[4] = Stage::kHn;
  EXPECT_THAT(Refusal(plan), HasSubstr("node post (aten.topk.default"));

  plan = plan_;
  plan.stages[3] = Stage::kCnPre;
  EXPECT_THAT(Refusal(plan), HasSubstr("node d in stage 0 reads value flat"));

  plan = plan_;
  plan.stages[0] = Stage::kCnPost;
  EXPECT_THAT(Refusal(plan), HasSubstr("node emb"));

  plan = plan_;
  plan.stages[2] = static_cast<Stage>(9);
  EXPECT_THAT(Refusal(plan), HasSubstr("node flat has stage 9"));

  plan = plan_;
  plan.up.pop_back();
  EXPECT_THAT(Refusal(plan), HasSubstr("value size"));

  plan = plan_;
  std::swap(plan.up[0], plan.up[1]);
  EXPECT_THAT(Refusal(plan), HasSubstr("value size crosses CN to HN"));

  plan = plan_;
  plan.down.push_back(1000);
  EXPECT_THAT(Refusal(plan), HasSubstr("1000"));
}

TEST_F(SplitPlanTest, OneTableMayBeLookedUpOnTheHn) {
  plan_.stages = {Stage::kHn, Stage::kCnPre, Stage::kHn, Stage::kHn,
                  Stage::kCnPost};
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(plan_.up, ElementsAre(kIds, kSize));
  EXPECT_TRUE(ValidatePlan(graph_, kModel, plan_).ok());
  // An operator of many tables, and a look-up after the HN, stay forbidden.
  graph_.nodes[0].op = "fbgemm.int_nbit_split_embedding_codegen_lookup.default";
  EXPECT_THAT(Refusal(plan_), HasSubstr("node emb (fbgemm."));
  graph_.nodes[0].op = "aten.embedding.default";
  plan_.stages[0] = Stage::kCnPost;
  EXPECT_THAT(Refusal(plan_), HasSubstr("stage 0 or 1, not in stage 2"));
}

TEST_F(SplitPlanTest, RefusesCrossingsWithoutAnElementType) {
  graph_.values[kEmb].dtype = base::DType::kUnknown;
  EXPECT_THAT(Refusal(plan_), HasSubstr("value emb"));
  graph_.values[kEmb].dtype = base::DType::kFloat32;
  graph_.values[kSize].kind = ValueKind::kSymFloat;
  EXPECT_THAT(Refusal(plan_), HasSubstr("value size"));
}

TEST_F(SplitPlanTest, ComesBackFromItsFile) {
  ASSERT_TRUE(SavePlan(graph_, plan_, path_).ok());
  const absl::StatusOr<SplitPlan> loaded = LoadPlan(graph_, path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model, plan_.model);
  EXPECT_EQ(loaded->method, plan_.method);
  EXPECT_EQ(loaded->stages, plan_.stages);
  EXPECT_EQ(loaded->up, plan_.up);
  EXPECT_EQ(loaded->down, plan_.down);
}

TEST_F(SplitPlanTest, WireFormsComeBackFromTheFile) {
  plan_.up_forms = {{WireType::kInt8, true}, {}};
  plan_.down_forms = {{WireType::kFloat16, false}};
  plan_.measured = WireMeasurement{.sample = "x.safetensors",
                                   .requests = 3,
                                   .bound = 0.5,
                                   .errors = {{"output_0", 0.25, 8}}};
  ASSERT_TRUE(ValidatePlan(graph_, kModel, plan_).ok() ||
              graph_.values[kDense].shape.empty());
  ASSERT_TRUE(SavePlan(graph_, plan_, path_).ok());
  const absl::StatusOr<SplitPlan> loaded = LoadPlan(graph_, path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->up_forms, plan_.up_forms);
  EXPECT_EQ(loaded->down_forms, plan_.down_forms);
  ASSERT_TRUE(loaded->measured.has_value());
  EXPECT_EQ(loaded->measured->sample, "x.safetensors");
  EXPECT_EQ(loaded->measured->requests, 3);
  EXPECT_EQ(loaded->measured->bound, 0.5);
  ASSERT_EQ(loaded->measured->errors.size(), 1);
  EXPECT_EQ(loaded->measured->errors[0].output, "output_0");
  EXPECT_EQ(loaded->measured->errors[0].max_abs, 0.25);
  EXPECT_EQ(loaded->measured->errors[0].largest_value, 8);
}

TEST_F(SplitPlanTest, OnlyPlansWithFormsNeedANewReader) {
  const auto version = [&] {
    EXPECT_TRUE(SavePlan(graph_, plan_, path_).ok());
    proto::SplitPlan stored;
    std::ifstream file(path_, std::ios::binary);
    EXPECT_TRUE(stored.ParseFromIstream(&file));
    return stored.format_version();
  };
  EXPECT_EQ(version(), 1);
  plan_.up_forms = {{}, {}};
  EXPECT_EQ(version(), 1);
  plan_.up_forms = {{WireType::kFloat16, false}, {}};
  EXPECT_EQ(version(), 2);
}

TEST_F(SplitPlanTest, FormsThatAValueCannotHaveAreRefused) {
  const auto refusal = [&](WireForm emb, WireForm size) {
    SplitPlan plan = plan_;
    plan.up_forms = {emb, size};
    return Refusal(plan);
  };
  EXPECT_THAT(refusal({WireType::kInt32, false}, {}),
              HasSubstr("value emb cannot cross as int32: it is float32"));
  EXPECT_THAT(
      refusal({}, {WireType::kInt32, false}),
      HasSubstr(
          "value size cannot cross as int32: it is a number, not a tensor"));
  EXPECT_THAT(refusal({}, {WireType::kAsIs, true}),
              HasSubstr("with unique rows: it is a number, not a tensor"));
  graph_.values[kEmb].shape.pop_back();
  EXPECT_THAT(refusal({WireType::kInt8, true}, {}),
              HasSubstr("its rows are single elements"));
  graph_.values[kEmb].shape.clear();
  EXPECT_THAT(refusal({WireType::kInt8, false}, {}),
              HasSubstr("its shape is not known"));
  SplitPlan plan = plan_;
  plan.up_forms = {{}};
  EXPECT_THAT(Refusal(plan), HasSubstr("1 wire forms for 2 values"));
  plan = plan_;
  graph_.values[kDense].has_shape = true;
  graph_.values[kDense].shape = {SymExpr::Symbol("s0"), 1};
  plan.down_forms = {{WireType::kAsIs, true}};
  EXPECT_THAT(Refusal(plan),
              HasSubstr("value d crosses HN to CN with unique rows"));
}

TEST_F(SplitPlanTest, FormsAreLoadedOnlyIfTheProgramKnowsThem) {
  plan_.up_forms = {{WireType::kFloat16, false}, {}};
  EXPECT_THAT(
      LoadError([](auto& plan) { plan.mutable_up_forms(0)->set_type(200); }),
      HasSubstr("wire type 200, which this program lacks"));
}

TEST_F(SplitPlanTest, FormsArePartOfTheSchemaAndTheirAbsenceIsNot) {
  const base::Digest without = SchemaDigest(graph_, plan_);
  plan_.up_forms = {{}, {}};
  plan_.down_forms = {{}};
  EXPECT_EQ(SchemaDigest(graph_, plan_), without);
  plan_.up_forms[0].type = WireType::kFloat16;
  const base::Digest half = SchemaDigest(graph_, plan_);
  EXPECT_FALSE(half == without);
  plan_.up_forms[0].unique_rows = true;
  EXPECT_FALSE(SchemaDigest(graph_, plan_) == half);
}

// A constant is computed where it is read; nothing made of weights crosses.
TEST_F(SplitPlanTest, DividedTablesComeBackAndEveryRowHasOneOwner) {
  graph_.nodes[0].args = {{"weight", ValueRef{kTable}},
                          {"indices", ValueRef{kIds}}};
  graph_.values[kTable].has_shape = true;
  graph_.values[kTable].shape = {10, 16};
  plan_.num_shards = 3;
  plan_.shards = {{.table = "table", .ends = {4, 4, 10}}};
  EXPECT_TRUE(ValidatePlan(graph_, kModel, plan_).ok())
      << ValidatePlan(graph_, kModel, plan_);
  ASSERT_TRUE(SavePlan(graph_, plan_, path_).ok());
  const auto loaded = LoadPlan(graph_, path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->num_shards, 3);
  ASSERT_EQ(loaded->shards.size(), 1);
  EXPECT_EQ(loaded->shards[0].table, "table");
  EXPECT_THAT(loaded->shards[0].ends, ElementsAre(4, 4, 10));
  EXPECT_EQ(SchemaDigest(graph_, *loaded), SchemaDigest(graph_, plan_));

  const auto refusal = [&](auto edit) {
    SplitPlan plan = plan_;
    edit(plan);
    return Refusal(plan);
  };
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{4, 10}, {4, 4, 9}, {4, 3, 10}, {-1, 3, 10}}) {
    EXPECT_THAT(refusal([&](SplitPlan& p) { p.shards[0].ends = ends; }),
                HasSubstr("table 'table' over CPU nodes: its 10 rows do not"));
  }
  EXPECT_THAT(refusal([](SplitPlan& p) { p.num_shards = 1; }),
              HasSubstr("over 1 CPU nodes; 2 to 64 are possible"));
  EXPECT_THAT(refusal([](SplitPlan& p) { p.shards.push_back(p.shards[0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(refusal([](SplitPlan& p) { p.shards[0].table = "x"; }),
              HasSubstr("no weight of that name"));
  plan_.stages[0] = Stage::kHn;
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(refusal([](SplitPlan&) {}),
              HasSubstr("node emb looks it up in another stage than CN-pre"));
  plan_.stages[0] = Stage::kCnPre;
  ComputeCrossings(graph_, plan_);
  graph_.nodes[0].op = "aten.linear.default";
  EXPECT_THAT(refusal([](SplitPlan&) {}),
              HasSubstr("reads it other than by a look-up"));
}

TEST_F(SplitPlanTest, ConstantsNeverCross) {
  AddNode("t", "aten.t.default", {kTable});
  const auto t = static_cast<ValueId>(graph_.values.size()) - 1;
  AddNode("use", "aten.add.Tensor", {kDense, t});
  AddNode("sort", "aten.topk.default", {kTable});  // not on the HN
  const auto sort = static_cast<ValueId>(graph_.values.size()) - 1;
  AddNode("both", "aten.add.Tensor", {kDense, sort});
  const auto both = static_cast<ValueId>(graph_.values.size()) - 1;
  graph_.outputs.push_back(both);
  plan_.stages.insert(plan_.stages.end(),
                      {Stage::kCnPre, Stage::kHn, Stage::kCnPre, Stage::kHn});
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(plan_.up, ElementsAre(kEmb, kSize, sort));
  EXPECT_THAT(plan_.down, ElementsAre(kDense, both));
  EXPECT_TRUE(ValidatePlan(graph_, kModel, plan_).ok());
  // The other way round: made on the HN, read after it.
  plan_.stages[5] = Stage::kHn;
  plan_.stages[6] = Stage::kCnPost;
  ComputeCrossings(graph_, plan_);
  EXPECT_THAT(plan_.down, ElementsAre(kDense, both));
  // A plan that sends one is refused by name.
  plan_.up.push_back(t);
  EXPECT_THAT(Refusal(plan_), HasSubstr("value t crosses CN to HN"));
}

TEST_F(SplitPlanTest, SavingReplacesAndLeavesNothingBeside) {
  const std::filesystem::path folder = path_ + ".d";
  std::filesystem::create_directory(folder);
  const std::string file = folder / "split_plan.pb";
  ASSERT_TRUE(SavePlan(graph_, plan_, file).ok());
  plan_.method = "again";
  ASSERT_TRUE(SavePlan(graph_, plan_, file).ok());
  EXPECT_EQ(LoadPlan(graph_, file)->method, "again");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder),
                          std::filesystem::directory_iterator()),
            1);
  std::filesystem::remove_all(folder);
}

TEST_F(SplitPlanTest, SavingNamesAFileThatCannotBeWritten) {
  const absl::Status status = SavePlan(graph_, plan_, "/no/such/folder/plan");
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder/plan"));
}

TEST_F(SplitPlanTest, LoadingNamesWhatIsWrongWithTheFile) {
  EXPECT_EQ(LoadPlan(graph_, path_).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadError([](auto& plan) { plan.set_format_version(3); }),
              HasSubstr("format version 3"));
  EXPECT_THAT(LoadError([](auto& plan) {
                plan.mutable_stages(1)->set_node("stranger");
              }),
              HasSubstr("stranger"));
  EXPECT_THAT(
      LoadError([](auto& plan) { plan.mutable_stages(1)->set_node("emb"); }),
      HasSubstr("emb twice"));
  EXPECT_THAT(
      LoadError([](auto& plan) { plan.mutable_stages()->RemoveLast(); }),
      HasSubstr("has 4 nodes"));
  EXPECT_THAT(
      LoadError([](auto& plan) { plan.mutable_stages(2)->set_stage(3); }),
      HasSubstr("node flat has stage 3"));
  EXPECT_THAT(LoadError([](auto& plan) { plan.set_up(0, "ghost"); }),
              HasSubstr("ghost"));
}

TEST_F(SplitPlanTest, LoadingRefusesCutAndForeignFiles) {
  ASSERT_TRUE(SavePlan(graph_, plan_, path_).ok());
  const auto whole = std::filesystem::file_size(path_);
  for (uintmax_t size = 0; size < whole; ++size) {
    ASSERT_TRUE(SavePlan(graph_, plan_, path_).ok());
    std::filesystem::resize_file(path_, size);
    const absl::StatusOr<SplitPlan> loaded = LoadPlan(graph_, path_);
    // A cut between two fields parses; the validator then misses crossings.
    EXPECT_FALSE(loaded.ok() && ValidatePlan(graph_, kModel, *loaded).ok())
        << size << " bytes";
  }
  std::ofstream(path_, std::ios::trunc) << "not a plan at all";
  EXPECT_EQ(LoadPlan(graph_, path_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SplitPlanTest, SchemaDigestCoversNamesTypesShapesAndDirection) {
  const base::Digest original = SchemaDigest(graph_, plan_);
  EXPECT_EQ(SchemaDigest(graph_, plan_), original);

  SplitPlan other = plan_;
  std::swap(other.up, other.down);
  EXPECT_FALSE(SchemaDigest(graph_, other) == original);

  Graph graph = graph_;
  graph.values[kEmb].name = "other";
  EXPECT_FALSE(SchemaDigest(graph, plan_) == original);
  graph = graph_;
  graph.values[kEmb].dtype = base::DType::kFloat16;
  EXPECT_FALSE(SchemaDigest(graph, plan_) == original);
  graph = graph_;
  graph.values[kEmb].shape[1] = 32;
  EXPECT_FALSE(SchemaDigest(graph, plan_) == original);
  // A value that does not cross does not change the digest.
  graph = graph_;
  graph.values[kFlat].name = "other";
  EXPECT_EQ(SchemaDigest(graph, plan_), original);
}

}  // namespace
}  // namespace refract::models
