#ifndef REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_H_

// Requirements on every DataPath (transport/datapath.h). A back-end instantiates
// the suite with a function that makes a connected pair:
//   INSTANTIATE_TEST_SUITE_P(Tcp, DataPathConformance, testing::Values(&Pair));

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/transport/testing/datapath_conformance_fixture.h"

namespace refract::transport {

TEST_P(DataPathConformance, RegionsAreZeroedAlignedAndPrivateUntilWritten) {
  for (const Region& region : {a().inbox, a().source, a().local}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % 4096, 0u);
    EXPECT_EQ(region.size(), kRegionBytes);
    EXPECT_TRUE(std::all_of(region.data(), region.data() + region.size(),
                            [](std::byte x) { return x == std::byte{0}; }));
  }
}

TEST_P(DataPathConformance, PutNotifyDeliversBytesAndCompletesAtTheSource) {
  std::mt19937 random(1);
  FillRandom(random, a().source.data(), 1000);
  ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, 77,
                                     {a().source.data(), 1000}, 0xdeadbeef, 5),
            PostResult::kPosted);
  ASSERT_TRUE(PollUntil(
      [&] { return !b().end.notes.empty() && !a().end.puts.empty(); }));
  EXPECT_EQ(b().end.notes.front(), 0xdeadbeefu);
  EXPECT_EQ(a().end.puts.front(), 5u);
  EXPECT_EQ(std::memcmp(b().inbox.data() + 77, a().source.data(), 1000), 0);
  // The bytes around the put are unchanged.
  EXPECT_EQ(b().inbox.data()[76], std::byte{0});
  EXPECT_EQ(b().inbox.data()[1077], std::byte{0});
}

TEST_P(DataPathConformance, ZeroLengthNotificationsCarryTheImmediateOnly) {
  ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, 0, {}, 1, 0),
            PostResult::kPosted);
  ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, kRegionBytes, {}, 2, 0),
            PostResult::kPosted);
  ASSERT_TRUE(PollUntil([&] { return b().end.notes.size() == 2; }));
  EXPECT_EQ(b().end.notes, (std::deque<uint32_t>{1, 2}));
}

TEST_P(DataPathConformance, NotificationComesAfterAllEarlierPuts) {
  std::mt19937 random(2);
  constexpr size_t kPiece = 50'000;
  const uint32_t rounds = Repetitions(200);
  for (uint32_t round = 0; round < rounds; ++round) {
    const size_t pieces = 1 + random() % 8;
    FillRandom(random, a().source.data(), pieces * kPiece);
    for (size_t i = 0; i < pieces; ++i) {
      ASSERT_EQ(a().end.path().Put(a().peer_inbox, i * kPiece,
                                   {a().source.data() + i * kPiece, kPiece}, i),
                PostResult::kPosted);
    }
    ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, 0, {}, round, 99),
              PostResult::kPosted);
    while (b().end.notes.empty()) {
      a().end.Poll();
      b().end.Poll();
      ASSERT_TRUE(b().end.path().status().ok()) << b().end.path().status();
    }
    ASSERT_EQ(b().end.notes.front(), round);
    b().end.notes.pop_front();
    ASSERT_EQ(std::memcmp(b().inbox.data(), a().source.data(), pieces * kPiece),
              0)
        << "round " << round;
    // Sources may be written again only now.
    ASSERT_TRUE(PollUntil([&] { return a().end.puts.size() == pieces + 1; }));
    a().end.puts.clear();
  }
}

TEST_P(DataPathConformance, GetFillsTheDestination) {
  std::mt19937 random(3);
  FillRandom(random, b().source.data(), kRegionBytes);
  for (const auto& [offset, bytes] :
       std::vector<std::pair<size_t, size_t>>{{0, 1},
                                              {0, kRegionBytes},
                                              {kRegionBytes - 1, 1},
                                              {kRegionBytes, 0},
                                              {12'345, 262'144}}) {
    std::memset(a().local.data(), 0, kRegionBytes);
    ASSERT_EQ(a().end.path().Get(a().peer_source, offset,
                                 {a().local.data(), bytes}, bytes),
              PostResult::kPosted);
    ASSERT_TRUE(PollUntil([&] { return !a().end.gets.empty(); }));
    EXPECT_EQ(a().end.gets.front(), bytes);
    a().end.gets.clear();
    EXPECT_EQ(std::memcmp(a().local.data(), b().source.data() + offset, bytes),
              0);
    if (bytes < kRegionBytes) {
      EXPECT_EQ(a().local.data()[bytes], std::byte{0});
    }
  }
}

