#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using ::testing::HasSubstr;
using VerifyRepositoryTest = CommandLineTest;

TEST_F(VerifyRepositoryTest, NamesTheFileThatDiffers) {
  AddModel();
  AddModel(/*first_weight=*/0.75f);
  const std::string json = folder_ / "found.json";
  const std::vector<std::string> command = {"verify-repository",
                                            folder_ / "repo", "--json", json};
  const Ran fine = Refract(command);
  EXPECT_EQ(fine.exit_status, 0) << fine.err;
  EXPECT_EQ(std::count(fine.out.begin(), fine.out.end(), '\n'), 2) << fine.out;
  EXPECT_THAT(fine.out, HasSubstr("ok   tiny/1"));
  EXPECT_THAT(fine.out, HasSubstr("ok   tiny/2"));
  EXPECT_EQ(ReadJson(json).size(), 2);
  EXPECT_GT(ReadJson(json)[0]["verified_bytes"], 0);

  // In place, and with the size and the times that it had: notes would not
  // show it.
  const std::string file = folder_ / "repo/tiny/2/tables/weights.safetensors";
  const auto modified = std::filesystem::last_write_time(file);
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(-1, std::ios::end);
    out.put('\x7f');
  }
  std::filesystem::last_write_time(file, modified);
  const Ran bad = Refract(command);
  EXPECT_EQ(bad.exit_status, 2);
  EXPECT_THAT(bad.out, HasSubstr("ok   tiny/1"));
  EXPECT_THAT(bad.out, HasSubstr("bad  tiny/2"));
  EXPECT_THAT(bad.err, HasSubstr("1 of 2 versions: " + file + ": differs"));
  EXPECT_EQ(std::count(bad.err.begin(), bad.err.end(), '\n'), 1) << bad.err;
  const nlohmann::json found = ReadJson(json);
  EXPECT_TRUE(found[0]["ok"]);
  EXPECT_FALSE(found[1]["ok"]);
  EXPECT_THAT(found[1]["error"].get<std::string>(), HasSubstr(file));
}

TEST_F(VerifyRepositoryTest, ReadsAndListsPackages) {
  const std::string model = AddModel();
  const Ran planned =
      Refract({"partition", model, "--method", "heuristic", "--shards", "2",
               "--shard-tables-from", "0.00001", "--write"});
  ASSERT_EQ(planned.exit_status, 0) << planned.err;
  struct Case {
    std::vector<std::string> options;
    std::string weights, package_for, note;
  };
  const std::vector<Case> cases = {
      {{"--for", "gpu-node"}, "hn_weights.bin", "gpu-node", "GPU nodes"},
      {{"--for", "cpu-node", "--shard", "1"},
       "cn_weights.bin",
       "cpu-node",
       "shard 1 of 2 CPU nodes"}};
  for (const Case& c : cases) {
    const std::string to = folder_ / c.package_for;
    std::vector<std::string> package = {"package", model, "--output", to};
    package.insert(package.end(), c.options.begin(), c.options.end());
    ASSERT_EQ(Refract(package).exit_status, 0);

    const std::string json = folder_ / "listed.json";
    const Ran listed = Refract({"list", to, "--json", json});
    EXPECT_THAT(listed.out, HasSubstr("heuristic, package for " + c.note));
    EXPECT_EQ(ReadJson(json)[0]["plan"], "heuristic");
    EXPECT_EQ(ReadJson(json)[0]["package_for"], c.package_for);

    const Ran fine = Refract({"verify-repository", to});
    EXPECT_EQ(fine.exit_status, 0) << fine.err;
    EXPECT_THAT(fine.out, HasSubstr("ok   tiny/1"));
    const std::string file = to + "/tiny/1/" + c.weights;
    {
      std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
      out.put('\x7f');
    }
    const Ran bad = Refract({"verify-repository", to});
    EXPECT_EQ(bad.exit_status, 2);
    EXPECT_THAT(bad.err, HasSubstr("1 of 1 versions: " + file + ": differs"));
  }
}

TEST_F(VerifyRepositoryTest, BadArguments) {
  EXPECT_THAT(Refused({"verify-repository", folder_ / "absent"}),
              HasSubstr("absent"));
  EXPECT_THAT(Refused({"verify-repository"}), HasSubstr("repository"));
  // A model's folder in place of the repository.
  EXPECT_THAT(Refused({"verify-repository", AddModel()}),
              HasSubstr("tiny: has no version of any model"));
}

}  // namespace
}  // namespace refract::tools
