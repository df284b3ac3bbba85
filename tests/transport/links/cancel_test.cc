// Requests that their callers give up, over every path: the server hears of it,
// and nothing is in use for them afterwards.
#include <stop_token>

#include "tests/transport/testing/cancel_storm.h"

namespace refract::transport {
namespace {

constexpr int64_t kShort = 10;
constexpr int64_t kPulled = 200'000;  // floats

class CancelTest : public ChannelTest {
 protected:
  // Room at the server for one pulled message, and for its answer.
  void Start(size_t server_arena = size_t{1} << 20) {
    for (Limits* limits : {&server_options_.limits, &client_options_.limits}) {
      limits->max_message_bytes = size_t{1} << 20;
      limits->max_in_flight = 16;
    }
    // Tests wait for events instead of times, because machines may be busy.
    server_options_.liveness_timeout = absl::Hours(2);
    client_options_.liveness_timeout = absl::Hours(2);
    server_options_.limits.source_arena_bytes = server_arena;
    client_options_.limits.source_arena_bytes = size_t{4} << 20;
    ASSERT_NO_FATAL_FAILURE(StartServer(&keeping_));
    ASSERT_NO_FATAL_FAILURE(StartClient());
    ASSERT_TRUE(AwaitConnected());
  }
  void Send(Call& call, int64_t floats, std::stop_token cancel) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kFloat32, {floats}}};
    absl::StatusOr<OutgoingMessage> request = absl::UnknownError("none");
    // Memory of a cancelled request is free again after the server released it.
    ASSERT_TRUE(Eventually([&] {
      request = client_->Allocate(0, specs);
      return request.ok();
    })) << request.status();
    Fill(*request, Contents(5, specs));
    client_->Send(*std::move(request), absl::InfiniteFuture(),
                  std::move(cancel), call.callback());
  }
  void ExpectServes() {
    for (const int64_t floats : {kShort, kPulled}) {
      Call call;
      ASSERT_NO_FATAL_FAILURE(Send(call, floats, {}));
      std::mt19937 random(1);
      // Some that were given up may still come.
      EXPECT_TRUE(Eventually([&] {
        while (auto there = keeping_.Pop(random)) Echo(std::move(there));
        return call.done();
      }));
      EXPECT_TRUE(call.Await().ok()) << call.Await().status();
    }
    EXPECT_EQ(client_->state().in_flight, 0);
    EXPECT_EQ(client_->state().losses, 0u);
    EXPECT_EQ(server_->stats().violations, 0u);
  }

  KeepingHandler keeping_;
};

TEST_P(CancelTest, OneThatIsAtTheServerBecomesAbandoned) {
  ASSERT_NO_FATAL_FAILURE(Start());
  int told = 0;
  for (const int64_t floats : {kShort, kPulled}) {
    std::stop_source cancel;
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, floats, cancel.get_token()));
    auto there = keeping_.Await();
    ASSERT_NE(there, nullptr);
    EXPECT_FALSE(there->abandoned());
    cancel.request_stop();
    EXPECT_TRUE(absl::IsCancelled(call.Await().status()))
        << call.Await().status();
    ++told;
    EXPECT_TRUE(Eventually([&] { return keeping_.abandoned == told; }));
    EXPECT_TRUE(there->abandoned());
    // Like a call whose execution had begun; its answer is dropped.
    Echo(std::move(there));
  }
  EXPECT_EQ(keeping_.withdrawn, 0);
  ExpectServes();
}

TEST_P(CancelTest, OneThatIsNotPulledYetIsWithdrawn) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Call first;
  ASSERT_NO_FATAL_FAILURE(Send(first, kPulled, {}));
  auto there = keeping_.Await();
  ASSERT_NE(there, nullptr);
  // More than the client has slots, tokens or memory for at a time.
  for (int i = 0; i < 40; ++i) {
    std::stop_source cancel;
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, kPulled, cancel.get_token()));
    EXPECT_TRUE(Eventually([&] { return keeping_.announced == i + 2; }));
    cancel.request_stop();
    EXPECT_TRUE(absl::IsCancelled(call.Await().status()))
        << call.Await().status();
    EXPECT_TRUE(Eventually([&] { return keeping_.withdrawn == i + 1; }));
  }
  EXPECT_EQ(keeping_.size(), 0u);
  EXPECT_EQ(keeping_.abandoned, 0);
  Echo(std::move(there));
  EXPECT_TRUE(first.Await().ok()) << first.Await().status();
  ExpectServes();
}

