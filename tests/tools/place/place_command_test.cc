#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class PlaceCommandTest : public CommandLineTest {
 protected:
  PlaceCommandTest() {
    nodes_ = Write("nodes.csv",
                   "name,cpu_milli,memory_mib,gpus,gpu_model,nics,leaf,pod\n"
                   "cpu-0,64000,262144,0,,1,l0,p0\n"
                   "gpu-0,96000,524288,8,A100,4,l0,p0\n"
                   "gpu-1,96000,524288,8,A100,4,l1,p0\n");
    instances_ =
        Write("instances.csv",
              "name,cpu_milli,memory_mib,gpus,mig,app,role,nic_percent\n"
              "cn-0,48000,1024,0,,shop,CN,1\n"
              "hn-0,8000,1024,1,,shop,HN,25\n"
              "hn-1,4000,1024,1,2g,shop,HN,10\n");
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(std::string(folder_ / name)) << text;
    return folder_ / name;
  }

  std::string nodes_;
  std::string instances_;
};

TEST_F(PlaceCommandTest, PlacesExplainsAndGoesOn) {
  const std::string output = folder_ / "placed.csv";
  const std::string json = folder_ / "placed.json";
  const Ran ran =
      Refract({"place", "--nodes", nodes_, "--instances", instances_,
               "--explain", "hn-0", "--output", output, "--json", json});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("hn-0: gpu-0, "));
  EXPECT_THAT(ran.out, HasSubstr("why: instance hn-0"));
  EXPECT_THAT(ran.out, HasSubstr("gpu-1"));
  EXPECT_THAT(ran.out, HasSubstr("nodes out by GPU: 1, such as cpu-0"));
  const nlohmann::json read = ReadJson(json);
  EXPECT_EQ(read["placements"].size(), 3u);
  EXPECT_EQ(read["cluster"]["gpus"], 16);

  // The next batch finds the first one's devices taken.
  const std::string more =
      Write("more.csv", "name,cpu_milli,memory_mib,gpus\nbig,32000,1024,8\n");
  const Ran next = Refract(
      {"place", "--nodes", nodes_, "--instances", more, "--running", output});
  ASSERT_EQ(next.exit_status, 0) << next.err;
  EXPECT_THAT(next.out, HasSubstr("big: gpu-1, 32 cores of socket 0, GPU "
                                  "0|1|2|3|4|5|6|7"));
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", instances_,
                       "--running", output}),
              HasSubstr("runs already"));
}

TEST_F(PlaceCommandTest, SaysWhatBindsWhereNoNodeWill) {
  const std::string impossible =
      Write("impossible.csv", "name,cpu_milli,memory_mib,gpus\nx,97000,1,0\n");
  EXPECT_THAT(
      Refused({"place", "--nodes", nodes_, "--instances", impossible}),
      HasSubstr("instance x: no node has 97 cores (the largest has 96)"));
  // A list whose author wrote cores: the amount shows it.
  const std::string cores = Write(
      "cores.csv", "name,cpu_milli,memory_mib,gpus,gpu_model\na,96,9,0,\n");
  EXPECT_THAT(Refused({"place", "--nodes", cores, "--instances", impossible}),
              HasSubstr("no node has 97 cores (the largest has 0.096)"));
  // Possible on an empty cluster, but not twice.
  const std::string full =
      Write("full.csv",
            "name,cpu_milli,memory_mib,gpus\na,90000,1,8\nb,90000,1,8\n"
            "c,90000,1,8\n");
  const Ran ran = Refract({"place", "--nodes", nodes_, "--instances", full});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err, HasSubstr("1 of 3 instances found no node"));
  EXPECT_THAT(ran.out, HasSubstr("c: no node"));
  // A misspelt name is refused also where an instance without a node is
  // explained.
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", full,
                       "--explain", "nobody"}),
              HasSubstr("--explain nobody: no such instance"));
}

TEST_F(PlaceCommandTest, PrintsAnInstanceThatTakesMemoryAlone) {
  const std::string small =
      Write("small.csv", "name,cpu_milli,memory_mib,gpus\nm,0,9,0\n");
  const Ran ran = Refract({"place", "--nodes", nodes_, "--instances", small});
  EXPECT_EQ(ran.exit_status, 0);
  EXPECT_THAT(ran.out, ContainsRegex("^m: [a-z0-9-]+\n"));
}

