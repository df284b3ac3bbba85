#include "tools/doctor/machine.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/tiny_model.h"

namespace refract::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void Put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

const Finding& Find(const std::vector<Finding>& findings,
                    const std::string& topic) {
  static const Finding none;
  for (const Finding& finding : findings) {
    if (finding.topic == topic) return finding;
  }
  ADD_FAILURE() << "no finding about " << topic;
  return none;
}

class MachineTest : public testing::Test {
 protected:
  TempFolder root_;
};

TEST_F(MachineTest, ReadsADumpedTree) {
  Put(root_ / "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  Put(root_ / "proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Xeon 8369B\nflags\t\t: fpu avx2 avx512f\n"
      "\nprocessor\t: 1\nmodel name\t: Xeon 8369B\nflags\t\t: fpu avx2\n");
  Put(root_ / "proc/meminfo",
      "MemTotal:       16384 kB\nMemAvailable:    8192 kB\n"
      "HugePages_Total:      12\nHugepagesize:       2048 kB\n");
  Put(root_ / "sys/kernel/mm/transparent_hugepage/enabled",
      "always [madvise] never\n");
  const std::string cache = root_ / "sys/devices/system/cpu/cpu0/cache/";
  Put(cache + "index1/type", "Instruction\n");
  Put(cache + "index1/size", "64M\n");
  Put(cache + "index2/type", "Unified\n");
  Put(cache + "index2/size", "1024K\n");
  Put(cache + "index3/type", "Unified\n");
  Put(cache + "index3/size", "32768K\n");
  Put(root_ / "sys/devices/system/node/node0/x", "");
  Put(root_ / "sys/devices/system/node/node1/x", "");
  Put(root_ / "sys/devices/system/node/online", "0-1");
  const std::string port = root_ / "sys/class/infiniband/mlx5_0/ports/1/";
  Put(port + "state", "4: ACTIVE\n");
  Put(port + "rate", "200 Gb/sec (4X HDR)\n");
  Put(port + "link_layer", "Ethernet\n");
  Put(root_ / "sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
  Put(root_ / "dev/infiniband/uverbs0", "");
  Put(root_ / "dev/infiniband/rdma_cm", "");
  Put(root_ / "dev/nvidia0", "");
  Put(root_ / "dev/nvidiactl", "");

  const Machine machine = ReadMachine(root_.str());
  EXPECT_EQ(machine.kernel, "6.1.0-18-amd64");
  EXPECT_EQ(machine.cpu, "Xeon 8369B");
  EXPECT_EQ(machine.cpus, 2);
  EXPECT_THAT(machine.vector_sets, ElementsAre("avx2", "avx512f"));
  EXPECT_EQ(machine.cache_bytes, uint64_t{32} << 20);
  EXPECT_EQ(machine.memory_bytes, 16384u * 1024);
  EXPECT_EQ(machine.available_bytes, 8192u * 1024);
  EXPECT_EQ(machine.huge_pages, 12u);
  EXPECT_EQ(machine.huge_page_bytes, 2048u * 1024);
  EXPECT_EQ(machine.transparent_huge_pages, "madvise");
  EXPECT_EQ(machine.numa_nodes, 2);
  ASSERT_EQ(machine.rdma.size(), 2u);
  EXPECT_EQ(machine.rdma[0].name, "mlx5_0");
  EXPECT_EQ(machine.rdma[0].rate, "200 Gb/sec (4X HDR)");
  EXPECT_TRUE(machine.rdma[0].active());
  EXPECT_EQ(machine.rdma[1].port, 2);
  EXPECT_FALSE(machine.rdma[1].active());
  EXPECT_EQ(machine.rdma_device_files, 1);
  EXPECT_THAT(machine.gpus, ElementsAre("/dev/nvidia0"));
}

TEST_F(MachineTest, TheDriverKnowsTheModelOfAGpu) {
  Put(root_ / "proc/driver/nvidia/gpus/0000:01:00.0/information",
      "Model: \t\t NVIDIA H200\nIRQ: 1\n");
  Put(root_ / "dev/nvidia0", "");
  EXPECT_THAT(ReadMachine(root_.str()).gpus, ElementsAre("NVIDIA H200"));
}

TEST_F(MachineTest, AnEmptyTreeIsAMachineWithNothing) {
  const Machine machine = ReadMachine(root_.str());
  EXPECT_EQ(machine.cpus, 0);
  EXPECT_EQ(machine.cache_bytes, 0u);
  EXPECT_EQ(machine.memory_bytes, 0u);
  EXPECT_THAT(machine.rdma, IsEmpty());
  EXPECT_THAT(machine.gpus, IsEmpty());
  for (const Finding& finding : Judge(machine, Build{}, std::nullopt, 0)) {
    EXPECT_EQ(finding.ok, finding.cost.empty()) << finding.topic;
  }
}

TEST_F(MachineTest, MemlockMattersOnlyWithRdma) {
  constexpr uint64_t kShm = uint64_t{1} << 30;
  Machine machine;
  machine.vector_sets = {"avx2"};
  EXPECT_TRUE(Find(Judge(machine, {}, 65536, kShm), "memlock").ok);
  machine.rdma = {{.name = "mlx5_0", .state = "4: ACTIVE"}};
  const Finding low = Find(Judge(machine, {}, 65536, kShm), "memlock");
  EXPECT_FALSE(low.ok);
  EXPECT_THAT(low.cost, HasSubstr("ulimit -l"));
  EXPECT_TRUE(Find(Judge(machine, {}, std::nullopt, kShm), "memlock").ok);
}

TEST_F(MachineTest, HardwareThatThisBuildCannotUseIsSaidToBeUnused) {
  Machine machine;
  machine.rdma = {{.name = "mlx5_0", .state = "4: ACTIVE"}};
  machine.gpus = {"NVIDIA H200"};
  std::vector<Finding> findings = Judge(machine, Build{}, std::nullopt, 0);
  EXPECT_THAT(Find(findings, "RDMA").cost, HasSubstr("no verbs transport"));
  EXPECT_THAT(Find(findings, "GPU").cost, HasSubstr("on the CPU"));
  findings = Judge(machine, {.verbs = true, .cuda = true}, std::nullopt, 0);
  EXPECT_THAT(Find(findings, "RDMA").cost, HasSubstr("/dev/infiniband"));
  machine.rdma_device_files = 1;
  findings = Judge(machine, {.verbs = true, .cuda = true}, std::nullopt, 0);
  EXPECT_TRUE(Find(findings, "RDMA").ok);
  EXPECT_TRUE(Find(findings, "GPU").ok);
  machine.rdma[0].state = "1: DOWN";
  findings = Judge(machine, {.verbs = true}, std::nullopt, 0);
  EXPECT_THAT(Find(findings, "RDMA").cost, HasSubstr("no port is active"));
}

}  // namespace
}  // namespace refract::tools
