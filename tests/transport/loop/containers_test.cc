// The containers of the hot path against those of the standard library.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "transport/loop/intrusive_heap.h"
#include "transport/loop/mailbox.h"
#include "transport/messages/recent_ids.h"
#include "transport/loop/ring_queue.h"
#include "transport/memory/storage_pool.h"

namespace refract::transport {
namespace {

struct Item {
  int key = 0;
  int number = 0;
  HeapSlot slot;
};
struct ItemBefore {
  bool operator()(const Item& a, const Item& b) const {
    return std::pair(a.key, a.number) < std::pair(b.key, b.number);
  }
};

TEST(IntrusiveHeapTest, BehavesAsASortedSet) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<Item> items(100);
  for (int i = 0; i < 100; ++i) items[i].number = i;
  IntrusiveHeap<Item, &Item::slot, ItemBefore> heap;
  std::set<std::pair<int, int>> oracle;
  for (int i = 0; i < 100'000; ++i) {
    Item& item = items[random() % items.size()];
    const std::pair<int, int> before(item.key, item.number);
    ASSERT_EQ(item.slot.in_heap(), oracle.contains(before));
    if (!item.slot.in_heap()) {
      item.key = static_cast<int>(random() % 50);
      heap.Push(&item);
      oracle.emplace(item.key, item.number);
    } else if (random() % 2 == 0) {
      heap.Remove(&item);
      oracle.erase(before);
    } else {
      item.key = static_cast<int>(random() % 50);
      heap.Moved(&item);
      oracle.erase(before);
      oracle.emplace(item.key, item.number);
    }
    ASSERT_EQ(heap.size(), oracle.size());
    if (oracle.empty()) continue;
    ASSERT_EQ(heap.top()->number, oracle.begin()->second);
  }
  while (!oracle.empty()) {
    ASSERT_EQ(heap.Pop()->number, oracle.begin()->second);
    oracle.erase(oracle.begin());
  }
  EXPECT_TRUE(heap.empty());
}

TEST(RingQueueTest, BehavesAsAQueue) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  RingQueue<int> queue;
  std::deque<int> oracle;
  for (int i = 0; i < 200'000; ++i) {
    // Long runs of each, so that it grows and runs empty.
    if (random() % 100 < ((i / 1000) % 2 == 0 ? 60u : 40u)) {
      queue.push_back(i);
      oracle.push_back(i);
    } else if (!oracle.empty()) {
      ASSERT_EQ(queue.front(), oracle.front());
      queue.pop_front();
      oracle.pop_front();
    }
    ASSERT_EQ(queue.size(), oracle.size());
    if (oracle.empty()) continue;
    const size_t at = random() % oracle.size();
    ASSERT_EQ(queue[at], oracle[at]);
  }
}

TEST(RingQueueTest, PoppedValuesAreDropped) {
  RingQueue<std::shared_ptr<int>> queue;
  const auto value = std::make_shared<int>(1);
  for (int i = 0; i < 20; ++i) queue.push_back(value);
  EXPECT_EQ(value.use_count(), 21);
  queue.pop_front();
  EXPECT_EQ(value.use_count(), 20);
  queue.clear();
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_TRUE(queue.empty());
}

TEST(RingQueueTest, ReservedPlacesStay) {
  RingQueue<int> queue;
  queue.Reserve(5);
  queue.push_back(1);
  const int* const first = &queue.front();
  for (int i = 2; i <= 5; ++i) queue.push_back(i);
  EXPECT_EQ(&queue.front(), first) << "it grew";
  // With something in it, and less than there is.
  queue.Reserve(100);
  queue.Reserve(2);
  for (int i = 1; i <= 5; ++i) {
    ASSERT_EQ(queue.front(), i);
    queue.pop_front();
  }
  EXPECT_TRUE(queue.empty());
}

TEST(MailboxTest, ValuesOfManyThreadsComeOnceAndInTheirOrder) {
  constexpr int kThreads = 4;
  constexpr int kValues = 50'000;
  Mailbox<std::pair<int, int>> mailbox(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&mailbox, t] {
      for (int i = 0; i < kValues; ++i) EXPECT_TRUE(mailbox.Push({t, i}));
    });
  }
  std::vector<int> next(kThreads, 0);
  std::vector<std::pair<int, int>> taken;
  for (int count = 0; count < kThreads * kValues;) {
    mailbox.Take(&taken);
    for (const auto& [thread, value] : taken) {
      ASSERT_EQ(value, next[thread]++) << "of thread " << thread;
    }
    count += static_cast<int>(taken.size());
    if (taken.empty()) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  mailbox.Take(&taken);
  EXPECT_TRUE(taken.empty());
}

TEST(MailboxTest, ClosingDropsWhatWaitsAndWhatComes) {
  Mailbox<std::shared_ptr<int>> mailbox(1);
  const auto value = std::make_shared<int>(1);
  EXPECT_TRUE(mailbox.Push(value));
  mailbox.Close();
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_FALSE(mailbox.Push(value));
  EXPECT_EQ(value.use_count(), 1);
  std::vector<std::shared_ptr<int>> taken = {value};
  mailbox.Take(&taken);
  EXPECT_TRUE(taken.empty());
}

// Once both of its vectors have held that many, no more memory is needed.
TEST(MailboxTest, MemoryGoesRound) {
  Mailbox<int> mailbox(0);
  std::vector<int> taken;
  std::set<const int*> places;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 50; ++i) mailbox.Push(i);
    mailbox.Take(&taken);
    ASSERT_EQ(taken.size(), 50u);
    if (round >= 2) places.insert(taken.data());
  }
  EXPECT_LE(places.size(), 2u);
}

TEST(StoragePoolTest, BlocksAreUsedAgain) {
  StoragePool<std::pair<uint64_t, void*>> pool;
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(pool.Take());
  const std::set<void*> first(blocks.begin(), blocks.end());
  ASSERT_EQ(first.size(), blocks.size()) << "two at one place";
  for (void* block : blocks) pool.Give(block);
  std::set<void*> second;
  for (int i = 0; i < 10; ++i) second.insert(pool.Take());
  EXPECT_EQ(second, first);
  for (void* block : second) pool.Give(block);
}

TEST(RecentIdsTest, KnowsTheLatestAndNoOthers) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr size_t kMost = 8;
  RecentIds ids(kMost);
  std::map<uint64_t, size_t> added;  // the how many-th it was
  size_t adds = 0;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t id = random() % 20;
    const auto found = added.find(id);
    const bool there = found != added.end() && adds - found->second <= kMost;
    if (random() % 4 != 0) {
      ids.Add(id);
      if (!there) added[id] = adds++;
      continue;
    }
    ASSERT_EQ(ids.Take(id), there) << i;
    ASSERT_FALSE(ids.Take(id)) << i;
    added.erase(id);
  }
}

}  // namespace
}  // namespace refract::transport
