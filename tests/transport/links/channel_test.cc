// Promises to nodes that hold over every path: see transport/links/channel.h.
#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/ascii.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

TEST_P(ChannelTest, EchoesRandomTensors) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(client_->state().path,
            absl::AsciiStrToLower(PathParamName({GetParam(), /*an_index=*/0})));
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < 300; ++i) {
    // Small, around the eager limit, and several pull chunks.
    const size_t size = i % 50 == 0  ? 3 << 20
                        : i % 3 == 0 ? 200 << 10
                                     : 8 << 10;
    const std::vector<base::TensorSpec> specs = RandomSpecs(random, size);
    const std::vector<std::string> contents = Contents(seed + i, specs);
    absl::StatusOr<OutgoingMessage> request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_EQ(request->num_tensors(), specs.size());
    Fill(*request, contents);
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    absl::StatusOr<IncomingMessage>& response = call.Await();
    ASSERT_TRUE(response.ok()) << response.status();
    ASSERT_NO_FATAL_FAILURE(
        ExpectTensors(response->tensors(), specs, contents));
    for (const std::string& tensor : contents) bytes += tensor.size();
  }
  const ClientState state = client_->state();
  EXPECT_EQ(state.messages_sent, 300u);
  EXPECT_EQ(state.bytes_sent, state.bytes_received);
  EXPECT_GT(state.bytes_sent, bytes);
  EXPECT_EQ(state.in_flight, 0);
}

TEST_P(ChannelTest, TheServerIsToldWhatARequestIsCalled) {
  absl::Mutex mu;
  std::vector<std::string> told;
  FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
    {
      absl::MutexLock lock(&mu);
      told.emplace_back(call->request_id());
    }
    Echo(std::move(call));
  });
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  const std::string longest(64, 'x');
  std::vector<std::string> expected;
  // In a slot, and pulled.
  for (const int64_t count : {3, 100'000}) {
    for (const std::string& id : {std::string(), std::string("a\0b\n\xff", 5),
                                  longest, longest + "y"}) {
      const std::vector<base::TensorSpec> specs = Floats(count);
      const std::vector<std::string> contents = Contents(7, specs);
      absl::StatusOr<OutgoingMessage> request = client_->Allocate(0, specs, id);
      ASSERT_TRUE(request.ok()) << request.status();
      Fill(*request, contents);
      Call call;
      client_->Send(*std::move(request), absl::InfiniteFuture(),
                    call.callback());
      ASSERT_TRUE(call.Await().ok()) << call.Await().status();
      ExpectTensors(call.Await()->tensors(), specs, contents);
      expected.push_back(id.substr(0, 64));
    }
  }
  absl::MutexLock lock(&mu);
  EXPECT_EQ(told, expected);
}

