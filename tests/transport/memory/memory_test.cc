// Arenas and slots: the bookkeeping under the message layer.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "tests/base/random_seed.h"
#include "transport/memory/arena.h"
#include "transport/messages/slots.h"

namespace refract::transport {
namespace {

TEST(RangeAllocatorTest, RandomUseNeverOverlapsAndMergesBack) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr size_t kCapacity = 1 << 16;
  RangeAllocator ranges(kCapacity, 64);
  std::map<size_t, size_t> live;  // offset → bytes asked for
  size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (live.empty() || random() % 2 == 0) {
      const size_t bytes = random() % 5000;
      const auto offset = ranges.Allocate(bytes);
      if (!offset.has_value()) {
        ++refused;
        continue;
      }
      ASSERT_EQ(*offset % 64, 0u);
      ASSERT_LE(*offset + bytes, kCapacity);
      const auto [at, fresh] = live.emplace(*offset, bytes);
      ASSERT_TRUE(fresh);
      if (at != live.begin()) {
        ASSERT_LE(std::prev(at)->first + std::prev(at)->second, *offset);
      }
      if (std::next(at) != live.end()) {
        ASSERT_LE(*offset + bytes, std::next(at)->first);
      }
    } else {
      auto victim = live.begin();
      std::advance(victim, random() % live.size());
      ranges.Free(victim->first, victim->second);
      live.erase(victim);
    }
  }
  EXPECT_GT(refused, 0u);
  for (const auto& [offset, bytes] : live) ranges.Free(offset, bytes);
  EXPECT_EQ(ranges.used_bytes(), 0u);
  EXPECT_EQ(ranges.Allocate(kCapacity), 0u);
  EXPECT_FALSE(ranges.Allocate(1).has_value());
}

TEST(RangeAllocatorTest, HugeSizesDoNotWrap) {
  RangeAllocator ranges(4096, 64);
  EXPECT_FALSE(ranges.Allocate(~size_t{0}).has_value());
  EXPECT_FALSE(ranges.Allocate(~size_t{0} - 62).has_value());
  EXPECT_FALSE(ranges.Allocate(4097).has_value());
  EXPECT_TRUE(ranges.Allocate(4096).has_value());
}

TEST(ArenaTest, FreeWakesOnlyWhoAsked) {
  auto waker = ThreadWaker::Create();
  ASSERT_TRUE(waker.ok());
  auto memory = Mapping::Anonymous(8192);
  ASSERT_TRUE(memory.ok());
  auto arena = std::make_shared<Arena>(Region{0, *memory}, 4096, 4096, *waker);
  std::optional<ArenaBlock> all = arena->Allocate(4096);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->offset(), 4096u);
  EXPECT_EQ(all->data(), (*memory)->data() + 4096);
  EXPECT_FALSE(arena->Allocate(1).has_value());
  all->Reset();
  EXPECT_TRUE((*waker)->Arm()) << "nobody asked";
  (*waker)->Disarm();
  all = arena->Allocate(4096);
  EXPECT_FALSE(arena->AllocateOrNotify(1).has_value());
  all->Reset();
  EXPECT_FALSE((*waker)->Arm()) << "asked";
  EXPECT_EQ(arena->used_bytes(), 0u);
}

// The arena keeps the block freed last; it is memory for every length.
TEST(ArenaTest, FreedBlockServesAnyLength) {
  auto waker = ThreadWaker::Create();
  ASSERT_TRUE(waker.ok());
  auto memory = Mapping::Anonymous(4096);
  ASSERT_TRUE(memory.ok());
  Arena arena(Region{0, *memory}, 0, 4096, *waker);
  std::optional<ArenaBlock> first = arena.Allocate(1024);
  std::optional<ArenaBlock> second = arena.Allocate(1000);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(arena.used_bytes(), 2048u);
  second->Reset();
  EXPECT_EQ(arena.used_bytes(), 1024u);
  second = arena.Allocate(1023);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->offset(), 1024u) << "the same again";
  first->Reset();
  second->Reset();
  EXPECT_EQ(arena.used_bytes(), 0u);
  for (const size_t bytes : {size_t{4096}, size_t{64}, size_t{4096}}) {
    EXPECT_TRUE(arena.Allocate(bytes).has_value()) << bytes;
    EXPECT_TRUE(arena.AllocateOrNotify(bytes).has_value()) << bytes;
  }
  EXPECT_EQ(arena.used_bytes(), 0u);
  // A freed block does not split the free memory: two halves fit.
  first = arena.Allocate(64);
  first->Reset();
  first = arena.Allocate(2048);
  second = arena.Allocate(2048);
  EXPECT_TRUE(first.has_value() && second.has_value());
}

