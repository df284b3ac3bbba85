// Memory that cannot be allocated or registered: errors give the reason,
// earlier steps are undone, and parts that can work without it go on.
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "base/process/affinity.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs_sim/fabric/fabric.h"
#include "transport/memory/mapping.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/device/ibv_library.h"
#include "transport/verbs/poll_group.h"
#include "transport/verbs/verbs_path.h"

namespace refract::transport::verbs {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr int kMaxRegions = 6;

// Paths on a simulated device that takes few registrations.
class RegistrationTest : public testing::Test {
 protected:
  RegistrationTest() {
    sim::HostOptions host;
    host.nics.front().max_regions = kMaxRegions;
    fabric_.AddHost(host);
    registry_ = std::make_unique<DeviceRegistry>(
        fabric_.library(0), DeviceContext::Events::kPumped);
    group_ = std::make_shared<PollGroup>(*registry_, HubOptions());
  }
  ~RegistrationTest() override { EXPECT_TRUE(fabric_.violations().empty()); }

  std::unique_ptr<VerbsPath> NewPath() {
    const auto device = registry_->Open("sim0");
    EXPECT_TRUE(device.ok()) << device.status();
    const auto ports = (*device)->device().Ports();
    EXPECT_TRUE(ports.ok());
    const auto addresses =
        RankAddresses({{"sim0", *ports}}, AddressPreference(), std::nullopt);
    EXPECT_TRUE(addresses.ok()) << addresses.status();
    auto path = VerbsPath::Create(group_, addresses->front(), PathOptions());
    EXPECT_TRUE(path.ok()) << path.status();
    return *std::move(path);
  }

  sim::Fabric fabric_;
  std::unique_ptr<DeviceRegistry> registry_;
  std::shared_ptr<PollGroup> group_;
};

TEST_F(RegistrationTest, FailureInTheMiddleIsToldAndLeavesNothing) {
  // Many more rounds than the device has registrations.
  for (int round = 0; round < 10 * kMaxRegions; ++round) {
    std::unique_ptr<VerbsPath> path = NewPath();
    // The second of three fails.
    fabric_.FailRegistration(
        0, 0, 1, absl::ResourceExhaustedError("RLIMIT_MEMLOCK is 64 KiB"));
    const auto first = path->CreateRegion(4096, Access::kRemoteWrite);
    ASSERT_TRUE(first.ok()) << round << ": " << first.status();
    const absl::Status second =
        path->CreateRegion(kHuge, Access::kRemoteRead).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted) << second;
    EXPECT_TRUE(absl::StrContains(second.message(), "RLIMIT_MEMLOCK"))
        << second;
    // The path is as it was.
    EXPECT_TRUE(path->status().ok());
    EXPECT_TRUE(path->Export(*first).ok());
    const auto third = path->CreateRegion(4096, Access::kLocal);
    EXPECT_TRUE(third.ok()) << third.status();
  }
}

TEST_F(RegistrationTest, DeviceWithoutRoomRefusesAndRecovers) {
  std::unique_ptr<VerbsPath> path = NewPath();
  absl::Status status;
  int made = 0;
  while (made <= kMaxRegions) {
    status = path->CreateRegion(4096, Access::kLocal).status();
    if (!status.ok()) break;
    ++made;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_GT(made, 0);
  path = NewPath();
  EXPECT_TRUE(path->CreateRegion(4096, Access::kLocal).ok());
}

// A device can only be removed when nobody has it open, and its paths have
// failed by then.
TEST_F(RegistrationTest, DeviceIsClosedWithItsLastPath) {
  std::weak_ptr<DeviceContext> device;
  for (int round = 0; round < 3; ++round) {
    std::unique_ptr<VerbsPath> first = NewPath();
    device = *registry_->Open("sim0");
    std::unique_ptr<VerbsPath> second = NewPath();
    first.reset();
    EXPECT_EQ(device.lock(), *registry_->Open("sim0"));
    EXPECT_TRUE(second->CreateRegion(4096, Access::kLocal).ok());
    second.reset();
    EXPECT_TRUE(device.expired());
  }
}

TEST(MemlockAdviceTest, NamesTheLimitAndTheWaysToRaiseIt) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit small = before;
  small.rlim_cur = std::min<rlim_t>(64 << 10, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  const std::string advice = MemlockAdvice(kHuge);
  EXPECT_TRUE(absl::StrContains(advice, "RLIMIT_MEMLOCK is 64 KiB")) << advice;
  EXPECT_TRUE(absl::StrContains(advice, "2048 KiB")) << advice;
  for (const char* way : {"ulimit -l", "LimitMEMLOCK", "--ulimit memlock"}) {
    EXPECT_TRUE(absl::StrContains(advice, way)) << advice;
  }
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(MemlockAdvice(kHuge), "");
  }
}

