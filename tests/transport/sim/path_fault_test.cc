// The verbs data path over a simulated network that fails: lost packets are
// sent again, dead peers are found in bounded time, and the receiver is always
// ready.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/transport/sim/paths.h"

namespace refract::transport::sim {
namespace {

constexpr size_t kRegionBytes = size_t{1} << 20;

struct Side {
  std::unique_ptr<DataPath> path;
  Region inbox;
  Region source;
  Region local;
  RemoteRegion peer_inbox;
  RemoteRegion peer_source;
  std::vector<uint32_t> notes;
  size_t puts = 0;
  size_t gets = 0;

  size_t Poll() {
    std::array<Completion, 16> out;
    const size_t count = path->Poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      puts += out[i].kind == Completion::Kind::kPut;
      gets += out[i].kind == Completion::Kind::kGet;
      if (out[i].kind == Completion::Kind::kNotify) notes.push_back(out[i].imm);
    }
    return count;
  }
};

class SimPathFaultTest : public testing::Test {
 protected:
  SimPathFaultTest() : seed_(base::RandomSeed()) {
    FabricOptions options;
    options.seed = seed_;
    fabric_ = std::make_unique<Fabric>(options);
    for (int host = 0; host < 2; ++host) {
      fabric_->AddHost();
      processes_.push_back(std::make_unique<Process>(*fabric_, host));
      Side& side = sides_[host];
      side.path = processes_[host]->NewPath();
      side.inbox = *side.path->CreateRegion(kRegionBytes, Access::kRemoteWrite);
      side.source = *side.path->CreateRegion(kRegionBytes, Access::kRemoteRead);
      side.local = *side.path->CreateRegion(kRegionBytes, Access::kLocal);
    }
    for (int host = 0; host < 2; ++host) {
      Side& peer = sides_[1 - host];
      sides_[host].peer_inbox =
          *sides_[host].path->Import(*peer.path->Export(peer.inbox));
      sides_[host].peer_source =
          *sides_[host].path->Import(*peer.path->Export(peer.source));
    }
  }
  ~SimPathFaultTest() override {
    for (const std::string& violation : fabric_->violations()) {
      ADD_FAILURE() << violation;
    }
    for (int host = 0; host < 2; ++host) {
      EXPECT_EQ(fabric_->counters(host).out_of_receives, 0u);
      EXPECT_EQ(fabric_->counters(host).rnr_naks, 0u);
    }
  }

  Side& a() { return sides_[0]; }
  Side& b() { return sides_[1]; }

  // Polls both sides while time passes. False: `limit` did.
  template <typename Condition>
  bool RunUntil(Condition done, absl::Duration limit) {
    const absl::Time deadline = fabric_->Now() + limit;
    while (!done()) {
      if (fabric_->Now() >= deadline) return false;
      const size_t worked = a().Poll() + b().Poll();
      if (worked == 0) fabric_->RunFor(absl::Microseconds(2));
    }
    return true;
  }

  void Add(PacketAction action, double probability, absl::Duration delay) {
    PacketRule rule;
    rule.action = action;
    rule.probability = probability;
    rule.delay = delay;
    rule.jitter = delay;
    fabric_->AddRule(rule);
  }

  const uint64_t seed_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::array<Side, 2> sides_;
};

TEST_F(SimPathFaultTest, BadNetworksChangeNoByte) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  Add(PacketAction::kDrop, 0.01, absl::ZeroDuration());
  Add(PacketAction::kDuplicate, 0.01, absl::ZeroDuration());
  Add(PacketAction::kCorrupt, 0.005, absl::ZeroDuration());
  Add(PacketAction::kDelay, 0.005, absl::Microseconds(30));
  std::mt19937 random(static_cast<uint32_t>(seed_));
  for (Side& side : sides_) {
    for (size_t i = 0; i < kRegionBytes; ++i) {
      side.source.data()[i] = std::byte(random());
    }
  }
  for (uint32_t round = 0; round < 150; ++round) {
    const size_t offset = random() % (kRegionBytes / 2);
    const size_t bytes = random() % (round % 5 == 0 ? 200'000 : 5'000);
    std::fill_n(b().inbox.data(), kRegionBytes, std::byte{0});
    ASSERT_EQ(
        a().path->PutNotify(a().peer_inbox, offset,
                            {a().source.data() + offset, bytes}, round, round),
        PostResult::kPosted);
    ASSERT_EQ(b().path->Get(b().peer_source, offset,
                            {b().local.data() + offset, bytes}, round),
              PostResult::kPosted);
    ASSERT_TRUE(RunUntil(
        [&] {
          return a().puts == round + 1 && b().gets == round + 1 &&
                 b().notes.size() == round + 1;
        },
        absl::Seconds(20)))
        << "round " << round << ": " << a().path->status() << ", "
        << b().path->status();
    ASSERT_EQ(b().notes.back(), round);
    const std::byte* sent = a().source.data() + offset;
    ASSERT_EQ(std::memcmp(b().inbox.data() + offset, sent, bytes), 0) << round;
    ASSERT_EQ(std::memcmp(b().local.data() + offset, sent, bytes), 0) << round;
  }
  uint64_t lost = 0;
  for (int host = 0; host < 2; ++host) {
    lost += fabric_->counters(host).dropped_by_fault +
            fabric_->counters(host).crc_errors;
  }
  EXPECT_GT(lost, 0u);
}

