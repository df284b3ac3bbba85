#ifndef REFRACT_TESTS_TRANSPORT_TESTING_CHANNEL_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_CHANNEL_FIXTURE_H_

// Helpers for tests of the channel: a handler made of a function, waiting for
// conditions, and messages of random tensors that can be checked later.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "transport/links/channel.h"

namespace refract::transport {

// Longest wait for something that must happen; far above any honest delay, also
// under sanitizers on a loaded machine.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Polls, because the awaited state (behind an interface) has no condition
// variable.
inline bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return condition();
}

// Specification of a message: one tensor of `count` floats.
inline std::vector<base::TensorSpec> Floats(int64_t count) {
  return {{base::DType::kFloat32, {count}}};
}

// While it lives, memory files cannot be made larger than a page, so shared
// memory fails in the middle of its set-up.
class NoSharedMemory {
 public:
  NoSharedMemory() {
    std::signal(SIGXFSZ, SIG_IGN);
    PCHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit small = before_;
    small.rlim_cur = 4096;
    PCHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  }
  ~NoSharedMemory() { PCHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0); }

 private:
  rlimit before_;
};

class FunctionHandler : public Handler {
 public:
  using OfferFunction =
      std::function<absl::StatusOr<size_t>(const ModelOffer&)>;
  using RequestFunction = std::function<void(std::unique_ptr<ServerCall>)>;

  explicit FunctionHandler(RequestFunction on_request)
      : on_request_(std::move(on_request)) {}
  FunctionHandler(OfferFunction on_offer, RequestFunction on_request)
      : on_offer_(std::move(on_offer)), on_request_(std::move(on_request)) {}

  absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) override {
    return on_offer_ ? on_offer_(offer) : size_t{0};
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    on_request_(std::move(call));
  }

 private:
  OfferFunction on_offer_;
  RequestFunction on_request_;
};

inline std::vector<base::TensorSpec> SpecsOf(
    absl::Span<const base::TensorView> tensors) {
  std::vector<base::TensorSpec> specs;
  for (const base::TensorView& tensor : tensors) {
    specs.push_back({tensor.dtype, tensor.dims});
  }
  return specs;
}

// Answers with the request's contents.
inline void Echo(std::unique_ptr<ServerCall> call) {
  absl::StatusOr<OutgoingMessage> reply =
      call->AllocateReply(SpecsOf(call->tensors()));
  if (!reply.ok()) return call->Fail(reply.status());
  for (size_t i = 0; i < call->tensors().size(); ++i) {
    const base::TensorView& tensor = call->tensors()[i];
    if (tensor.bytes == 0) continue;
    std::memcpy(reply->data(i), tensor.data, tensor.bytes);
  }
  call->Reply(*std::move(reply));
}

inline size_t BytesOf(const base::TensorSpec& spec) {
  return *base::ByteSize(spec.dtype, spec.dims);
}

// Random shapes, some empty, of about `max_bytes` in all.
inline std::vector<base::TensorSpec> RandomSpecs(std::mt19937& random,
                                                 size_t max_bytes) {
  const auto below = [&](size_t bound) { return random() % bound; };
  std::vector<base::TensorSpec> specs(below(6));
  for (base::TensorSpec& spec : specs) {
    spec.dtype = static_cast<base::DType>(1 + below(base::kNumDTypes - 1));
    const size_t elements =
        below(max_bytes / specs.size() / base::SizeOf(spec.dtype) + 1);
    const size_t rank = below(4);
    if (rank == 0) continue;  // a scalar
    const size_t rows = 1 + below(8);
    for (size_t d = 2; d < rank; ++d) spec.dims.push_back(1);
    if (rank > 1) spec.dims.push_back(static_cast<int64_t>(rows));
    spec.dims.push_back(static_cast<int64_t>(elements / (rank > 1 ? rows : 1)));
  }
  return specs;
}

// The bytes that the tensors of request `seed` must have.
inline std::vector<std::string> Contents(
    uint32_t seed, absl::Span<const base::TensorSpec> specs) {
  std::mt19937 random(seed);
  std::vector<std::string> contents;
  for (const base::TensorSpec& spec : specs) {
    std::string bytes(BytesOf(spec), '\0');
    for (size_t i = 0; i < bytes.size(); i += 4) {
      const uint32_t word = random();
      std::memcpy(bytes.data() + i, &word,
                  std::min<size_t>(4, bytes.size() - i));
    }
    contents.push_back(std::move(bytes));
  }
  return contents;
}

inline void Fill(const OutgoingMessage& message,
                 absl::Span<const std::string> contents) {
  for (size_t i = 0; i < contents.size(); ++i) {
    std::memcpy(message.data(i), contents[i].data(), contents[i].size());
  }
}

