// The verbs data path over a real network stack that loses, delays, doubles,
// damages and reorders packets, loses its link, and delivers late: the same as
// tests/transport/sim/path_fault_test.cc shows of the simulator.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/base/random_seed.h"
#include "tests/rdma_vm/guest_network.h"
#include "tests/rdma_vm/hw_counters.h"
#include "tests/rdma_vm/verbs_pair.h"
#include "tests/transport/testing/datapath_conformance_fixture.h"
#include "transport/verbs/device/device_context.h"

namespace refract::rdma_vm {
namespace {

using transport::Access;
using transport::DataPath;
using transport::PostResult;
using transport::Region;
using transport::RemoteRegion;
using transport::TestEnd;
using transport::verbs::AsyncEvent;
using transport::verbs::DeviceListener;
using transport::verbs::DeviceRegistry;
using transport::verbs::HubOptions;
using transport::verbs::PathOptions;
using transport::verbs::PollGroup;

constexpr size_t kRegionBytes = size_t{256} << 10;
// For what an emulated machine on a busy host still does.
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Side {
  explicit Side(std::unique_ptr<DataPath> path) : end(std::move(path)) {
    inbox = *end.path().CreateRegion(kRegionBytes, Access::kRemoteWrite);
    source = *end.path().CreateRegion(kRegionBytes, Access::kRemoteRead);
    local = *end.path().CreateRegion(kRegionBytes, Access::kLocal);
  }
  void Import(Side& peer) {
    peer_inbox = *end.path().Import(*peer.end.path().Export(peer.inbox));
    peer_source = *end.path().Import(*peer.end.path().Export(peer.source));
  }
  PostResult PutNotify(size_t offset, size_t bytes, uint32_t imm) {
    return end.path().PutNotify(peer_inbox, offset,
                                {source.data() + offset, bytes}, imm, imm);
  }

  TestEnd end;
  Region inbox;
  Region source;
  Region local;
  RemoteRegion peer_inbox;
  RemoteRegion peer_source;
};

// Paths between two devices, `a` on the first and `b` on the second.
class VerbsFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* layout = std::getenv("REFRACT_RDMA_LAYOUT");
    if (layout == nullptr || std::string(layout) != "veth") {
      GTEST_SKIP() << "no veth pair of a guest: run by tests/rdma_vm/run_in_vm "
                      "--layout veth";
    }
    for (const std::string& device : RdmaDevices()) {
      not_ready_ += ReadReceiverNotReady(device);
    }
    Connect();
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    int64_t not_ready = 0;
    for (const std::string& device : RdmaDevices()) {
      not_ready += ReadReceiverNotReady(device);
    }
    EXPECT_EQ(not_ready, not_ready_);
  }

  void Connect() {
    const auto group = [] {
      return std::make_shared<PollGroup>(DeviceRegistry::System(),
                                         HubOptions());
    };
    PathOptions options;
    // 7 times 268 ms without an answer break a path: an emulated processor that
    // its host keeps from running for a moment must not.
    options.ack_timeout = 16;
    auto pair = MakeVerbsPair(group(), group(), options);
    a_ = std::make_unique<Side>(std::move(pair.first));
    b_ = std::make_unique<Side>(std::move(pair.second));
    a_->Import(*b_);
    b_->Import(*a_);
  }

  Side& a() { return *a_; }
  Side& b() { return *b_; }

  bool PollUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!done()) {
      if (a_ != nullptr) a_->end.Poll();
      if (b_ != nullptr) b_->end.Poll();
      if (absl::Now() > deadline) return false;
    }
    return true;
  }

  std::string Paths() {
    return absl::StrCat("a: ", a().end.path().status().ToString(),
                        ", b: ", b().end.path().status().ToString());
  }

  // A put each way and a get each way at once, of random sizes and places, and
  // every byte checked.
  void Exchange(std::mt19937& random, uint32_t round) {
    // Ten packets at most: soft-RoCE counts each gap within a message as a
    // retry, so with one in 25 packets gone a message of 30 would fail once in
    // thousands, and those of 10 once in millions.
    const auto draw = [&random, round] {
      const size_t offset = random() % (kRegionBytes / 2);
      const size_t bytes = random() % (round % 8 == 0 ? 40'000 : 6'000);
      return std::pair(offset, bytes);
    };
    const auto [put_offset, put_bytes] = draw();
    const auto [get_offset, get_bytes] = draw();
    for (Side* side : {&a(), &b()}) {
      for (size_t i = 0; i < put_bytes; ++i) {
        side->source.data()[put_offset + i] = std::byte(random());
      }
    }
    // Overlapping gets read sources that are filled by now, not these buffers.
    for (Side* side : {&a(), &b()}) {
      std::memset(side->inbox.data(), 0, kRegionBytes);
      std::memset(side->local.data(), 0, kRegionBytes);
      side->end.puts.clear();
      side->end.gets.clear();
      side->end.notes.clear();
    }
    for (Side* side : {&a(), &b()}) {
      ASSERT_EQ(side->PutNotify(put_offset, put_bytes, round),
                PostResult::kPosted);
      ASSERT_EQ(side->end.path().Get(
                    side->peer_source, get_offset,
                    {side->local.data() + get_offset, get_bytes}, round),
                PostResult::kPosted);
    }
    const auto done = [](const TestEnd& end) {
      return end.puts.size() == 1 && end.gets.size() == 1 &&
             end.notes.size() == 1;
    };
    ASSERT_TRUE(PollUntil([&] { return done(a().end) && done(b().end); }))
        << "round " << round << ", " << Paths();
    for (Side* side : {&a(), &b()}) {
      const Side& peer = side == &a() ? b() : a();
      ASSERT_EQ(side->end.notes.front(), round);
      ASSERT_EQ(std::memcmp(side->inbox.data() + put_offset,
                            peer.source.data() + put_offset, put_bytes),
                0)
          << "put of round " << round;
      ASSERT_EQ(std::memcmp(side->local.data() + get_offset,
                            peer.source.data() + get_offset, get_bytes),
                0)
          << "get of round " << round;
    }
  }
  int64_t not_ready_ = 0;
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
};

