#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/placement/topology/machine.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using TopologyCommandTest = CommandLineTest;
using placement::MachineFile;

TEST_F(TopologyCommandTest, ShowsThisMachine) {
  const Ran ran = Refract({"topology"});
  EXPECT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_TRUE(absl::StrContains(ran.out, "NUMA node 0")) << ran.out;
}

TEST_F(TopologyCommandTest, DumpsThisMachineSoThatItLoadsElsewhere) {
  const std::string dump = folder_ / "dump.json";
  const Ran here = Refract({"topology", "--dump", dump});
  ASSERT_EQ(here.exit_status, 0) << here.err;
  const Ran there = Refract({"topology", "--load", dump});
  EXPECT_EQ(there.exit_status, 0) << there.err;
  EXPECT_EQ(there.out, here.out);
}

TEST_F(TopologyCommandTest, ShowsADumpAsTreeMatrixAndJson) {
  const std::string json = folder_ / "topology.json";
  const Ran ran =
      Refract({"topology", "--load", MachineFile("hgx_h200"), "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_TRUE(absl::StrContains(ran.out, "mlx5_7 0000:be:00.0")) << ran.out;
  const nlohmann::json read = ReadJson(json);
  EXPECT_EQ(read["gpus"].size(), 8u);
  EXPECT_EQ(read["nics"].size(), 9u);
  EXPECT_EQ(read["paths"].size(), 9u * 10);
  EXPECT_EQ(read["paths"][2]["class"], "PIX");
  EXPECT_EQ(read["paths"][2]["gbps"], 400);
}

TEST_F(TopologyCommandTest, AppliesAnOverride) {
  const std::string file = folder_ / "override.json";
  std::ofstream(file) << R"({"nics": [{"name": "rxe0", "numa_node": 0}]})";
  const Ran ran = Refract(
      {"topology", "--load", MachineFile("soft_roce"), "--override", file});
  EXPECT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_TRUE(absl::StrContains(ran.out, "rxe0        PHB 2.5")) << ran.out;
}

TEST_F(TopologyCommandTest, RefusesBadInputInOneLineThatNamesIt) {
  const std::string file = folder_ / "bad.json";
  std::ofstream(file) << R"({"nics": [{"name": "mlx5_0"}]})";
  EXPECT_EQ(Refused({"topology", "--load", MachineFile("soft_roce"),
                     "--override", file}),
            "refract topology: " + file +
                ": nics[0].name: the machine has no NIC mlx5_0\n");
  EXPECT_EQ(Refused({"topology", "--load", file}),
            "refract topology: " + file +
                ": format: is not \"refract-sysfs-dump\"\n");
  EXPECT_EQ(Refused({"topology", "--load", "/no/such.json"}),
            "refract topology: /no/such.json: cannot be read: No such file or "
            "directory\n");
  EXPECT_EQ(Refused({"topology", "--load", folder_.str()}),
            "refract topology: " + folder_.str() +
                ": cannot be read: Is a directory\n");
  EXPECT_EQ(Refused({"topology", "--sysfs-root", "/no/such"}),
            "refract topology: /no/such: is no folder\n");
  EXPECT_EQ(Refused({"topology", "--sysfs-root", folder_.str()}),
            "refract topology: " + folder_.str() +
                ": has no NUMA node, NIC or GPU, so it is no sysfs\n");
  EXPECT_TRUE(absl::StrContains(
      Refused({"topology", "--sysfs-root", "/sys", "--load", file}),
      "--sysfs-root excludes --load"));
}

}  // namespace
}  // namespace refract::tools
