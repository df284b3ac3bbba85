// Automatic mode: threads that poll, arm and sleep on descriptors, and nobody
// who steps the time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/base/random_seed.h"
#include "tests/transport/sim/raw.h"

namespace refract::transport::sim {
namespace {

using testing::IsEmpty;

FabricOptions Automatic(uint64_t seed) {
  FabricOptions options;
  options.seed = seed;
  options.automatic = true;
  return options;
}

// Takes completions of a queue, asleep while there are none.
class Sleeper {
 public:
  Sleeper(End& end, verbs::CompletionQueue& queue) : end_(end), queue_(queue) {}

  // False: nothing for 20 s, so a wake-up was lost.
  bool Next(ibv_wc& out, std::mt19937_64& random) {
    // Sleeps at different moments of the exchange.
    for (uint64_t spin = random() % 4;; spin = spin > 0 ? spin - 1 : 0) {
      if (queue_.Poll(1, &out) == 1) return true;
      if (spin > 0) continue;
      if (queue_.Arm(false) != 0) return false;
      if (queue_.Poll(1, &out) == 1) return true;
      pollfd fd = {end_.channel->fd(), POLLIN, 0};
      if (poll(&fd, 1, 20'000) != 1) return false;
      end_.channel->TakeEvents();
    }
  }

 private:
  End& end_;
  verbs::CompletionQueue& queue_;
};

TEST(SimAutomaticTest, OneThreadNeedsNobodyToStep) {
  Pair pair(EndOptions(), Automatic(1), NicOptions());
  ASSERT_EQ(Post(pair.a, pair.b,
                 {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 100'000}),
            0);
  std::mt19937_64 random(1);
  ibv_wc wc;
  ASSERT_TRUE(Sleeper(pair.a, *pair.a.send_queue).Next(wc, random));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_TRUE(Sleeper(pair.b, *pair.b.receive_queue).Next(wc, random));
}

TEST(SimAutomaticTest, SpinningIsEnough) {
  Pair pair(EndOptions(), Automatic(1), NicOptions());
  ASSERT_EQ(
      Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_READ, .bytes = 1 << 20}), 0);
  int polls = 0;
  while (pair.a.PollSends().empty()) ++polls;
  // A few events each.
  EXPECT_GT(polls, 10);
}

TEST(SimAutomaticTest, TimersRunOutWhenNothingElseIsLeft) {
  Pair pair(EndOptions(), Automatic(1), NicOptions());
  pair.fabric.Kill(1);
  ASSERT_EQ(Post(pair.a, pair.b, {.bytes = 8}), 0);
  std::mt19937_64 random(1);
  ibv_wc wc;
  ASSERT_TRUE(Sleeper(pair.a, *pair.a.send_queue).Next(wc, random));
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
}

// An endless exchange does not keep the lock from the thread that ends it.
TEST(SimAutomaticTest, EndlessRetriesLetOthersIn) {
  EndOptions options;
  options.receives = 0;
  options.rnr_retries = 7;
  options.rnr_timer = 1;
  Pair pair(options, Automatic(1), NicOptions());
  ASSERT_EQ(Post(pair.a, pair.b, {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM}), 0);
  std::atomic<bool> waiting = false;
  std::thread receiver([&] {
    while (!waiting) std::this_thread::yield();
    EXPECT_EQ(pair.b.PostReceive(0), 0);
  });
  std::mt19937_64 random(1);
  ibv_wc wc;
  waiting = true;
  EXPECT_TRUE(Sleeper(pair.a, *pair.a.send_queue).Next(wc, random));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  receiver.join();
}

// Two threads that answer one another. The last message's acknowledgement is
// waited for asleep, when the other thread has gone.
TEST(SimAutomaticTest, NoWakeUpIsLostBetweenTwoThreads) {
  constexpr uint32_t kRounds = 5000;
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Pair pair(EndOptions(), Automatic(seed), NicOptions());
  const auto play = [&](End& end, End& peer, bool serves) {
    std::mt19937_64 random(seed + serves);
    Sleeper receives(end, *end.receive_queue);
    const auto send = [&](uint32_t round) {
      ASSERT_EQ(Post(end, peer,
                     {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                      .immediate = round,
                      .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}),
                0);
    };
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (serves) send(round);
      ibv_wc wc;
      ASSERT_TRUE(receives.Next(wc, random)) << "round " << round;
      ASSERT_EQ(wc.imm_data, round);
      ASSERT_EQ(end.PostReceive(0), 0);
      if (!serves) send(round);
      end.PollSends();
    }
  };
  std::thread other([&] { play(pair.b, pair.a, false); });
  play(pair.a, pair.b, true);
  other.join();
  EXPECT_THAT(pair.fabric.violations(), IsEmpty());
}

// Many senders that each sleep until their own write is done, one receiver.
TEST(SimAutomaticTest, ThreadsThatEndLeaveNobodyAsleep) {
  constexpr int kSenders = 8;
  constexpr uint32_t kEach = 200;
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Fabric fabric(Automatic(seed));
  const int sink = fabric.AddHost();
  // Time does not wait for a receiver's thread, so there is one receive for
  // each message.
  EndOptions options;
  options.receives = options.receive_capacity = kEach;
  std::vector<std::unique_ptr<End>> sources, sinks;
  for (int i = 0; i < kSenders; ++i) {
    sources.push_back(std::make_unique<End>(fabric, fabric.AddHost()));
    sinks.push_back(std::make_unique<End>(fabric, sink, options));
    Connect(*sources.back(), *sinks.back());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kSenders; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed + i);
      Sleeper sends(*sources[i], *sources[i]->send_queue);
      for (uint32_t n = 0; n < kEach; ++n) {
        ASSERT_EQ(Post(*sources[i], *sinks[i],
                       {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                        .bytes = random() % 20'000,
                        .immediate = n}),
                  0);
        // The last is nobody's business but the receiver's.
        if (n + 1 == kEach) return;
        ibv_wc wc;
        ASSERT_TRUE(sends.Next(wc, random)) << "sender " << i << " " << n;
      }
    });
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed + 100 + i);
      Sleeper receives(*sinks[i], *sinks[i]->receive_queue);
      for (uint32_t n = 0; n < kEach; ++n) {
        ibv_wc wc;
        ASSERT_TRUE(receives.Next(wc, random)) << "receiver " << i << " " << n;
        ASSERT_EQ(wc.imm_data, n);
        ASSERT_EQ(sinks[i]->PostReceive(0), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(fabric.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::transport::sim