TEST_P(ChannelTest, ManyTensorsAndLongestMessage) {
  client_options_.limits.max_message_bytes = 8 << 20;
  server_options_.limits.max_message_bytes = 9 << 20;
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  std::vector<base::TensorSpec> specs(256, {base::DType::kInt8, {1, 1, 3}});
  // Up to the last byte: header, table, and 255 tensors of 64 B before it.
  const size_t before = (64 + 256 * 48 + 63) / 64 * 64 + 255 * 64;
  specs.back().dims = {(8 << 20) - static_cast<int64_t>(before), 1, 1};
  const std::vector<std::string> contents = Contents(7, specs);
  absl::StatusOr<OutgoingMessage> request = client_->Allocate(0, specs);
  ASSERT_TRUE(request.ok()) << request.status();
  Fill(*request, contents);
  Call call;
  client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  ASSERT_TRUE(call.Await().ok()) << call.Await().status();
  ExpectTensors(call.Await()->tensors(), specs, contents);
  EXPECT_EQ(client_->state().bytes_sent, 8u << 20);

  specs.back().dims[0] += 1;
  EXPECT_EQ(client_->Allocate(0, specs).status().code(),
            absl::StatusCode::kOutOfRange);
  specs.back().dims[0] = 1;
  specs.push_back({base::DType::kInt8, {1}});
  EXPECT_EQ(client_->Allocate(0, specs).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The gaps between tensors go over the wire as well: nothing of an earlier
// message may be read from them.
TEST_P(ChannelTest, GapsOfMessagesHoldNoEarlierBytes) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  constexpr size_t kBytes = 32 << 10;
  const base::TensorSpec whole = {base::DType::kInt8, {kBytes}};
  const base::TensorSpec odd = {base::DType::kInt8, {65}};
  const std::byte* earlier = nullptr;
  {
    auto message = client_->Allocate(0, {whole});
    ASSERT_TRUE(message.ok()) << message.status();
    earlier = message->data(0);
    std::memset(message->data(0), 0xab, kBytes);
  }  // gives the memory back
  auto message = client_->Allocate(0, {odd, odd, odd});
  ASSERT_TRUE(message.ok()) << message.status();
  int gaps = 0;
  for (size_t i = 0; i < 2; ++i) {
    const std::byte* const end = message->data(i) + 65;
    ASSERT_GE(end, earlier) << "memory of another message";
    ASSERT_LT(message->data(i + 1), earlier + kBytes);
    for (const std::byte* at = end; at < message->data(i + 1); ++at, ++gaps) {
      ASSERT_EQ(*at, std::byte{0}) << "after tensor " << i;
    }
  }
  EXPECT_EQ(gaps, 2 * 63);
}

TEST_P(ChannelTest, ConcurrentSendersGetTheirOwnAnswers) {
  client_options_.limits.max_in_flight = 8;
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::atomic<int> exhausted = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (uint32_t i = 0; i < 200; ++i) {
        const auto specs = RandomSpecs(random, i % 20 == 0 ? 400 << 10 : 4096);
        const auto contents = Contents(random(), specs);
        absl::StatusOr<OutgoingMessage> request = client_->Allocate(0, specs);
        while (absl::IsResourceExhausted(request.status())) {
          ++exhausted;
          std::this_thread::yield();
          request = client_->Allocate(0, specs);
        }
        ASSERT_TRUE(request.ok()) << request.status();
        Fill(*request, contents);
        Call call;
        client_->Send(*std::move(request), absl::InfiniteFuture(),
                      call.callback());
        ASSERT_TRUE(call.Await().ok()) << call.Await().status();
        ExpectTensors(call.Await()->tensors(), specs, contents);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client_->state().messages_sent, 800u);
}

TEST_P(ChannelTest, TooManyInFlightAreRefusedAndComeBack) {
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  });
  client_options_.limits.max_in_flight = 4;
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  std::vector<Call> calls(4);
  for (Call& call : calls) {
    auto request = client_->Allocate(0, Floats(3));
    ASSERT_TRUE(request.ok()) << request.status();
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  EXPECT_EQ(client_->Allocate(0, Floats(3)).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return held.size() == 4;
  }));
  EXPECT_EQ(client_->state().in_flight, 4);
  {
    absl::MutexLock lock(&mu);
    held[2]->Fail(absl::NotFoundError("nothing here"));
    held.clear();
  }
  int dropped = 0;
  for (Call& call : calls) {
    const absl::Status status = call.Await().status();
    if (absl::IsInternal(status)) {
      ++dropped;
      EXPECT_EQ(status.message(), "the request was dropped without an answer");
    } else {
      EXPECT_EQ(status, absl::NotFoundError("nothing here"));
    }
  }
  EXPECT_EQ(dropped, 3);
  EXPECT_TRUE(client_->Allocate(0, Floats(3)).ok());
}

TEST_P(ChannelTest, UnsentMessagesGiveTheirMemoryBack) {
  client_options_.limits.max_message_bytes = 1 << 20;
  // 2 MiB in either case: see Limits.
  client_options_.limits.source_arena_bytes =
      GetParam() == PathPreference::kVerbs ? 8 << 20 : 2 << 20;
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(client_->Allocate(0, Floats(200'000)).ok());
  }
  auto a = client_->Allocate(0, Floats(250'000));
  auto b = client_->Allocate(0, Floats(250'000));
  ASSERT_TRUE(a.ok() && b.ok());
  const absl::Status full = client_->Allocate(0, Floats(250'000)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
}

TEST_P(ChannelTest, PullsWaitForTheReceiversMemory) {
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  });
  server_options_.limits.max_message_bytes = 1 << 20;
  server_options_.limits.source_arena_bytes = 2 << 20;
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  std::vector<Call> calls(6);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::vector<base::TensorSpec> specs = Floats(200'000);
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(static_cast<uint32_t>(i), specs));
    client_->Send(*std::move(request), absl::InfiniteFuture(),
                  calls[i].callback());
  }
  // Two fit; each one that is answered lets the next in, in order.
  for (size_t i = 0; i < calls.size(); ++i) {
    std::unique_ptr<ServerCall> call;
    ASSERT_TRUE(Eventually([&] {
      absl::MutexLock lock(&mu);
      return !held.empty();
    }));
    {
      absl::MutexLock lock(&mu);
      EXPECT_LE(held.size(), 2u);
      call = std::move(held.front());
      held.erase(held.begin());
    }
    ExpectTensors(call->tensors(), Floats(200'000),
                  Contents(static_cast<uint32_t>(i), Floats(200'000)));
    // Short: memory of a long answer is free only some time after it came.
    auto answer = call->AllocateReply(Floats(1));
    ASSERT_TRUE(answer.ok()) << answer.status();
    Fill(*answer, Contents(static_cast<uint32_t>(i), Floats(1)));
    call->Reply(*std::move(answer));
    call.reset();
    ASSERT_TRUE(calls[i].Await().ok()) << calls[i].Await().status();
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ChannelTest,
                         testing::ValuesIn(PathsUnderTest()), PathParamName);

}  // namespace
}  // namespace refract::transport
