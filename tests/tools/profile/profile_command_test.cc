// `refract profile`, and `refract partition` with its profiles.

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tests/tools/tiny_model.h"
#include "tools/command_line.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ProfileCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    const models::ImportedModel model = TinyModel::Make(folder_);
    ASSERT_TRUE(models::Repository(folder_ / "repo")
                    .AddVersion("tiny", model, {})
                    .ok());
  }

  // Standard output; the command must succeed and say nothing else.
  std::string Run(std::vector<std::string> arguments) {
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(RunCommandLine(arguments, out, err), 0) << err.str();
    EXPECT_EQ(err.str(), "");
    return out.str();
  }
  // The one line on standard error; the exit status must be 2.
  std::string Refused(std::vector<std::string> arguments) {
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(RunCommandLine(arguments, out, err), 2) << out.str();
    const std::string text = err.str();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    return text;
  }
  nlohmann::json Json(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }
  std::string Text(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  TempFolder folder_;
  const std::string model_ = folder_ / "repo/tiny";
  const std::string beside_ = folder_ / "repo/tiny/1/profile.textproto";
};

TEST_F(ProfileCommandTest, PartitionPricesPlansByWhatWasMeasured) {
  const std::string told = Run({"profile", model_, "--batch", "64,1,16",
                                "--repeat", "9", "--json", folder_ / "p.json"});
  EXPECT_THAT(told, AllOf(HasSubstr("batch 1, 16, 64, 9 repetitions each"),
                          HasSubstr("linear+bias+sigmoid"),
                          HasSubstr("written: " + beside_),
                          HasSubstr("sum of operators / whole run")));
  const nlohmann::json json = Json(folder_ / "p.json");
  EXPECT_EQ(json["benchmark"], "profile");
  EXPECT_TRUE(json["drift"].is_null());
  const nlohmann::json& profile = json["profile"];
  EXPECT_EQ(profile["batches"], nlohmann::json({1, 16, 64}));
  double sum = profile["run"]["samples"][1]["median_s"];
  size_t nodes = profile["free_nodes"].size();
  for (const nlohmann::json& op : profile["operators"]) {
    sum += static_cast<double>(op["samples"][1]["median_s"]);
    nodes += op["nodes"].size();
  }
  EXPECT_EQ(nodes, 4u);
  EXPECT_NEAR(sum, profile["sums"][1]["sum_s"], 1e-9 * sum);

  // All on the CN takes the operators and one run.
  const std::string partition =
      Run({"partition", model_, "--method", "optimal", "--batch", "16",
           "--hn-profile", "model", "--json", folder_ / "r.json"});
  EXPECT_THAT(partition,
              AllOf(HasSubstr("costs of the CN: measured, " + beside_),
                    HasSubstr("costs of the HN: measured, ")));
  const nlohmann::json report = Json(folder_ / "r.json")["partition"];
  for (const nlohmann::json& plan : report["alternatives"]) {
    if (plan["method"] != "all-cn") continue;
    EXPECT_NEAR(plan["latency_s"], sum, 1e-9 * sum);
  }
  EXPECT_EQ(report["conditions"]["notes"].size(), 2u);
  EXPECT_EQ(report["conditions"]["cn_run_s"], report["conditions"]["hn_run_s"]);
  EXPECT_THAT(std::string(report["conditions"]["cn"]["name"]),
              HasSubstr("profiled"));
}

TEST_F(ProfileCommandTest, AFullDiskLeavesTheFormerProfile) {
  const std::vector<std::string> profile = {"profile", model_,     "--batch",
                                            "1,2,4",   "--repeat", "9"};
  Run(profile);
  const std::string former = Text(beside_);
  // As on a full disk: nothing can be written.
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  std::ostringstream out;
  std::ostringstream err;
  const int status = RunCommandLine(profile, out, err);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(status, 1) << err.str();
  EXPECT_THAT(err.str(), HasSubstr(beside_ + ": cannot be written"));
  EXPECT_EQ(Text(beside_), former);
}

TEST_F(ProfileCommandTest, ProfilesAreUsedWhenTheyShouldBe) {
  const std::vector<std::string> partition = {"partition", model_, "--method",
                                              "optimal"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), partition.begin(), partition.end());
    return more;
  };
  EXPECT_THAT(Run(partition), Not(HasSubstr("measured")));
  EXPECT_THAT(Refused(with({"--cn-profile", "model"})),
              AllOf(HasSubstr("--cn-profile model"), HasSubstr(beside_),
                    HasSubstr("refract profile")));
  Run({"profile", model_, "--repeat", "9", "--output", folder_ / "other"});
  EXPECT_FALSE(std::filesystem::exists(beside_));
  EXPECT_THAT(Run(with({"--cn-profile", folder_ / "other"})),
              AllOf(HasSubstr("measured, " + folder_ / "other"),
                    Not(HasSubstr("of the HN"))));
  std::filesystem::copy(folder_ / "other", beside_);
  EXPECT_THAT(Run(partition), HasSubstr("of the CN: measured"));
  EXPECT_THAT(Run(with({"--cn", "cpu-2s"})), Not(HasSubstr("measured")));
  EXPECT_THAT(Run(with({"--cn-profile", "none"})), Not(HasSubstr("measured")));
  EXPECT_THAT(Run(with({"--batch", "1000"})),
              HasSubstr("batch 1000 is outside 1 to 256"));
}