TEST_F(PlaceCommandTest, RefusesBadInput) {
  const std::string bad =
      Write("bad.csv", "name,cpu_milli,memory_mib,gpus\na,1000,x,0\n");
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", bad}),
              HasSubstr("bad.csv:2, column memory_mib: \"x\" is no number"));
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", instances_,
                       "--policy", "worst"}),
              HasSubstr("--policy worst: unknown; use random, "));
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", instances_,
                       "--explain", "nobody"}),
              HasSubstr("--explain nobody: no such instance"));
  EXPECT_THAT(Refused({"place", "--nodes", nodes_}), HasSubstr("--instances"));
  EXPECT_THAT(Refused({"place", "--nodes", nodes_, "--instances", instances_,
                       "--leaf-quota", "nan"}),
              HasSubstr("--leaf-quota"));
}

TEST_F(PlaceCommandTest, RefusesBadRunningLists) {
  const std::string output = folder_ / "placed.csv";
  ASSERT_EQ(Refract({"place", "--nodes", nodes_, "--instances", instances_,
                     "--output", output})
                .exit_status,
            0);
  std::ifstream file(output);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::string more =
      Write("more.csv", "name,cpu_milli,memory_mib,gpus\nbig,32000,1024,8\n");
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return Refused({"place", "--nodes", nodes_, "--instances", more,
                    "--running", Write("changed.csv", changed)});
  };
  EXPECT_THAT(refused("gpu-0", "gpu-9"), HasSubstr("there is no node gpu-9"));
  EXPECT_THAT(refused(",gpu_ids,", ",gpus_ids,"),
              HasSubstr("no list of placements"));
}

// Pods and leaves from Slurm's file: an app stays in the pod of its first
// instance, although another node is free.
TEST_F(PlaceCommandTest, TakesTheFabricFromAFile) {
  const std::string nodes =
      Write("plain.csv",
            "name,cpu_milli,memory_mib,gpus,gpu_model\n"
            "gpu-0,96000,524288,1,A100\ngpu-1,96000,524288,1,A100\n"
            "gpu-2,96000,524288,1,A100\n");
  const std::string apps =
      Write("apps.csv",
            "name,cpu_milli,memory_mib,gpus,app,role,max_per_node\n"
            "a,8000,1024,1,shop,HN,1\nb,8000,1024,1,shop,HN,1\n");
  const std::string slurm =
      Write("topology.conf",
            "SwitchName=leaf1 Nodes=gpu-[0-1]\nSwitchName=leaf2 Nodes=gpu-2\n"
            "SwitchName=pod1 Switches=leaf1\nSwitchName=pod2 Switches=leaf2\n");
  const Ran ran = Refract(
      {"place", "--nodes", nodes, "--instances", apps, "--fabric", slurm});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("a: gpu-0"));
  EXPECT_THAT(ran.out, HasSubstr("b: gpu-1"));
  const auto refused = [&](const std::string& list, const std::string& text) {
    return Refused({"place", "--nodes", list, "--instances", apps, "--fabric",
                    Write("bad.conf", text)});
  };
  // Switches above each other.
  EXPECT_THAT(refused(nodes,
                      "SwitchName=leaf1 Nodes=gpu-[0-2]\n"
                      "SwitchName=x Switches=leaf1,y\n"
                      "SwitchName=y Switches=x\n"),
              testing::AllOf(HasSubstr("bad.conf"), HasSubstr("cycle")));
  EXPECT_THAT(refused(nodes, "SwitchName=leaf1 Nodes=gpu-[0-1]\n"),
              HasSubstr("bad.conf: node gpu-2 is not in it"));
  EXPECT_THAT(refused(nodes_, "SwitchName=leaf1 Nodes=gpu-[0-1]\n"),
              HasSubstr("the node list has leaves of its own"));
  const std::string twice = Write(
      "twice.csv", "name,cpu_milli,memory_mib,gpus\nn,1000,1,0\nn,1000,1,0\n");
  EXPECT_THAT(Refused({"place", "--nodes", twice, "--instances", apps}),
              HasSubstr("twice.csv"));
}

}  // namespace
}  // namespace refract::tools