TEST_F(SimPathFaultTest, PeerThatVanishesIsFoundAfterAllRetries) {
  fabric_->Kill(1);
  const absl::Time start = fabric_->Now();
  ASSERT_EQ(
      a().path->PutNotify(a().peer_inbox, 0, {a().source.data(), 100}, 1, 1),
      PostResult::kPosted);
  ASSERT_TRUE(
      RunUntil([&] { return !a().path->status().ok(); }, absl::Seconds(5)));
  EXPECT_EQ(a().path->status().code(), absl::StatusCode::kUnavailable)
      << a().path->status();
  // Seven attempts of 4.096 µs · 2^14.
  const double attempts = absl::FDivDuration(fabric_->Now() - start,
                                             absl::Nanoseconds(4096) * 16384);
  EXPECT_GT(attempts, 6.9);
  EXPECT_LT(attempts, 7.5);
  EXPECT_EQ(a().path->PutNotify(a().peer_inbox, 0, {}, 2, 2),
            PostResult::kBroken);
}

TEST_F(SimPathFaultTest, ShortOutagesOfTheLinkAreOutlived) {
  for (uint32_t round = 0; round < 5; ++round) {
    fabric_->SetLink(1, 0, false);
    ASSERT_EQ(a().path->PutNotify(a().peer_inbox, 0,
                                  {a().source.data(), 50'000}, round, round),
              PostResult::kPosted);
    EXPECT_FALSE(RunUntil([&] { return b().notes.size() > round; },
                          absl::Milliseconds(150)));
    fabric_->SetLink(1, 0, true);
    ASSERT_TRUE(RunUntil([&] { return b().notes.size() == round + 1; },
                         absl::Seconds(2)))
        << a().path->status();
  }
  EXPECT_TRUE(a().path->status().ok());
  EXPECT_TRUE(b().path->status().ok());
}

TEST_F(SimPathFaultTest, LongOutageOfTheLinkEndsThePath) {
  fabric_->SetLink(1, 0, false);
  ASSERT_EQ(a().path->Get(a().peer_source, 0, {a().local.data(), 1000}, 1),
            PostResult::kPosted);
  ASSERT_TRUE(
      RunUntil([&] { return !a().path->status().ok(); }, absl::Seconds(5)));
  EXPECT_EQ(a().path->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a().gets, 0u);
}

TEST_F(SimPathFaultTest, BrokenDeviceEndsItsPaths) {
  ASSERT_EQ(a().path->PutNotify(a().peer_inbox, 0, {a().source.data(), 200'000},
                                1, 1),
            PostResult::kPosted);
  fabric_->RunFor(absl::Microseconds(3));
  fabric_->BreakDevice(0, 0);
  ASSERT_TRUE(
      RunUntil([&] { return !a().path->status().ok(); }, absl::Seconds(5)));
  EXPECT_EQ(a().path->status().code(), absl::StatusCode::kUnavailable)
      << a().path->status();
  EXPECT_EQ(a().path->Get(a().peer_source, 0, {a().local.data(), 1}, 1),
            PostResult::kBroken);
}

TEST(SimPathTest, ADeviceThatStartsFewerReadsThanItAnswersReads) {
  Fabric fabric;
  NicOptions nic;
  nic.max_started_reads = 2;
  for (int host = 0; host < 2; ++host) {
    HostOptions options;
    options.nics = {nic};
    fabric.AddHost(options);
  }
  Process a_process(fabric, 0);
  Process b_process(fabric, 1);
  const auto a = a_process.NewPath();
  const auto b = b_process.NewPath();
  const Region local = *a->CreateRegion(kRegionBytes, Access::kLocal);
  const Region own = *a->CreateRegion(kRegionBytes, Access::kRemoteRead);
  const Region source = *b->CreateRegion(kRegionBytes, Access::kRemoteRead);
  const auto remote = a->Import(*b->Export(source));
  ASSERT_TRUE(remote.ok()) << remote.status();
  ASSERT_TRUE(b->Import(*a->Export(own)).ok());
  std::fill_n(source.data(), kRegionBytes, std::byte{7});
  constexpr size_t kPiece = kRegionBytes / 8;
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_EQ(
        a->Get(*remote, i * kPiece, {local.data() + i * kPiece, kPiece}, i),
        PostResult::kPosted);
  }
  std::array<Completion, 16> out;
  size_t gets = 0;
  const absl::Time deadline = fabric.Now() + absl::Seconds(1);
  while (gets < 8) {
    ASSERT_LT(fabric.Now(), deadline);
    gets += a->Poll(absl::MakeSpan(out));
    ASSERT_TRUE(a->status().ok()) << a->status();
    if (gets < 8) fabric.RunFor(absl::Microseconds(2));
  }
  EXPECT_EQ(std::memcmp(local.data(), source.data(), kRegionBytes), 0);
  EXPECT_TRUE(fabric.violations().empty());
}

}  // namespace
}  // namespace refract::transport::sim
