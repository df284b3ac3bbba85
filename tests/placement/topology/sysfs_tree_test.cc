#include "placement/topology/sysfs_tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/process/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "placement/topology/discovery.h"
#include "placement/topology/topology_file.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A copy of sysfs with symbolic links, as `cp -a` makes it.
class SysfsTreeTest : public testing::Test {
 protected:
  SysfsTreeTest() {
    std::string pattern = testing::TempDir() + "/sysfs_XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~SysfsTreeTest() override { fs::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // `target` relative to the root.
  void PutLink(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directories(root_ / target);
    fs::create_symlink(
        fs::relative(root_ / target, (root_ / path).parent_path()),
        root_ / path);
  }
  // A dump written out as a tree.
  void Unpack(const std::string& machine) {
    const SysfsDump dump =
        *SysfsDump::FromJson(*base::ReadText(MachineFile(machine)));
    for (const auto& [path, target] : dump.links) PutLink(path, target);
    for (const auto& [path, text] : dump.files) Put(path, text + "\n");
    for (const auto& [path, names] : dump.folders) {
      for (const std::string& name : names) {
        if (!fs::exists(root_ / path / name)) {
          fs::create_directories(root_ / path / name);
        }
      }
    }
  }

  fs::path root_;
};

TEST_F(SysfsTreeTest, ATreeOfFilesGivesWhatItsDumpGives) {
  for (const char* machine : {"two_socket_8gpu", "hgx_h200", "vm", "soft_roce",
                              "sriov_vf", "bonded", "down_first_port"}) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    Unpack(machine);
    SysfsDump dump;
    const absl::StatusOr<NodeTopology> topology =
        ReadTopology({.sysfs_root = root_.string()}, &dump);
    ASSERT_TRUE(topology.ok()) << machine << topology.status();
    const std::string json = TopologyJson(*topology);
    EXPECT_EQ(json, TopologyJson(Machine(machine))) << machine;
    // The recorded files are enough to see the same machine again.
    const std::unique_ptr<SysfsTree> again =
        OpenDump(*SysfsDump::FromJson(dump.ToJson()));
    EXPECT_EQ(TopologyJson(*Discover(*again)), json) << machine;
  }
}