// A block is freed while another thread finds the arena full: that thread gets
// the block or is woken.
TEST(ArenaTest, FreeThatMeetsAFullArenaWakes) {
  auto waker = ThreadWaker::Create();
  ASSERT_TRUE(waker.ok());
  auto memory = Mapping::Anonymous(64);
  ASSERT_TRUE(memory.ok());
  Arena arena(Region{0, *memory}, 0, 64, *waker);
  constexpr int kTurns = 2'000;
  std::optional<ArenaBlock> lent = arena.Allocate(64);
  std::atomic<int> turns = 0;  // of `lent`: even numbers are the other thread's
  std::thread other([&] {
    for (int turn = 0; turn < 2 * kTurns; turn += 2) {
      while (turns != turn) std::this_thread::yield();
      ++turns;
      lent->Reset();
    }
  });
  for (int turn = 1; turn < 2 * kTurns; turn += 2) {
    while (turns != turn) std::this_thread::yield();
    std::optional<ArenaBlock> mine = arena.AllocateOrNotify(64);
    while (!mine.has_value()) {
      if ((*waker)->Arm()) {
        pollfd fd = {(*waker)->fd(), POLLIN, 0};
        const bool woken = poll(&fd, 1, 10'000) == 1;
        (*waker)->Disarm();
        if (!woken) {
          ADD_FAILURE() << "not woken in turn " << turn;
          std::abort();  // the other thread waits
        }
      }
      mine = arena.AllocateOrNotify(64);
    }
    lent = std::move(mine);
    ++turns;
  }
  other.join();
}

TEST(SlotsTest, GrantsFollowCreditsInAnyOrder) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  SendSlots sender(8);
  ReceiveSlots receiver(8);
  std::vector<uint16_t> filled;
  std::vector<SlotGrant> credits;
  // Generations wrap after 65536 uses of one slot.
  for (int i = 0; i < 2'000'000; ++i) {
    switch (random() % 3) {
      case 0: {
        const auto grant = sender.Take();
        ASSERT_EQ(grant.has_value(), filled.size() + credits.size() < 8);
        if (!grant.has_value()) break;
        ASSERT_TRUE(receiver.Fill(*grant).ok());
        // The same grant is good once.
        ASSERT_FALSE(receiver.Fill(*grant).ok());
        filled.push_back(grant->slot);
        break;
      }
      case 1: {
        if (filled.empty()) break;
        const size_t at = random() % filled.size();
        credits.push_back(receiver.Release(filled[at]));
        filled[at] = filled.back();
        filled.pop_back();
        break;
      }
      default: {
        if (credits.empty()) break;
        const size_t at = random() % credits.size();
        const SlotGrant credit = credits[at];
        credits[at] = credits.back();
        credits.pop_back();
        ASSERT_TRUE(sender.Credit(credit).ok());
        // A repeated credit is recognised.
        ASSERT_FALSE(sender.Credit(credit).ok());
        receiver.Credited(credit.slot);
      }
    }
    // Nothing is on its way here, so the receiver knows the next slot.
    ASSERT_EQ(receiver.Expected(), sender.next());
  }
}

// A sender that takes slots out of order makes the receiver guess wrong, which
// does no harm.
TEST(SlotsTest, SlotsFilledOutOfOrderAreNotExpected) {
  ReceiveSlots receiver(3);
  EXPECT_EQ(receiver.Expected(), 0);
  ASSERT_TRUE(receiver.Fill({1, 0}).ok());
  EXPECT_EQ(receiver.Expected(), 0);
  ASSERT_TRUE(receiver.Fill({0, 0}).ok());
  EXPECT_EQ(receiver.Expected(), 2);
  ASSERT_TRUE(receiver.Fill({2, 0}).ok());
  EXPECT_EQ(receiver.Expected(), std::nullopt);
  receiver.Release(1);
  EXPECT_EQ(receiver.Expected(), std::nullopt) << "not credited yet";
  for (int repeat = 0; repeat < 2; ++repeat) receiver.Credited(1);
  EXPECT_EQ(receiver.Expected(), 1);
}

TEST(SlotsTest, ForgedNumbersAreRefused) {
  SendSlots sender(4);
  ReceiveSlots receiver(4);
  EXPECT_FALSE(receiver.Fill({4, 0}).ok());
  EXPECT_FALSE(receiver.Fill({0, 1}).ok());
  EXPECT_FALSE(receiver.Fill({0, 0xffff}).ok());
  EXPECT_FALSE(sender.Credit({0, 1}).ok()) << "not in use";
  EXPECT_FALSE(sender.Credit({4, 1}).ok());
  const auto grant = sender.Take();
  ASSERT_TRUE(grant.has_value());
  EXPECT_FALSE(sender.Credit({grant->slot, 0}).ok());
  EXPECT_FALSE(sender.Credit({grant->slot, 2}).ok());
  EXPECT_TRUE(sender.Credit({grant->slot, 1}).ok());
}

}  // namespace
}  // namespace refract::transport
