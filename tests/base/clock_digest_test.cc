#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/digest.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(ManualClockTest, WakesAWaiterWhenItsDeadlinePasses) {
  ManualClock clock;
  absl::Mutex mu;
  bool flag = false;
  bool held = true;
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  std::thread waiter([&] {
    absl::MutexLock lock(&mu);
    held = clock.AwaitWithDeadline(mu, absl::Condition(&flag), deadline);
  });
  clock.Advance(absl::Seconds(10));
  waiter.join();
  EXPECT_FALSE(held);
}

TEST(DigestTest, PiecesEqualTheWholeAndLengthsCount) {
  DigestBuilder whole;
  DigestBuilder pieces;
  const std::string text = "refract";
  whole.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                                text.size()));
  for (const char& c : text) {
    pieces.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&c), 1));
  }
  EXPECT_EQ(whole.Finish(), pieces.Finish());
  EXPECT_EQ(whole.Finish(), DigestOf(text));

  DigestBuilder a;
  a.AddString("ab");
  a.AddString("c");
  DigestBuilder b;
  b.AddString("a");
  b.AddString("bc");
  EXPECT_NE(a.Finish().ToHex(), b.Finish().ToHex());
}

}  // namespace
}  // namespace refract::base