// ------------------------------------------------------------ a bad network

// Counters of both devices together.
struct Traffic {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t repeated = 0;      // requests that came again
  int64_t out_of_order = 0;  // requests and answers
};
Traffic ReadTraffic() {
  Traffic traffic;
  for (const std::string& device : RdmaDevices()) {
    auto counters = ReadHwCounters(device);
    traffic.sent += counters["sent_pkts"];
    traffic.received += counters["rcvd_pkts"];
    traffic.repeated += counters["duplicate_request"];
    traffic.out_of_order +=
        counters["out_of_seq_request"] + counters["rcvd_seq_err"];
  }
  return traffic;
}

struct BadNetwork {
  const char* name;
  const char* netem;
  // Whether the devices' counters show the effect of `netem`.
  bool (*acted)(const Traffic& before, const Traffic& after);
};

bool Lost(const Traffic& before, const Traffic& after) {
  return after.received - before.received < after.sent - before.sent;
}
bool Repeated(const Traffic& before, const Traffic& after) {
  return after.repeated > before.repeated;
}
bool Reordered(const Traffic& before, const Traffic& after) {
  return after.out_of_order > before.out_of_order;
}

class BadNetworkTest : public VerbsFaultTest,
                       public testing::WithParamInterface<BadNetwork> {};

TEST_P(BadNetworkTest, ChangesNoByteAndEndsNoPath) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> interfaces = RdmaInterfaces();
  const Netem there(interfaces.front(), GetParam().netem);
  const Netem back(interfaces.back(), GetParam().netem);
  constexpr uint32_t kRounds = 40;
  // Until the network has been bad; hundreds of packets go in one such lot.
  const Traffic before = ReadTraffic();
  uint32_t round = 0;
  do {
    for (const uint32_t end = round + kRounds; round < end; ++round) {
      ASSERT_NO_FATAL_FAILURE(Exchange(random, round));
    }
    ASSERT_LT(round, 20 * kRounds) << "the fault does not act";
  } while (!GetParam().acted(before, ReadTraffic()));
  EXPECT_TRUE(a().end.path().status().ok()) << Paths();
  EXPECT_TRUE(b().end.path().status().ok()) << Paths();
}

INSTANTIATE_TEST_SUITE_P(
    Netem, BadNetworkTest,
    testing::Values(BadNetwork{"Loss", "loss 2%", Lost},
                    BadNetwork{"Corruption", "corrupt 2%", Lost},
                    BadNetwork{"Duplicates", "duplicate 5%", Repeated},
                    // Of fifty packets, one is a millisecond late. Jitter would
                    // reorder nearly all, and reliable connections, which start
                    // again at the first packet that is not the next, make no
                    // progress then.
                    BadNetwork{"Reordering", "delay 1ms reorder 98%",
                               Reordered},
                    BadNetwork{"All",
                               "delay 1ms reorder 98% loss 1% corrupt 1% "
                               "duplicate 1%",
                               Lost}),
    [](const auto& info) { return info.param.name; });

TEST_F(VerbsFaultTest, DelayIsWaitedFor) {
  const std::vector<std::string> interfaces = RdmaInterfaces();
  const Netem there(interfaces.front(), "delay 20ms");
  const Netem back(interfaces.back(), "delay 20ms");
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (uint32_t round = 0; round < 5; ++round) {
    const absl::Time begin = absl::Now();
    ASSERT_NO_FATAL_FAILURE(Exchange(random, round));
    // A put is done when its acknowledgement is back.
    EXPECT_GE(absl::Now() - begin, absl::Milliseconds(40)) << round;
  }
}

// -------------------------------------------------------------------- links

