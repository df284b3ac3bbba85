// Files of operators with random damage: readers may refuse them, with an error
// of one line, but not crash.

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/process/files.h"
#include "gtest/gtest.h"
#include "placement/fabric/fabric_file.h"
#include "placement/topology/discovery.h"
#include "placement/topology/node_binding.h"
#include "placement/topology/topology_file.h"
#include "placement/topology/topology_text.h"
#include "tests/base/random_seed.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

constexpr int kMutations = 3000;

// Bytes changed, pieces removed, doubled or moved.
std::string Mutated(std::string text, std::mt19937_64& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t count = std::min<size_t>(text.size() - at, 1 + random() % 40);
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, count);
        break;
      case 2:
        text.insert(random() % text.size(), text.substr(at, count));
        break;
      default:
        // A digit: ids, addresses and counts that fit elsewhere.
        text[at] = static_cast<char>('0' + random() % 10);
    }
  }
  return text;
}

void Try(const std::string& text,
         const std::function<absl::Status(const std::string&)>& read) {
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    const absl::Status status = read(Mutated(text, random));
    accepted += status.ok();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(status.ok() || !status.message().empty());
  }
  // Both outcomes are met, or the damage tests nothing.
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kMutations);
}

TEST(MutationTest, OfDumps) {
  for (const char* machine : {"down_first_port", "sriov_vf", "bonded"}) {
    Try(*base::ReadText(MachineFile(machine)), [](const std::string& text) {
      const absl::StatusOr<SysfsDump> dump = SysfsDump::FromJson(text);
      if (!dump.ok()) return dump.status();
      const absl::StatusOr<NodeTopology> topology = Discover(*OpenDump(*dump));
      if (!topology.ok()) return topology.status();
      TreeText(*topology);
      MatrixText(*topology);
      Bind(*topology, {0, 1}, nullptr, "");
      return absl::OkStatus();
    });
  }
}

TEST(MutationTest, OfOverrides) {
  const NodeTopology machine = Machine("sriov_vf");
  Try(TopologyJson(machine), [&machine](const std::string& text) {
    NodeTopology topology = machine;
    const absl::Status status = ApplyOverride(text, &topology);
    if (!status.ok()) return status;
    MatrixText(topology);
    return TopologyJson(topology).empty() ? absl::InternalError("no JSON")
                                          : absl::OkStatus();
  });
}

TEST(MutationTest, OfFabricFiles) {
  for (const char* text :
       {"a leaf=l1 pod=p1 zone=z region=r address=10.0.0.1\n"
        "b leaf=l2 pod=p1 zone=z region=r\nc leaf=l3 pod=p2\n",
        "SwitchName=l1 Nodes=n[01-03],m\nSwitchName=l2 Nodes=n[04-06]\n"
        "SwitchName=s Switches=l[1-2] LinkSpeed=100\n",
        R"({"items": [{"metadata": {"name": "a", "labels": {
             "fabric.topograph.run/tier-0": "l1"}}, "status": {"addresses": [
             {"type": "InternalIP", "address": "10.0.0.1"}]}},
           {"metadata": {"name": "b", "labels": {
             "network.topology.nvidia.com/leaf": "l1"}}}]})"}) {
    Try(text, [](const std::string& mutated) {
      const absl::StatusOr<Fabric> fabric = ParseFabric(mutated);
      if (!fabric.ok()) return fabric.status();
      fabric->TierTo(fabric->hosts()[0], "a:1");
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace refract::placement
