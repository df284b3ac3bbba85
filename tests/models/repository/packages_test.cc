// Packages for GPU nodes and for shards of CPU nodes.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/cn_shard.h"
#include "models/repository/hn_part.h"
#include "models/repository/repository.h"
#include "tests/models/repository/repository_fixture.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ReadFile;

// A plan that looks up on the CN and computes all else on the HN.
SplitPlan TablesOnCn(const LoadedModel& model) {
  SplitPlan plan;
  plan.model = model.digest;
  plan.method = "by hand";
  for (const Node& node : model.graph.nodes) {
    const std::vector<ValueId> inputs = InputsOf(node);
    const bool look_up = std::any_of(
        inputs.begin(), inputs.end(),
        [&](ValueId id) { return model.graph.value(id).weight == "e.weight"; });
    plan.stages.push_back(look_up ? Stage::kCnPre : Stage::kHn);
  }
  ComputeCrossings(model.graph, plan);
  return plan;
}

std::string ValuesOf(const WeightView& view) {
  return std::string(reinterpret_cast<const char*>(view.data), view.bytes());
}

TEST_F(RepositoryTest, TheHnPartLoadsWithoutTableFiles) {
  Add(Import());
  const auto whole = repository_.Load("ctr");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const SplitPlan plan = TablesOnCn(**whole);
  ASSERT_TRUE(SavePlan((*whole)->graph, plan, File("1/split_plan.pb")).ok());
  const std::string bias = ValuesOf(*(*whole)->weights->Get("l.bias"));
  // Loading a part keeps the notes about files of the whole.
  Age(File("1/model.pt2"));
  const LoadOptions hn = {.scope = WeightScope::kHnPart};
  const auto noted = repository_.Load("ctr", 0, hn);
  ASSERT_TRUE(noted.ok()) << noted.status();
  EXPECT_EQ((*noted)->verified_bytes, fs::file_size(File("1/model.pt2")));
  EXPECT_EQ((*repository_.Load("ctr"))->verified_bytes, 0);

  fs::remove_all(File("1/tables"));
  EXPECT_TRUE(absl::IsNotFound(repository_.Load("ctr").status()));
  const auto part = repository_.Load("ctr", 0, hn);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->digest, (*whole)->digest);
  EXPECT_EQ(ValuesOf(*(*part)->weights->Get("l.bias")), bias);
  EXPECT_TRUE(absl::IsNotFound((*part)->weights->Get("e.weight").status()));
}