// Whether or not this machine has huge pages set aside: more of them are asked
// for than it can have.
TEST(MappingForDevicesTest, DoesWithoutHugePages) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, kHuge - 1, kHuge,
                             kHuge + 1, 5 * kHuge, size_t{64} << 30}) {
    const auto memory = Mapping::ForDevices(bytes);
    ASSERT_TRUE(memory.ok()) << bytes << ": " << memory.status();
    EXPECT_EQ((*memory)->size(), bytes);
    const std::byte* data = (*memory)->data();
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(data) % (bytes < kHuge ? 4096 : kHuge), 0u)
        << bytes;
    // The ends, so that no 64 GiB are touched.
    EXPECT_EQ(data[0], std::byte{0});
    EXPECT_EQ(data[bytes - 1], std::byte{0});
    (*memory)->data()[bytes - 1] = std::byte{1};
  }
}

// Pages come from the NUMA node that is asked for, where the kernel lets this
// process say so; a node that is not there changes nothing.
TEST(MappingForDevicesTest, PrefersTheMemoryOfANumaNode) {
  const auto policy_of = [](const std::byte* data) {
    int policy = -1;
    EXPECT_EQ(
        syscall(SYS_get_mempolicy, &policy, nullptr, 0, data, MPOL_F_ADDR), 0)
        << std::strerror(errno);
    return policy;
  };
  const auto probe = Mapping::ForDevices(4096);
  ASSERT_TRUE(probe.ok());
  const absl::Status allowed = base::PreferMemoryOf(0, (*probe)->data(), 4096);
  if (!allowed.ok()) GTEST_SKIP() << allowed.message();
  for (const size_t bytes : {size_t{4096}, 2 * kHuge}) {
    const auto memory = Mapping::ForDevices(bytes, 0);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(policy_of((*memory)->data()), MPOL_PREFERRED);
    EXPECT_EQ(policy_of((*memory)->data() + bytes - 1), MPOL_PREFERRED);
    const auto anywhere = Mapping::ForDevices(bytes);
    EXPECT_EQ(policy_of((*anywhere)->data()), MPOL_DEFAULT);
    const auto absent = Mapping::ForDevices(bytes, 1000);
    ASSERT_TRUE(absent.ok());
    EXPECT_EQ((*absent)->data()[bytes - 1], std::byte{0});
  }
}

// A child gets no copy of memory that a device writes to: after a fork the
// parent would be the one moved to other pages.
TEST(MappingForDevicesTest, StaysWithTheParent) {
  for (const size_t bytes : {size_t{8192}, 2 * kHuge}) {
    const auto memory = Mapping::ForDevices(bytes);
    ASSERT_TRUE(memory.ok());
    (*memory)->data()[0] = std::byte{1};
    EXPECT_EXIT(
        {
          // mincore() tells without a fault that the page is not mapped.
          unsigned char resident = 0;
          const int found = mincore((*memory)->data(), 4096, &resident);
          std::exit(found != 0 && errno == ENOMEM ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace refract::transport::verbs
