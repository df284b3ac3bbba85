// Structures that readers of messages share with the polling thread, used by
// several threads at once.
#include "transport/links/link_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "transport/loop/waker.h"

namespace refract::transport {
namespace {

constexpr int kSlots = 64;

class SlotReturnsTest : public testing::Test {
 protected:
  // Whether Wake() was called since the last time.
  bool Woken() { return waker_->Take(); }

  const std::shared_ptr<ThreadWaker> waker_ = *ThreadWaker::Create();
  SlotReturns returns_{kSlots, waker_};
};

TEST_F(SlotReturnsTest, WakesAtTheThresholdOrForEachSlot) {
  std::vector<uint16_t> out;
  for (uint16_t slot = 0; slot < CreditThreshold(kSlots); ++slot) {
    EXPECT_FALSE(Woken()) << slot;
    returns_.Push(slot);
  }
  EXPECT_TRUE(Woken());
  returns_.Push(kSlots - 1);
  EXPECT_FALSE(Woken()) << "woken already";
  returns_.Drain(&out);
  EXPECT_EQ(out.size(), CreditThreshold(kSlots) + 1);

  returns_.WakeForEach(true);
  returns_.WakeForEach(true);
  returns_.Push(3);
  EXPECT_TRUE(Woken());
  returns_.Drain(&out);
  returns_.Push(3);
  EXPECT_TRUE(Woken()) << "the setting outlives Drain";
  returns_.WakeForEach(false);
  returns_.Push(0);
  EXPECT_FALSE(Woken());
  out.clear();
  returns_.Drain(&out);
  EXPECT_EQ(out, (std::vector<uint16_t>{0, 3}));
  EXPECT_EQ(returns_.size(), 0u);
}

// Readers return slots while the polling thread takes them and hands them out
// again: none is lost, none comes twice, and the polling thread sees what the
// reader wrote before.
TEST_F(SlotReturnsTest, EveryReturnedSlotIsTakenOnce) {
  constexpr int kReaders = 3;
  constexpr int kUses = 20'000;
  constexpr int kNone = -1;
  std::vector<std::atomic<int>> hand(kReaders);  // the slot for each reader
  std::vector<int> notes(kSlots);  // belongs to whom the slot belongs
  for (std::atomic<int>& slot : hand) slot = kNone;
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (std::atomic<int>& mine : hand) {
    readers.emplace_back([&] {
      while (!stop) {
        const int slot = mine.exchange(kNone);
        if (slot == kNone) {
          std::this_thread::yield();
          continue;
        }
        ++notes[slot];
        returns_.Push(static_cast<uint16_t>(slot));
      }
    });
  }
  std::vector<uint16_t> free;
  for (uint16_t slot = 0; slot < kSlots; ++slot) free.push_back(slot);
  std::vector<bool> lent(kSlots);
  std::vector<int> uses(kSlots);
  std::vector<uint16_t> out;
  bool twice = false;
  for (int given = 0; given < kUses || free.size() < kSlots;) {
    for (std::atomic<int>& slot : hand) {
      if (given >= kUses || free.empty() || slot != kNone) continue;
      ++given;
      lent[free.back()] = true;
      ++uses[free.back()];
      slot = free.back();
      free.pop_back();
    }
    out.clear();
    returns_.Drain(&out);
    for (const uint16_t slot : out) {
      twice |= !lent[slot] || notes[slot] != uses[slot];
      lent[slot] = false;
      free.push_back(slot);
    }
    if (out.empty()) std::this_thread::yield();
    if (twice) break;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(twice);
}

TEST(FreeListTest, AnObjectIsInOneHandAtATime) {
  constexpr int kThreads = 3;
  struct Object {
    std::atomic<int> owners = 0;
    int uses = 0;  // of whichever thread has the object
  };
  FreeList<Object> list;
  std::atomic<bool> shared = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int use = 0; use < 20'000; ++use) {
        std::unique_ptr<Object> a = list.Take();
        std::unique_ptr<Object> b = use % 3 == 0 ? list.Take() : nullptr;
        for (Object* const object : {a.get(), b.get()}) {
          if (object == nullptr) continue;
          if (object->owners.fetch_add(1) != 0) shared = true;
          ++object->uses;
          object->owners.fetch_sub(1);
        }
        list.Give(std::move(a));
        if (b != nullptr) list.Give(std::move(b));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared);
  // All objects are in the list again, each once.
  int uses = 0;
  std::vector<std::unique_ptr<Object>> all;
  while (true) {
    std::unique_ptr<Object> object = list.Take();
    if (object->uses == 0) break;  // a new object
    uses += object->uses;
    all.push_back(std::move(object));
  }
  EXPECT_LE(all.size(), 2u * kThreads);
  EXPECT_EQ(uses, kThreads * (20'000 + (20'000 + 2) / 3));
}

}  // namespace
}  // namespace refract::transport