// Counts the events of a device's port.
class PortEvents : public DeviceListener {
 public:
  explicit PortEvents(const std::string& device)
      : context_(*DeviceRegistry::System().Open(device)) {
    context_->AddListener(this);
  }
  ~PortEvents() override { context_->RemoveListener(this); }
  void OnDeviceEvent(absl::string_view, const AsyncEvent& event) override {
    if (event.type == IBV_EVENT_PORT_ERR) ++down;
    if (event.type == IBV_EVENT_PORT_ACTIVE) ++up;
  }
  std::atomic<int> down = 0;
  std::atomic<int> up = 0;

 private:
  const std::shared_ptr<transport::verbs::DeviceContext> context_;
};

bool Usable(const std::string& device) {
  auto context = DeviceRegistry::System().Open(device);
  if (!context.ok()) return false;
  auto ports = (*context)->device().Ports();
  return ports.ok() &&
         transport::verbs::RankAddresses({{device, *ports}}, {}, std::nullopt)
             .ok();
}

TEST_F(VerbsFaultTest, LinkDownEndsPathsAndNewOnesWorkWhenItIsUp) {
  const std::vector<std::string> devices = RdmaDevices();
  const std::string interface = RdmaInterfaces().front();
  std::mt19937 random(1);
  for (uint32_t round = 0; round < 3; ++round) {
    PortEvents events(devices.front());
    ASSERT_NO_FATAL_FAILURE(Exchange(random, round));
    RunCommand(absl::StrCat("ip link set ", interface, " down"));
    // One side has something to say; the other hears of it when its idle probe
    // finds no way either.
    ASSERT_EQ(a().PutNotify(0, 1000, round), PostResult::kPosted);
    ASSERT_TRUE(PollUntil([this] {
      return !a().end.path().status().ok() && !b().end.path().status().ok();
    })) << Paths();
    EXPECT_EQ(a().end.path().status().code(), absl::StatusCode::kUnavailable)
        << Paths();
    EXPECT_EQ(b().end.path().status().code(), absl::StatusCode::kUnavailable)
        << Paths();
    EXPECT_TRUE(
        absl::StrContains(a().end.path().status().message(), "port is down"))
        << Paths();
    EXPECT_EQ(a().PutNotify(0, 1000, round), PostResult::kBroken);
    EXPECT_TRUE(PollUntil([&] { return events.down > 0; }));
    // Nobody would choose it now.
    EXPECT_FALSE(Usable(devices.front()));
    RunCommand(absl::StrCat("ip link set ", interface, " up"));
    ASSERT_TRUE(PollUntil([&] {
      return events.up > 0 && Usable(devices.front()) && Usable(devices.back());
    }));
    Connect();
  }
  ASSERT_NO_FATAL_FAILURE(Exchange(random, 3));
}

// ------------------------------------------------------------- late packets

TEST_F(VerbsFaultTest, WhatArrivesAfterItsPathIsGoneIsWrittenNowhere) {
  constexpr size_t kMessages = 16;
  constexpr size_t kBytes = 4000;
  const std::string interface = RdmaInterfaces().front();
  bool late = false;
  // All within the time after which the new path's retries are used up.
  for (const char* delay : {"300ms", "600ms", "1200ms"}) {
    const Netem netem(interface, absl::StrCat("delay ", delay));
    std::memset(a().source.data(), 0x5a, kRegionBytes);
    for (uint32_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(a().PutNotify(i * kBytes, kBytes, i), PostResult::kPosted);
    }
    a().end.Poll();
    // After a reconnect the memory stays, and other messages use it.
    const Region memory = b().inbox;
    b_.reset();
    std::memset(memory.data(), 0x11, kRegionBytes);
    // On a host that let this thread wait, the packets came before that.
    late = netem.waiting() > 0;
    const std::unique_ptr<Side> old = std::move(a_);
    Connect();
    // The interface sends in order, so all that was late comes before this.
    ASSERT_EQ(a().PutNotify(0, 1, 0), PostResult::kPosted);
    ASSERT_TRUE(PollUntil([this] { return !b().end.notes.empty(); }))
        << Paths();
    EXPECT_EQ(b().end.notes, (std::deque<uint32_t>{0}));
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + kRegionBytes,
                            [](std::byte x) { return x == std::byte{0x11}; }));
    EXPECT_TRUE(std::all_of(b().inbox.data() + 1,
                            b().inbox.data() + kRegionBytes,
                            [](std::byte x) { return x == std::byte{0}; }));
    // The sender hears of it.
    ASSERT_TRUE(PollUntil([&old] {
      old->end.Poll();
      return !old->end.path().status().ok();
    }));
    EXPECT_EQ(old->end.path().status().code(), absl::StatusCode::kUnavailable)
        << old->end.path().status();
    ASSERT_TRUE(a().end.path().status().ok()) << Paths();
    if (late) break;
  }
  EXPECT_TRUE(late) << "no packet was ever late";
}

}  // namespace
}  // namespace refract::rdma_vm