TEST_P(CancelTest, OneThatIsGivenUpBeforeItIsSentNeverLeaves) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::stop_source cancel;
  cancel.request_stop();
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, kShort, cancel.get_token()));
  EXPECT_TRUE(absl::IsCancelled(call.Await().status()));
  EXPECT_EQ(client_->state().messages_sent, 0u);
  ExpectServes();
  EXPECT_EQ(keeping_.abandoned + keeping_.withdrawn, 0);
}

TEST_P(CancelTest, AfterTheAnswerItMeansNothing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::stop_source cancel;
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, kShort, cancel.get_token()));
  auto there = keeping_.Await();
  ASSERT_NE(there, nullptr);
  Echo(std::move(there));
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  cancel.request_stop();
  ExpectServes();
  EXPECT_EQ(keeping_.abandoned + keeping_.withdrawn, 0);
}

TEST_P(CancelTest, OneThatOutlivesItsDeadlineBecomesAbandonedToo) {
  base::ManualClock clock(absl::FromUnixSeconds(1000));
  client_options_.clock = &clock;
  client_options_.heartbeat_interval = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<base::TensorSpec> specs = {
      {base::DType::kFloat32, {kShort}}};
  auto request = client_->Allocate(0, specs);
  ASSERT_TRUE(request.ok()) << request.status();
  Call call;
  client_->Send(*std::move(request), clock.Now() + absl::Seconds(1),
                call.callback());
  auto there = keeping_.Await();
  ASSERT_NE(there, nullptr);
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Await().status()));
  EXPECT_TRUE(Eventually([&] { return keeping_.abandoned == 1; }));
  EXPECT_TRUE(there->abandoned());
  // The client reads the clock until it is destroyed.
  client_.reset();
}

TEST_P(CancelTest, ThoseOfAClientThatIsGoneBecomeAbandoned) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Call call;
  std::stop_source cancel;
  ASSERT_NO_FATAL_FAILURE(Send(call, kShort, cancel.get_token()));
  auto there = keeping_.Await();
  ASSERT_NE(there, nullptr);
  client_.reset();
  EXPECT_TRUE(call.done());
  EXPECT_TRUE(Eventually([&] { return keeping_.abandoned == 1; }));
  EXPECT_TRUE(there->abandoned());
  // Its connection is not there any more.
  cancel.request_stop();
}

TEST_P(CancelTest, ManyThatTheServerCannotLetGoOfDoNotEndTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Start(size_t{64} << 20));
  // Far more than may be open there, in slots and pulled.
  for (int i = 0; i < 400; ++i) {
    std::stop_source cancel;
    Call call;
    ASSERT_NO_FATAL_FAILURE(
        Send(call, i % 2 == 0 ? kShort : 20'000, cancel.get_token()));
    if (i % 4 < 2) {
      // Until it is there, or waits for a slot for long.
      const size_t before = keeping_.size();
      for (int k = 0; k < 1000 && keeping_.size() == before; ++k) {
        std::this_thread::yield();
      }
    }
    cancel.request_stop();
    const absl::Status status = call.Await().status();
    EXPECT_TRUE(absl::IsCancelled(status) || absl::IsResourceExhausted(status))
        << status;
  }
  EXPECT_EQ(server_->stats().violations, 0u);
  std::mt19937 random(1);
  while (auto call = keeping_.Pop(random)) Echo(std::move(call));
  ExpectServes();
}

TEST_P(CancelTest, AtAnyMoment) {
  ASSERT_NO_FATAL_FAILURE(Start(size_t{16} << 20));
  CancelStorm(*client_, keeping_, 600);
  EXPECT_EQ(server_->stats().violations, 0u);
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(Paths, CancelTest, testing::ValuesIn(PathsUnderTest()),
                         PathParamName);

}  // namespace
}  // namespace refract::transport
