// The containers of the hot path against those of the standard library.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "transport/intrusive_heap.h"
#include "transport/ring_queue.h"

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
  const uint32_t seed = std::random_device()();
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
  const uint32_t seed = std::random_device()();
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

}  // namespace
}  // namespace refract::transport