TEST_P(DataPathConformance, GetsAndPutsCrossInBothDirections) {
  std::mt19937 random(4);
  constexpr size_t kBytes = 300'000;
  for (Side* side : {&a(), &b()}) {
    FillRandom(random, side->source.data(), 4 * kBytes);
  }
  for (Side* side : {&a(), &b()}) {
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(
          side->end.path().Get(side->peer_source, i * kBytes,
                               {side->local.data() + i * kBytes, kBytes}, i),
          PostResult::kPosted);
      ASSERT_EQ(
          side->end.path().PutNotify(side->peer_inbox, i * kBytes,
                                     {side->source.data() + i * kBytes, kBytes},
                                     static_cast<uint32_t>(i), i),
          PostResult::kPosted);
    }
  }
  ASSERT_TRUE(PollUntil([&] {
    return a().end.gets.size() == 4 && b().end.gets.size() == 4 &&
           a().end.notes.size() == 4 && b().end.notes.size() == 4;
  }));
  EXPECT_EQ(std::memcmp(a().local.data(), b().source.data(), 4 * kBytes), 0);
  EXPECT_EQ(std::memcmp(b().local.data(), a().source.data(), 4 * kBytes), 0);
  EXPECT_EQ(std::memcmp(a().inbox.data(), b().source.data(), 4 * kBytes), 0);
  EXPECT_EQ(std::memcmp(b().inbox.data(), a().source.data(), 4 * kBytes), 0);
}

TEST_P(DataPathConformance, OutOfBoundsAndForeignMemoryAreRefusedWhenPosted) {
  DataPath& path = a().end.path();
  std::array<std::byte, 64> foreign = {};
  const absl::Span<const std::byte> good(a().source.data(), 64);
  EXPECT_EQ(path.Put(a().peer_inbox, kRegionBytes - 63, good, 0),
            PostResult::kInvalid);
  EXPECT_EQ(path.Put(a().peer_inbox, ~uint64_t{0} - 10, good, 0),
            PostResult::kInvalid);
  EXPECT_EQ(path.PutNotify(a().peer_inbox, kRegionBytes + 1, {}, 0, 0),
            PostResult::kInvalid);
  EXPECT_EQ(path.Put(a().peer_inbox, 0, foreign, 0), PostResult::kInvalid);
  EXPECT_EQ(
      path.Get(a().peer_source, kRegionBytes - 63, {a().local.data(), 64}, 0),
      PostResult::kInvalid);
  EXPECT_EQ(path.Get(a().peer_source, 0, absl::MakeSpan(foreign), 0),
            PostResult::kInvalid);
  // The path still works.
  EXPECT_EQ(path.PutNotify(a().peer_inbox, 0, good, 9, 0), PostResult::kPosted);
  ASSERT_TRUE(PollUntil([&] { return !b().end.notes.empty(); }));
}