TEST_F(SysfsTreeTest, DumpsLeaveOutGidsThatAreNotSet) {
  const std::string port = "class/infiniband/rxe0/ports/1/";
  Put(port + "state", "4: ACTIVE\n");
  Put(port + "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  // Of InfiniBand cards: the default prefix and nothing else.
  Put(port + "gids/2", "fe80:0000:0000:0000:0000:0000:0000:0000\n");
  Put(port + "gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
  SysfsDump dump;
  const absl::StatusOr<NodeTopology> topology =
      ReadTopology({.sysfs_root = root_.string()}, &dump);
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->nics.size(), 1u);
  ASSERT_EQ(topology->nics[0].ports[0].gids.size(), 1u);
  EXPECT_EQ(topology->nics[0].ports[0].gids[0].index, 1);
  EXPECT_THAT(dump.folders[port + "gids"], ElementsAre("1"));
  EXPECT_EQ(dump.files.count(port + "gids/0"), 0u);
}

TEST_F(SysfsTreeTest, FilesThatCannotBeReadAreNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads every file";
  Put("devices/system/node/node0/cpulist", "0-3");
  chmod((root_ / "devices/system/node/node0/cpulist").c_str(), 0);
  const absl::StatusOr<NodeTopology> topology =
      ReadTopology({.sysfs_root = root_.string()});
  EXPECT_TRUE(absl::IsPermissionDenied(topology.status()));
  EXPECT_THAT(topology.status().message(),
              HasSubstr("devices/system/node/node0/cpulist: cannot be read"));
}

TEST_F(SysfsTreeTest, FilesThatMakeNoSenseAreNamed) {
  Put("devices/system/node/node0/cpulist", "0-x");
  const absl::StatusOr<NodeTopology> topology =
      ReadTopology({.sysfs_root = root_.string()});
  EXPECT_EQ(
      topology.status(),
      absl::InvalidArgumentError(
          root_.string() + ": devices/system/node/node0/cpulist: \"0-x\" is "
                           "not a value that the kernel writes there"));
}

TEST_F(SysfsTreeTest, LinksThatFormACycleOrLeaveTheTreeAreHandled) {
  fs::create_directories(root_ / "class/net/eth0");
  fs::create_symlink("device", root_ / "class/net/eth0/device");
  EXPECT_THAT(ReadTopology({.sysfs_root = root_.string()}).status().message(),
              HasSubstr("class/net/eth0/device: symbolic links form a cycle"));
  fs::remove(root_ / "class/net/eth0/device");
  fs::create_symlink("/tmp", root_ / "class/net/eth0/device");
  EXPECT_TRUE(ReadTopology({.sysfs_root = root_.string()})->nics.empty());
}

TEST_F(SysfsTreeTest, AFolderThatIsNotThereIsNamed) {
  EXPECT_EQ(ReadTopology({.sysfs_root = "/no/such"}).status(),
            absl::NotFoundError("/no/such: is no folder"));
}

TEST(SysfsDumpTest, BadDumpsNameTheField) {
  const auto message = [](const std::string& text) {
    return std::string(SysfsDump::FromJson(text).status().message());
  };
  const std::string head = R"({"format": "refract-sysfs-dump", "version": 1)";
  EXPECT_TRUE(SysfsDump::FromJson(head + "}").ok());
  EXPECT_EQ(message("[]"), "is no JSON object");
  EXPECT_EQ(message("{"), "line 1: is no JSON");
  EXPECT_EQ(message("{}"), "format: is not \"refract-sysfs-dump\"");
  EXPECT_EQ(message(R"({"format": "refract-sysfs-dump", "version": 2})"),
            "version: is not 1");
  EXPECT_EQ(message(head + R"(, "files": []})"), "files: is no object");
  EXPECT_EQ(message(head + R"(, "files": {"a/b": 3}})"),
            "files[\"a/b\"]: is no text");
  EXPECT_EQ(message(head + R"(, "folders": {"a": ["b", 3]}})"),
            "folders[\"a\"]: is no list of texts");
}

TEST(SysfsDumpTest, BridgesThatFormACycleAreNamed) {
  SysfsDump dump;
  dump.folders["class/infiniband"] = {"mlx5_0"};
  dump.links["class/infiniband/mlx5_0/device"] =
      "devices/pci0000:00/0000:01:00.0/0000:02:00.0/0000:01:00.0";
  EXPECT_THAT(Discover(*OpenDump(dump)).status().message(),
              HasSubstr("the bridges form a cycle at 0000:01:00.0"));
  // The same bridge below two others.
  dump.folders["class/infiniband"] = {"mlx5_0", "mlx5_1"};
  dump.links["class/infiniband/mlx5_0/device"] =
      "devices/pci0000:00/0000:00:01.0/0000:02:00.0";
  dump.links["class/infiniband/mlx5_1/device"] =
      "devices/pci0000:00/0000:00:02.0/0000:02:00.0";
  EXPECT_THAT(Discover(*OpenDump(dump)).status().message(),
              HasSubstr("0000:02:00.0 has two places in the tree"));
}

TEST(NaturallyLessTest, CountsDigitsAsNumbers) {
  EXPECT_TRUE(NaturallyLess("mlx5_2", "mlx5_10"));
  EXPECT_FALSE(NaturallyLess("mlx5_10", "mlx5_2"));
  EXPECT_TRUE(NaturallyLess("eth", "eth0"));
  EXPECT_TRUE(NaturallyLess("node9", "node10"));
  EXPECT_FALSE(NaturallyLess("a", "a"));
  EXPECT_TRUE(NaturallyLess("01", "1"));
}

}  // namespace
}  // namespace refract::placement
