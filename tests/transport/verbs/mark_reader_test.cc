// Congestion notifications that a device counts reach the polling thread, each
// once.
#include "transport/verbs/mark_reader.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/sim/raw.h"

namespace refract::transport::verbs {
namespace {

// Writes from a fast port to a slow one pile up in the switch, which marks
// them.
class MarkReaderTest : public testing::Test {
 protected:
  MarkReaderTest() {
    sim::FabricOptions options;
    options.mark_above_bytes = 10'000;
    fabric_ = std::make_unique<sim::Fabric>(options);
    sim::NicOptions fast;
    sim::NicOptions slow;
    slow.bits_per_second = 10'000'000'000;
    a_ =
        std::make_unique<sim::End>(*fabric_, sim::AddPlainHost(*fabric_, fast));
    b_ =
        std::make_unique<sim::End>(*fabric_, sim::AddPlainHost(*fabric_, slow));
    sim::Connect(*a_, *b_);
    registry_ = std::make_unique<DeviceRegistry>(
        fabric_->library(1), DeviceContext::Events::kPumped);
    context_ = *registry_->Open("sim0");
  }
  // How many notifications the receiver sent because of it.
  uint64_t Congest() {
    const uint64_t before = fabric_->counters(1).cnps_sent;
    EXPECT_EQ(sim::Post(*a_, *b_, {.bytes = 400'000}), 0);
    fabric_->RunUntilIdle();
    EXPECT_EQ(a_->PollSends().size(), 1u);
    return fabric_->counters(1).cnps_sent - before;
  }
  // The sum of what the reader gives until it has read what is there now.
  uint64_t TakeAll(MarkReader& reader) {
    uint64_t sum = 0;
    // One read may have been under way before; the second is a new one.
    for (int reads = 0; reads < 2;) {
      const bool read = Eventually([&] {
        const std::optional<uint64_t> marks = reader.Take();
        sum += marks.value_or(0);
        return marks.has_value();
      });
      EXPECT_TRUE(read);
      if (!read) return sum;
      ++reads;
    }
    return sum;
  }

  std::unique_ptr<sim::Fabric> fabric_;
  std::unique_ptr<sim::End> a_;
  std::unique_ptr<sim::End> b_;
  std::unique_ptr<DeviceRegistry> registry_;
  std::shared_ptr<DeviceContext> context_;
};

TEST_F(MarkReaderTest, GivesWhatCameSinceItKnowsTheDevice) {
  EXPECT_GT(Congest(), 0u);
  MarkReader reader;
  EXPECT_EQ(reader.Take(), std::nullopt) << "no device yet";
  reader.Add(context_);
  reader.Add(context_);
  EXPECT_EQ(TakeAll(reader), 0u);
  const uint64_t first = Congest();
  ASSERT_GT(first, 0u);
  EXPECT_EQ(TakeAll(reader), first);
  EXPECT_EQ(TakeAll(reader), 0u);
  const uint64_t second = Congest() + Congest();
  EXPECT_EQ(TakeAll(reader), second);
}

TEST_F(MarkReaderTest, KeepsNoDeviceOpen) {
  MarkReader reader;
  reader.Add(context_);
  TakeAll(reader);
  const std::weak_ptr<DeviceContext> closed = context_;
  context_.reset();
  // A read that runs may hold it for a moment.
  EXPECT_TRUE(Eventually([&] { return closed.expired(); }));
  EXPECT_EQ(TakeAll(reader), 0u);
}

}  // namespace
}  // namespace refract::transport::verbs