TEST_P(DataPathConformance, BadDescriptorsAndLocalRegionsAreRefused) {
  for (const absl::string_view bad : {"", "x", "tcp:", "shm:1:2", "tcp:a:b",
                                      "shm:0:18446744073709551615:2"}) {
    EXPECT_FALSE(a().end.path().Import(bad).ok()) << bad;
  }
  EXPECT_EQ(a().end.path().Export(a().local).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a().end.path().Export(b().inbox).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DataPathConformance, RegionsAreBounded) {
  const size_t limit = a().end.path().limits().max_regions;
  size_t made = 3;
  absl::Status status;
  while (made <= limit) {
    status = a().end.path().CreateRegion(4096, Access::kLocal).status();
    if (!status.ok()) break;
    ++made;
  }
  EXPECT_EQ(made, limit);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(DataPathConformance, OutstandingOperationsAreBoundedAndRecover) {
  const PathLimits limits = a().end.path().limits();
  size_t puts = 0;
  PostResult result = PostResult::kPosted;
  while (result == PostResult::kPosted) {
    result =
        a().end.path().PutNotify(a().peer_inbox, 0, {a().source.data(), 64},
                                 static_cast<uint32_t>(puts), puts);
    if (result == PostResult::kPosted) ++puts;
    ASSERT_LE(puts, limits.max_outstanding_puts);
  }
  EXPECT_EQ(result, PostResult::kFull);
  EXPECT_EQ(puts, limits.max_outstanding_puts);
  size_t gets = 0;
  while ((result = a().end.path().Get(a().peer_source, 0,
                                      {a().local.data(), 64}, gets)) ==
         PostResult::kPosted) {
    ASSERT_LE(++gets, limits.max_outstanding_gets);
  }
  EXPECT_EQ(result, PostResult::kFull);
  ASSERT_TRUE(PollUntil([&] {
    return a().end.puts.size() == puts && a().end.gets.size() == gets &&
           b().end.notes.size() == puts;
  }));
  // In the order posted, none lost.
  for (size_t i = 0; i < puts; ++i) {
    ASSERT_EQ(b().end.notes[i], i);
    ASSERT_EQ(a().end.puts[i], i);
  }
  EXPECT_EQ(a().end.path().PutNotify(a().peer_inbox, 0, {}, 7, 0),
            PostResult::kPosted);
}

// A receiver that takes nothing for long: what cannot be delivered waits, in
// bounded memory, and nothing is lost or reordered.
TEST_P(DataPathConformance, SlowReceiverLosesNothing) {
  constexpr uint32_t kCount = 40'000;
  uint32_t posted = 0;
  bool full = false;
  while (posted < kCount && !full) {
    const PostResult result =
        a().end.path().PutNotify(a().peer_inbox, 0, {}, posted, 0);
    if (result == PostResult::kPosted) {
      ++posted;
    } else {
      ASSERT_EQ(result, PostResult::kFull);
      full = a().end.Poll(256) == 0;
    }
  }
  std::thread sender([&] {
    while (posted < kCount) {
      const PostResult result =
          a().end.path().PutNotify(a().peer_inbox, 0, {}, posted, 0);
      if (result == PostResult::kPosted) {
        ++posted;
        continue;
      }
      ASSERT_EQ(result, PostResult::kFull);
      ASSERT_TRUE(a().end.PollOrSleep(256));
    }
    while (a().end.puts.size() < kCount) {
      ASSERT_TRUE(a().end.PollOrSleep(256));
    }
  });
  uint32_t next = 0;
  bool asleep_too_long = false;
  while (next < kCount && !asleep_too_long) {
    if (b().end.Poll(7) == 0) asleep_too_long = !b().end.Sleep();
    while (!b().end.notes.empty()) {
      EXPECT_EQ(b().end.notes.front(), next++);
      b().end.notes.pop_front();
    }
  }
  EXPECT_FALSE(asleep_too_long);
  sender.join();
}

// Arm, sleep, wake, over and over, with the other side answering from its own
// thread: one lost wake-up and the test stops for good.
TEST_P(DataPathConformance, NoWakeUpIsLost) {
  const uint32_t rounds = Repetitions(20'000);
  std::thread echo([&] {
    for (uint32_t round = 0; round < rounds; ++round) {
      while (b().end.notes.empty()) {
        ASSERT_TRUE(b().end.PollOrSleep()) << round;
      }
      b().end.notes.pop_front();
      b().end.puts.clear();
      ASSERT_EQ(b().end.path().PutNotify(b().peer_inbox, 0, {}, round, 0),
                PostResult::kPosted);
      b().end.Poll();
    }
    // The last answer may still wait in the sender.
    while (b().end.puts.empty()) {
      ASSERT_TRUE(b().end.PollOrSleep());
    }
  });
  std::mt19937 random(5);
  for (uint32_t round = 0; round < rounds; ++round) {
    ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, 0, {}, round, 0),
              PostResult::kPosted);
    // Sleeps at different moments of the exchange.
    for (uint32_t spin = random() % 8; spin > 0; --spin) a().end.Poll();
    while (a().end.notes.empty()) {
      ASSERT_TRUE(a().end.PollOrSleep()) << round;
    }
    ASSERT_EQ(a().end.notes.front(), round);
    a().end.notes.pop_front();
    a().end.puts.clear();
  }
  echo.join();
}

// Slots released in random order, as the message layer does it: no message
// overwrites one that is still held.
TEST_P(DataPathConformance, SlotsReleasedInRandomOrderKeepTheirBytes) {
  const uint32_t messages = Repetitions(100'000);
  constexpr size_t kSlots = 32;
  constexpr size_t kSlotBytes = 256;
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::thread receiver([&] {
    std::mt19937 random(seed);
    struct Held {
      uint32_t slot;
      std::byte value;
    };
    std::vector<Held> held;
    const auto release = [&](size_t index) {
      const Held gone = held[index];
      held[index] = held.back();
      held.pop_back();
      const std::byte* slot = b().inbox.data() + gone.slot * kSlotBytes;
      ASSERT_TRUE(std::all_of(slot, slot + kSlotBytes,
                              [&](std::byte x) { return x == gone.value; }));
      ASSERT_EQ(b().end.path().PutNotify(b().peer_inbox, 0, {}, gone.slot, 0),
                PostResult::kPosted);
    };
    uint32_t received = 0;
    while (received < messages) {
      const size_t count = b().end.Poll();
      b().end.puts.clear();
      while (!b().end.notes.empty()) {
        const uint32_t slot = b().end.notes.front();
        b().end.notes.pop_front();
        held.push_back({slot, b().inbox.data()[slot * kSlotBytes]});
        ++received;
      }
      // Everything may be held, then something must go.
      const bool must = held.size() == kSlots || count == 0;
      if (!held.empty() && (must || random() % 3 == 0)) {
        release(random() % held.size());
      } else if (count == 0) {
        ASSERT_TRUE(b().end.Sleep());
      }
    }
    while (!held.empty()) release(0);
    b().end.Poll();
  });
  std::vector<uint32_t> free;
  for (uint32_t slot = 0; slot < kSlots; ++slot) free.push_back(slot);
  std::vector<bool> put_done(kSlots, true);
  for (uint32_t sent = 0; sent < messages;) {
    bool progress = a().end.Poll() > 0;
    while (!a().end.notes.empty()) {
      free.push_back(a().end.notes.front());
      a().end.notes.pop_front();
    }
    while (!a().end.puts.empty()) {
      put_done[a().end.puts.front()] = true;
      a().end.puts.pop_front();
    }
    if (!free.empty() && put_done[free.back()]) {
      const uint32_t slot = free.back();
      free.pop_back();
      put_done[slot] = false;
      std::byte* source = a().source.data() + slot * kSlotBytes;
      std::memset(source, static_cast<int>(sent & 0xff), kSlotBytes);
      ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, slot * kSlotBytes,
                                         {source, kSlotBytes}, slot, slot),
                PostResult::kPosted);
      ++sent;
      progress = true;
    }
    if (!progress) {
      ASSERT_TRUE(a().end.Sleep());
    }
  }
  // The last ones may still wait in the sender.
  while (std::count(put_done.begin(), put_done.end(), false) > 0) {
    ASSERT_TRUE(a().end.PollOrSleep());
    while (!a().end.puts.empty()) {
      put_done[a().end.puts.front()] = true;
      a().end.puts.pop_front();
    }
  }
  receiver.join();
}