TEST_F(ProfileCommandTest, DamagedProfilesAreRefusedByName) {
  Run({"profile", model_, "--repeat", "9"});
  const std::string good = Text(beside_);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(beside_) << text;
    return Refused({"partition", model_, "--method", "optimal"});
  };
  EXPECT_THAT(refused("\"logit\"", "\"logits\""),
              AllOf(HasSubstr(beside_), HasSubstr("operator logits"),
                    HasSubstr("--cn-profile none")));
  EXPECT_THAT(refused("median_seconds: ", "median_seconds: -"),
              HasSubstr("is negative"));
  EXPECT_THAT(refused("low: ", "low: 1 #"),
              HasSubstr("the profile is of model "));
  EXPECT_THAT(refused("run {", "run "), HasSubstr("line "));
  // Plans that need no costs do not read it; measuring again replaces it.
  Run({"partition", model_, "--method", "heuristic"});
  EXPECT_THAT(Run({"profile", model_, "--repeat", "9"}),
              HasSubstr("the former profile cannot be compared: "));
  EXPECT_THAT(Run({"profile", model_, "--repeat", "9"}),
              AllOf(HasSubstr("measured / predicted by the former profile"),
                    HasSubstr("the former profile ")));
  Run({"partition", model_, "--method", "optimal"});
}

TEST_F(ProfileCommandTest, SamplesAreDrawnFrom) {
  const base::Tensor dense = MakeTensor<float>(base::DType::kFloat32, {3, 2},
                                               {1, 2, -0.5f, 0.25f, 4, 0});
  const base::Tensor ids =
      MakeTensor<int64_t>(base::DType::kInt64, {3}, {0, 3, 4});
  WriteTensors(folder_ / "x", {{"dense", &dense}, {"ids", &ids}});
  EXPECT_THAT(
      Run({"profile", model_, "--repeat", "9", "--inputs", folder_ / "x"}),
      HasSubstr("items of 1 file with 3 in all"));
  const base::Tensor outside =
      MakeTensor<int64_t>(base::DType::kInt64, {3}, {99, 99, 99});
  WriteTensors(folder_ / "bad", {{"dense", &dense}, {"ids", &outside}});
  EXPECT_THAT(Refused({"profile", model_, "--inputs", folder_ / "bad"}),
              AllOf(HasSubstr("a request of batch 1"), HasSubstr("99")));
  WriteTensors(folder_ / "part", {{"dense", &dense}});
  EXPECT_THAT(Refused({"profile", model_, "--inputs", folder_ / "part"}),
              HasSubstr("input ids is missing"));
}

TEST_F(ProfileCommandTest, TheMachineIsDescribedForPartition) {
  const std::string file = folder_ / "mine.textproto";
  EXPECT_THAT(Run({"profile", "--hardware", file, "--repeat", "9",
                   "--table-mib", "16"}),
              AllOf(HasSubstr("name: \"mine\""), HasSubstr("row_seconds"),
                    HasSubstr("measured by refract profile --hardware")));
  EXPECT_THAT(Run({"partition", model_, "--method", "optimal", "--cn", file,
                   "--hn", file}),
              HasSubstr("CN mine, HN mine"));
  EXPECT_THAT(Refused({"profile", model_, "--hardware", file}),
              HasSubstr("--hardware"));
  EXPECT_THAT(Refused({"profile", "--hardware", file, "--table-mib", "0"}),
              HasSubstr("--table-mib 0"));
  EXPECT_THAT(Refused({"profile", "--hardware", folder_ / "no/such/file"}),
              HasSubstr("no/such/file"));
}

TEST_F(ProfileCommandTest, DefaultBatchesAreThoseThatTheModelTakes) {
  models::ImportedModel tiny = TinyModel::Make(folder_);
  tiny.graph.symbols[0].max = 100;
  ASSERT_TRUE(
      models::Repository(folder_ / "repo").AddVersion("small", tiny, {}).ok());
  EXPECT_THAT(Run({"profile", folder_ / "repo/small", "--repeat", "9"}),
              HasSubstr("batch 1, 16, 64, 100, 9 repetitions each"));
}

TEST_F(ProfileCommandTest, BadOptionsAreNamed) {
  EXPECT_THAT(Refused({"profile"}), HasSubstr("model"));
  EXPECT_THAT(Refused({"profile", folder_ / "repo/absent"}),
              HasSubstr("absent"));
  EXPECT_THAT(Refused({"profile", model_, "--batch", "1,16"}),
              AllOf(HasSubstr("--batch"), HasSubstr("at least 3")));
  EXPECT_THAT(Refused({"profile", model_, "--batch", "0,1,16"}),
              HasSubstr("--batch 0"));
  EXPECT_THAT(Refused({"profile", model_, "--batch", "1,16,5000"}),
              AllOf(HasSubstr("--batch 5000"), HasSubstr("4096")));
  EXPECT_THAT(Refused({"profile", model_, "--batch", "1,x"}),
              HasSubstr("--batch"));
  EXPECT_THAT(Refused({"profile", model_, "--repeat", "8"}),
              HasSubstr("--repeat 8"));
  EXPECT_THAT(Refused({"profile", model_, "--size", "n=3"}),
              HasSubstr("--size"));
  EXPECT_THAT(Refused({"profile", model_, "--repeat", "9", "--output",
                       folder_ / "no/such/file"}),
              HasSubstr("no/such/file"));
}

}  // namespace
}  // namespace refract::tools
