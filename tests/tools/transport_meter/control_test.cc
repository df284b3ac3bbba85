#include "tools/transport_meter/control.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace refract::transport_meter {
namespace {

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = Control::MakePair();
    ASSERT_TRUE(pair.ok()) << pair.status();
    a_ = std::make_unique<Control>(std::move(pair->first));
    b_ = std::make_unique<Control>(std::move(pair->second));
  }
  std::unique_ptr<Control> a_;
  std::unique_ptr<Control> b_;
};

TEST_F(ControlTest, KeepsMessagesWhole) {
  const std::string binary("\0x\n", 3);
  ASSERT_TRUE(a_->Send("").ok());
  ASSERT_TRUE(a_->Send(binary).ok());
  EXPECT_EQ(*b_->Receive(), "");
  EXPECT_EQ(*b_->Receive(), binary);
  EXPECT_TRUE(absl::IsInvalidArgument(a_->Send(std::string(1 << 20, 'x'))));
}

TEST_F(ControlTest, CarriesStatuses) {
  ASSERT_TRUE(a_->SendStatus(absl::OkStatus()).ok());
  ASSERT_TRUE(a_->SendStatus(absl::NotFoundError("no device")).ok());
  EXPECT_TRUE(b_->ReceiveStatus().ok());
  EXPECT_EQ(b_->ReceiveStatus(), absl::NotFoundError("no device"));
}

// A side that gives up early must not leave the other one waiting for the rest
// of its messages, nor reading them as those of the next step.
TEST_F(ControlTest, AgreesAgainAfterOneSideGaveUp) {
  ASSERT_TRUE(a_->SendStatus(absl::NotFoundError("no device")).ok());
  EXPECT_EQ(b_->Exchange("descriptor").status(),
            absl::NotFoundError("no device"));
  ASSERT_TRUE(b_->SendStatus(absl::InternalError("so be it")).ok());
  EXPECT_EQ(b_->ReceiveStatus(), absl::NotFoundError("no device"));
  EXPECT_EQ(a_->ReceiveStatus(), absl::InternalError("so be it"));

  ASSERT_TRUE(a_->Send("next step").ok());
  EXPECT_EQ(*b_->Receive(), "next step");
}

TEST_F(ControlTest, TellsThatTheOtherSideIsGone) {
  a_.reset();
  EXPECT_TRUE(absl::IsUnavailable(b_->Receive().status()));
  EXPECT_TRUE(absl::IsUnavailable(b_->ReceiveStatus()));
}

}  // namespace
}  // namespace refract::transport_meter