TEST_F(RepositoryTest, APackageForGpuNodesIsServedByThemAlone) {
  Add(Import(/*rows=*/100000));
  const auto whole = repository_.Load("ctr");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::string to = dir_.File("packaged");
  EXPECT_TRUE(absl::IsFailedPrecondition(PackageHnPart(**whole, to).status()))
      << "without a plan";
  const SplitPlan plan = TablesOnCn(**whole);
  ASSERT_TRUE(SavePlan((*whole)->graph, plan, File("1/split_plan.pb")).ok());
  const auto planned = repository_.Load("ctr");
  ASSERT_TRUE(planned.ok()) << planned.status();
  const auto package = PackageHnPart(**planned, to);
  ASSERT_TRUE(package.ok()) << package.status();
  EXPECT_GT(package->whole_bytes, 100000 * 16);
  EXPECT_LT(package->bytes, 20000);
  EXPECT_TRUE(absl::IsAlreadyExists(PackageHnPart(**planned, to).status()));

  const Repository packaged(to);
  const auto part = packaged.Load(
      "ctr", 0,
      {.verification = Verification::kFull, .scope = WeightScope::kHnPart});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->digest, (*planned)->digest);
  EXPECT_EQ((*part)->config_text, (*planned)->config_text);
  for (const std::string& name : HnWeights((*planned)->graph, plan)) {
    const auto expected = (*planned)->weights->Get(name);
    const auto found = (*part)->weights->Get(name);
    ASSERT_TRUE(expected.ok() && found.ok()) << name << found.status();
    EXPECT_EQ(found->strides, expected->strides);
    EXPECT_EQ(ValuesOf(*found), ValuesOf(*expected)) << name;
  }
  EXPECT_THAT(std::string(packaged.Load("ctr").status().message()),
              HasSubstr("is a package for GPU nodes"));

  // A plan that needs more than was packaged; damaged weights.
  SplitPlan all_hn = plan;
  all_hn.stages.assign(all_hn.stages.size(), Stage::kHn);
  ComputeCrossings((*planned)->graph, all_hn);
  const std::string stored = absl::StrCat(to, "/ctr/1/split_plan.pb");
  ASSERT_TRUE(SavePlan((*planned)->graph, all_hn, stored).ok());
  EXPECT_THAT(
      std::string(packaged.Load("ctr", 0, {.scope = WeightScope::kHnPart})
                      .status()
                      .message()),
      HasSubstr("hn_part.pb: lacks 1 weights that the plan's HN part reads, "
                "the first is e.weight"));
  ASSERT_TRUE(SavePlan((*planned)->graph, plan, stored).ok());
  std::string bytes = ReadFile(absl::StrCat(to, "/ctr/1/hn_weights.bin"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  dir_.Write("packaged/ctr/1/hn_weights.bin", bytes);
  EXPECT_THAT(std::string(packaged
                              .Load("ctr", 0,
                                    {.verification = Verification::kFull,
                                     .scope = WeightScope::kHnPart})
                              .status()
                              .message()),
              HasSubstr("hn_weights.bin: differs"));
}

TEST_F(RepositoryTest, PackagesOfAllShardsHaveTheTablesRows) {
  Add(Import(/*rows=*/1000));
  const auto whole = repository_.Load("ctr");
  ASSERT_TRUE(whole.ok()) << whole.status();
  SplitPlan plan = TablesOnCn(**whole);
  ASSERT_TRUE(SavePlan((*whole)->graph, plan, File("1/split_plan.pb")).ok());
  EXPECT_THAT(std::string(PackageCnShard(**repository_.Load("ctr"), 0,
                                         dir_.File("shard0"))
                              .status()
                              .message()),
              HasSubstr("no split plan that divides tables"));
  plan.num_shards = 3;
  plan.shards = {{.table = "e.weight", .ends = {300, 300, 1000}}};
  ASSERT_TRUE(SavePlan((*whole)->graph, plan, File("1/split_plan.pb")).ok());
  const auto planned = repository_.Load("ctr");
  ASSERT_TRUE(planned.ok()) << planned.status();
  std::string rows;
  for (size_t shard = 0; shard < 3; ++shard) {
    const std::string to = dir_.File(absl::StrCat("shard", shard));
    const auto package = PackageCnShard(**planned, shard, to);
    ASSERT_TRUE(package.ok()) << package.status();
    const Repository packaged(to);
    EXPECT_THAT(std::string(packaged.Load("ctr").status().message()),
                HasSubstr("is a package for one shard of CPU nodes"));
    const auto part = packaged.Load(
        "ctr", 0,
        {.verification = Verification::kFull, .shard_packages = true});
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ((*part)->digest, (*planned)->digest);
    EXPECT_EQ((*part)->packaged_shard, shard);
    const auto table = (*part)->weights->Get("e.weight");
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(table->sizes[0], plan.shards[0].rows(shard));
    rows += ValuesOf(*table);
    EXPECT_EQ(ValuesOf(*(*part)->weights->Get("l.bias")),
              ValuesOf(*(*planned)->weights->Get("l.bias")));
  }
  EXPECT_EQ(rows, ValuesOf(*(*planned)->weights->Get("e.weight")));
  EXPECT_THAT(
      std::string(
          PackageCnShard(**planned, 3, dir_.File("shard3")).status().message()),
      HasSubstr("has shards 0 to 2"));

  // Another plan than the rows were taken for.
  plan.shards[0].ends = {301, 301, 1000};
  ASSERT_TRUE(
      SavePlan((*planned)->graph, plan, dir_.File("shard0/ctr/1/split_plan.pb"))
          .ok());
  EXPECT_THAT(std::string(Repository(dir_.File("shard0"))
                              .Load("ctr", 0, {.shard_packages = true})
                              .status()
                              .message()),
              HasSubstr("does not have the 301 rows of table 'e.weight'"));
}

}  // namespace
}  // namespace refract::models