inline void ExpectTensors(absl::Span<const base::TensorView> tensors,
                          absl::Span<const base::TensorSpec> specs,
                          absl::Span<const std::string> contents) {
  ASSERT_EQ(tensors.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(tensors[i].dtype, specs[i].dtype) << "tensor " << i;
    EXPECT_EQ(tensors[i].dims, specs[i].dims) << "tensor " << i;
    ASSERT_EQ(tensors[i].bytes, contents[i].size()) << "tensor " << i;
    if (tensors[i].bytes == 0) continue;
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(tensors[i].data) % base::kTensorAlignBytes,
        0u)
        << "tensor " << i;
    EXPECT_TRUE(std::memcmp(tensors[i].data, contents[i].data(),
                            contents[i].size()) == 0)
        << "tensor " << i;
  }
}

// One call from start to end. May be destroyed before its answer, as by a test
// that gave up waiting.
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  // The message ends here, not with the callback on the polling thread.
  ~Call() {
    if (done()) state_->response = absl::UnknownError("gone");
  }
  Client::Callback callback() {
    return [state = state_](absl::StatusOr<IncomingMessage> response) {
      state->response = std::move(response);
      state->done.Notify();
    };
  }
  absl::StatusOr<IncomingMessage>& Await() {
    if (!state_->done.WaitForNotificationWithTimeout(kPatience)) {
      ADD_FAILURE() << "no answer";
      static auto* none = new absl::StatusOr<IncomingMessage>(
          absl::UnknownError("the test gave up"));
      return *none;
    }
    return state_->response;
  }
  bool done() const { return state_->done.HasBeenNotified(); }

 private:
  struct State {
    absl::StatusOr<IncomingMessage> response = absl::UnknownError("none yet");
    absl::Notification done;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Hands everything on but the ends of offers, which come when the handler of a
// test may be gone already.
class HandlerUntilRequests : public Handler {
 public:
  explicit HandlerUntilRequests(Handler* to) : to_(to) {}
  absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) override {
    return to_->OnOffer(offer);
  }
  absl::Status OnAnnounced(const RequestDescriptor& request) override {
    return to_->OnAnnounced(request);
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    to_->OnRequest(std::move(call));
  }
  void OnAbandoned(size_t model) override { to_->OnAbandoned(model); }
  void OnWithdrawn(size_t model) override { to_->OnWithdrawn(model); }

 private:
  Handler* const to_;
};

// A server and a client over one path. Tests may replace either.
class ChannelTest : public testing::TestWithParam<PathPreference> {
 protected:
  void StartServer(Handler* handler, int port = 0) {
    server_options_.host = "127.0.0.1";
    server_options_.port = port;
    server_options_.path = GetParam();
    relays_.push_back(std::make_unique<HandlerUntilRequests>(handler));
    auto server = Server::Create(server_options_, relays_.back().get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // The same with a handler that lives as long as the server.
  void Serve(FunctionHandler::RequestFunction on_request, int port = 0) {
    handler_ = std::make_unique<FunctionHandler>(std::move(on_request));
    StartServer(handler_.get(), port);
  }
  void StartClient(std::function<void()> on_change = nullptr) {
    client_options_.address = "127.0.0.1:" + std::to_string(server_->port());
    client_options_.path = GetParam();
    if (client_options_.models.empty()) {
      client_options_.models.push_back({"model", 1, {1, 2}, {3, 4}});
    }
    client_options_.last_backoff = absl::Milliseconds(200);
    auto client = Client::Create(client_options_, std::move(on_change));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  bool AwaitConnected(bool connected = true) {
    return Eventually([&] { return client_->state().connected == connected; });
  }
  void SetUp() override {
    if (GetParam() != PathPreference::kVerbs) return;
    // Devices pin their memory, and emulated machines have little.
    for (Limits* limits : {&client_options_.limits, &server_options_.limits}) {
      limits->max_message_bytes = size_t{16} << 20;
      limits->source_arena_bytes = size_t{64} << 20;
    }
  }
  void Start(Handler* handler) {
    ASSERT_NO_FATAL_FAILURE(StartServer(handler));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  void Connect() {
    ASSERT_NO_FATAL_FAILURE(StartClient());
    ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  }

  // For tests that move time. Here, because server and client use them to their
  // end; they have nothing in common.
  base::ManualClock client_clock_{absl::FromUnixSeconds(1'000'000)};
  base::ManualClock server_clock_{absl::FromUnixSeconds(50)};
  ServerOptions server_options_;
  ClientOptions client_options_;
  std::unique_ptr<Handler> handler_;
  std::vector<std::unique_ptr<Handler>> relays_;
  // Clients go first: they outlive no server in these tests but survive it.
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

// Shared memory and TCP; verbs instead where tests/rdma_vm runs the program.
inline std::vector<PathPreference> PathsUnderTest() {
  if (std::getenv("REFRACT_RDMA_DEVICES") != nullptr) {
    return {PathPreference::kVerbs};
  }
  return {PathPreference::kShm, PathPreference::kTcp};
}

inline std::string PathParamName(
    const testing::TestParamInfo<PathPreference>& info) {
  switch (info.param) {
    case PathPreference::kShm:
      return "Shm";
    case PathPreference::kVerbs:
      return "Verbs";
    default:
      return "Tcp";
  }
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_CHANNEL_FIXTURE_H_
