// The suite that every data path passes, on real verbs.

#include <memory>

#include "tests/rdma_vm/hw_counters.h"
#include "tests/rdma_vm/verbs_pair.h"
#include "tests/transport/testing/datapath_conformance.h"

namespace refract::transport {
namespace {

using verbs::DeviceRegistry;
using verbs::HubOptions;
using verbs::PollGroup;

std::shared_ptr<PollGroup> Group() {
  return std::make_shared<PollGroup>(DeviceRegistry::System(), HubOptions());
}

// Two ends that share nothing, as on two machines.
PathPair Apart() { return rdma_vm::MakeVerbsPair(Group(), Group()); }

// Both ends on one set of completion queues, though the suite uses them from
// two threads: each finds the other's completions and must wake it.
PathPair Together() {
  static const std::shared_ptr<PollGroup> group = Group();
  return rdma_vm::MakeVerbsPair(group, group);
}

INSTANTIATE_TEST_SUITE_P(VerbsApart, DataPathConformance,
                         testing::Values(&Apart));
INSTANTIATE_TEST_SUITE_P(VerbsTogether, DataPathConformance,
                         testing::Values(&Together));

// The credits' whole purpose, over all that ran.
class ReceiverAlwaysReady : public testing::Environment {
  void TearDown() override {
    for (const std::string& device : rdma_vm::RdmaDevices()) {
      EXPECT_EQ(rdma_vm::ReadReceiverNotReady(device), 0) << device;
    }
  }
};
[[maybe_unused]] testing::Environment* const kReceiverAlwaysReady =
    testing::AddGlobalTestEnvironment(new ReceiverAlwaysReady);

}  // namespace
}  // namespace refract::transport