// Many senders, one receiving thread that sleeps on all of them.
TEST_P(DataPathConformance, FanInFromSixteenSenders) {
  constexpr size_t kSenders = 16;
  const uint32_t each = Repetitions(200);
  constexpr size_t kBytes = 20'000;
  std::vector<std::unique_ptr<Connected>> pairs;
  for (size_t i = 0; i < kSenders; ++i) pairs.push_back(Connect());
  std::vector<std::thread> senders;
  for (size_t s = 0; s < kSenders; ++s) {
    senders.emplace_back([&pairs, each, s] {
      Side& from = pairs[s]->a;
      for (uint32_t i = 0; i < each; ++i) {
        std::memset(from.source.data(), static_cast<int>(s * 31 + i) & 0xff,
                    kBytes);
        ASSERT_EQ(from.end.path().PutNotify(from.peer_inbox, 0,
                                            {from.source.data(), kBytes}, i, 0),
                  PostResult::kPosted);
        // The answer says that the receiver has looked.
        while (from.end.notes.empty() || from.end.puts.empty()) {
          ASSERT_TRUE(from.end.PollOrSleep());
        }
        ASSERT_EQ(from.end.notes.front(), i);
        from.end.notes.clear();
        from.end.puts.clear();
      }
    });
  }
  uint32_t left = kSenders * each;
  bool stuck = false;
  while (left > 0 && !stuck) {
    bool any = false;
    std::vector<pollfd> fds;
    for (size_t s = 0; s < kSenders; ++s) {
      Side& to = pairs[s]->b;
      any |= to.end.Poll() > 0;
      while (!to.end.notes.empty()) {
        const uint32_t i = to.end.notes.front();
        to.end.notes.pop_front();
        const auto expected = static_cast<std::byte>((s * 31 + i) & 0xff);
        EXPECT_EQ(to.inbox.data()[0], expected);
        EXPECT_EQ(to.inbox.data()[kBytes - 1], expected);
        EXPECT_EQ(to.end.path().PutNotify(to.peer_inbox, 0, {}, i, 0),
                  PostResult::kPosted);
        --left;
      }
      fds.push_back({to.end.path().fd(), POLLIN, 0});
    }
    if (any) continue;
    bool armed = true;
    for (size_t s = 0; s < kSenders; ++s) {
      armed &= pairs[s]->b.end.path().Arm();
    }
    if (armed)
      stuck = poll(fds.data(), fds.size(), 20'000) != 1 &&
              std::none_of(fds.begin(), fds.end(),
                           [](const pollfd& fd) { return fd.revents; });
  }
  EXPECT_FALSE(stuck);
  // Answers that wait in the senders' queues leave with the next Poll.
  std::atomic<bool> done = false;
  std::thread pump([&] {
    while (!done) {
      for (auto& pair : pairs) pair->b.end.Poll();
      std::this_thread::yield();
    }
  });
  for (std::thread& sender : senders) sender.join();
  done = true;
  pump.join();
}

TEST_P(DataPathConformance, PeerDeathIsSeenAsleepAndKeepsWhatArrived) {
  std::memset(a().source.data(), 0x5a, 1000);
  ASSERT_EQ(a().end.path().PutNotify(a().peer_inbox, 0,
                                     {a().source.data(), 1000}, 3, 1),
            PostResult::kPosted);
  while (a().end.puts.empty()) a().end.Poll();
  a().end.Destroy();
  while (b().end.path().status().ok()) {
    if (b().end.Poll() == 0 && b().end.path().status().ok()) {
      ASSERT_TRUE(b().end.Sleep());
    }
  }
  EXPECT_EQ(b().end.path().status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(b().end.notes, (std::deque<uint32_t>{3}));
  EXPECT_EQ(b().inbox.data()[999], std::byte{0x5a});
  EXPECT_EQ(b().end.path().PutNotify(b().peer_inbox, 0, {}, 0, 0),
            PostResult::kBroken);
  EXPECT_EQ(b().end.path().Get(b().peer_source, 0, {b().local.data(), 1}, 0),
            PostResult::kBroken);
  EXPECT_EQ(b().end.Poll(), 0u);
  EXPECT_FALSE(b().end.path().Arm());
}

TEST_P(DataPathConformance, PeerDeathInTheMiddleOfTransfers) {
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(b().end.path().Get(b().peer_source, 0,
                                 {b().local.data(), kRegionBytes}, i),
              PostResult::kPosted);
    ASSERT_EQ(b().end.path().Put(b().peer_inbox, 0,
                                 {b().source.data(), kRegionBytes}, i),
              PostResult::kPosted);
  }
  b().end.Poll();
  a().end.Poll();
  a().end.Destroy();
  while (b().end.path().status().ok()) {
    if (b().end.Poll() == 0 && b().end.path().status().ok()) {
      ASSERT_TRUE(b().end.Sleep());
    }
  }
  EXPECT_EQ(b().end.path().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LE(b().end.gets.size(), 8u);
  // Memory outlives the path that made it.
  const Region region = b().local;
  b().end.Destroy();
  region.data()[0] = std::byte{1};
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_DATAPATH_CONFORMANCE_H_
