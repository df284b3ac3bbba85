#include "placement/topology/nvml.h"

#include <memory>

#include "gtest/gtest.h"
#include "placement/topology/discovery.h"

namespace refract::placement {
namespace {

SysfsDump TwoGpus() {
  SysfsDump dump;
  for (const char* address : {"0000:3b:00.0", "0000:86:00.0"}) {
    const std::string at = std::string("bus/pci/devices/") + address;
    dump.folders["bus/pci/devices"].push_back(address);
    dump.links[at] = std::string("devices/pci0000:00/") + address;
    dump.files[at + "/class"] = "0x030200";
    dump.files[at + "/vendor"] = "0x10de";
  }
  return dump;
}

TEST(NvmlTest, GivesModelsToTheGpusThatAnswer) {
  const std::unique_ptr<SysfsTree> tree = OpenDump(TwoGpus());
  const std::unique_ptr<SysfsTree> named =
      WithNvml(tree.get(), REFRACT_FAKE_NVML);
  SysfsDump dump;
  const NodeTopology topology = *Discover(*Record(named.get(), &dump));
  ASSERT_EQ(topology.gpus.size(), 2u);
  EXPECT_EQ(topology.gpus[0].model, "NVIDIA H200");
  EXPECT_EQ(topology.gpus[1].model, "");
  // The dump has them, too.
  EXPECT_EQ(Discover(*OpenDump(dump))->gpus[0].model, "NVIDIA H200");
}

TEST(NvmlTest, IsNotNeeded) {
  const std::unique_ptr<SysfsTree> tree = OpenDump(TwoGpus());
  const std::unique_ptr<SysfsTree> same =
      WithNvml(tree.get(), "no_such_library.so");
  EXPECT_EQ(Discover(*same)->gpus[0].model, "");
}

}  // namespace
}  // namespace refract::placement
