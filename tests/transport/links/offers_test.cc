// Offers that are made and withdrawn while requests are open.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

ModelOffer Version(int64_t version) {
  return {"m", version, {1, static_cast<uint64_t>(version)}, {3, 4}};
}

// Accepts every version but 13, under the number 100 + version, and answers
// with the number.
class CountingHandler : public Handler {
 public:
  absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) override {
    if (offer.version == 13) return absl::NotFoundError("no version 13");
    absl::MutexLock lock(&mu_);
    ++offered_[100 + static_cast<size_t>(offer.version)];
    return 100 + static_cast<size_t>(offer.version);
  }
  void OnOfferEnd(size_t model, bool withdrawn) override {
    absl::MutexLock lock(&mu_);
    --offered_[model];
    (withdrawn ? withdrawn_ : lost_) += 1;
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    const std::vector<base::TensorSpec> specs = {{base::DType::kInt64, {1}}};
    absl::StatusOr<OutgoingMessage> reply = call->AllocateReply(specs);
    if (!reply.ok()) return call->Fail(reply.status());
    *reinterpret_cast<int64_t*>(reply->data(0)) =
        static_cast<int64_t>(call->model());
    call->Reply(*std::move(reply));
  }
  int offered(size_t model) {
    absl::MutexLock lock(&mu_);
    return offered_[model];
  }
  int withdrawn() {
    absl::MutexLock lock(&mu_);
    return withdrawn_;
  }
  int lost() {
    absl::MutexLock lock(&mu_);
    return lost_;
  }

 private:
  absl::Mutex mu_;
  std::map<size_t, int> offered_ ABSL_GUARDED_BY(mu_);
  int withdrawn_ ABSL_GUARDED_BY(mu_) = 0;
  int lost_ ABSL_GUARDED_BY(mu_) = 0;
};

class OffersTest : public ChannelTest {
 protected:
  void StartWith(std::vector<ModelOffer> offers) {
    client_options_.models = std::move(offers);
    ASSERT_NO_FATAL_FAILURE(StartOwnServer(0));
    ASSERT_NO_FATAL_FAILURE(StartClient());
    ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  }
  // Whose handler hears of the ends of offers.
  void StartOwnServer(int port) {
    server_options_.host = "127.0.0.1";
    server_options_.port = port;
    server_options_.path = GetParam();
    auto server = Server::Create(server_options_, &handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
  }
  absl::Status StateOf(size_t model) {
    const ClientState state = client_->state();
    return model < state.models.size() ? state.models[model]
                                       : absl::OutOfRangeError("no such offer");
  }
  bool AwaitReady(size_t model) {
    return Eventually([&] { return StateOf(model).ok(); });
  }
  // The number that the handler knows the model of a request by; -1: it failed.
  int64_t Ask(size_t model) {
    auto request = client_->Allocate(model, Floats(10));
    EXPECT_TRUE(request.ok()) << request.status();
    if (!request.ok()) return -1;
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    EXPECT_TRUE(call.Await().ok()) << call.Await().status();
    if (!call.Await().ok()) return -1;
    return *reinterpret_cast<const int64_t*>(call.Await()->tensors()[0].data);
  }

  CountingHandler handler_;
};

TEST_P(OffersTest, AreMadeWithdrawnAndReplacedDuringAConnection) {
  ASSERT_NO_FATAL_FAILURE(StartWith({Version(1)}));
  EXPECT_EQ(Ask(0), 101);
  ASSERT_TRUE(client_->SetOffer(1, Version(2)).ok());
  ASSERT_TRUE(AwaitReady(1)) << StateOf(1);
  EXPECT_EQ(Ask(1), 102);
  EXPECT_EQ(Ask(0), 101);
  ASSERT_TRUE(client_->SetOffer(0, std::nullopt).ok());
  EXPECT_FALSE(StateOf(0).ok());
  EXPECT_FALSE(client_->Allocate(0, Floats(1)).ok());
  EXPECT_TRUE(Eventually([&] { return handler_.offered(101) == 0; }));
  EXPECT_EQ(handler_.withdrawn(), 1);
  // Its place is used again.
  ASSERT_TRUE(client_->SetOffer(0, Version(3)).ok());
  ASSERT_TRUE(AwaitReady(0)) << StateOf(0);
  EXPECT_EQ(Ask(0), 103);
  EXPECT_EQ(Ask(1), 102);
  client_.reset();
  EXPECT_TRUE(Eventually([&] {
    return handler_.offered(102) == 0 && handler_.offered(103) == 0;
  }));
  EXPECT_EQ(handler_.lost(), 2);
}

TEST_P(OffersTest, RefusalsNameTheReason) {
  ASSERT_NO_FATAL_FAILURE(StartWith({}));
  ASSERT_TRUE(client_->SetOffer(0, Version(13)).ok());
  EXPECT_TRUE(Eventually([&] { return absl::IsNotFound(StateOf(0)); }))
      << StateOf(0);
  EXPECT_TRUE(absl::StrContains(StateOf(0).message(), "no version 13"));
  EXPECT_EQ(client_->SetOffer(2, Version(1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->SetOffer(1, ModelOffer{std::string(200, 'n')}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(OffersTest, AModelThatIsNotReadyBecomesReady) {
  ASSERT_NO_FATAL_FAILURE(StartWith({Version(1)}));
  server_->SetModelStatus(102, absl::UnavailableError("is being loaded"));
  ASSERT_TRUE(client_->SetOffer(1, Version(2)).ok());
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(StateOf(1).message(), "is being loaded");
  })) << StateOf(1);
  server_->SetModelStatus(102, absl::OkStatus());
  ASSERT_TRUE(AwaitReady(1)) << StateOf(1);
  // The hello of a new connection says the same of models that are not ready.
  server_->SetModelStatus(101, absl::UnavailableError("is gone for a while"));
  client_.reset();
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected());
  EXPECT_TRUE(absl::StrContains(StateOf(0).message(), "gone for a while"))
      << StateOf(0);
  server_->SetModelStatus(101, absl::OkStatus());
  ASSERT_TRUE(AwaitReady(0)) << StateOf(0);
  EXPECT_EQ(Ask(0), 101);
}

TEST_P(OffersTest, AreMadeAgainByLaterConnections) {
  ASSERT_NO_FATAL_FAILURE(StartWith({Version(1)}));
  ASSERT_TRUE(client_->SetOffer(1, Version(2)).ok());
  ASSERT_TRUE(client_->SetOffer(0, std::nullopt).ok());
  ASSERT_TRUE(AwaitReady(1)) << StateOf(1);
  const int port = server_->port();
  server_.reset();
  ASSERT_TRUE(AwaitConnected(false));
  // Changes without a connection are in the next hello.
  ASSERT_TRUE(client_->SetOffer(2, Version(5)).ok());
  ASSERT_NO_FATAL_FAILURE(StartOwnServer(port));
  ASSERT_TRUE(AwaitReady(1)) << StateOf(1);
  ASSERT_TRUE(AwaitReady(2)) << StateOf(2);
  EXPECT_FALSE(StateOf(0).ok());
  EXPECT_EQ(Ask(1), 102);
  EXPECT_EQ(Ask(2), 105);
}

TEST_P(OffersTest, ThousandChangesLeaveOneOffer) {
  ASSERT_NO_FATAL_FAILURE(StartWith({Version(1)}));
  for (int64_t version = 20; version < 1020; ++version) {
    const size_t place = version % 2;
    ASSERT_TRUE(client_->SetOffer(place, Version(version)).ok());
    if (version % 50 != 0) continue;
    ASSERT_TRUE(AwaitReady(place)) << StateOf(place);
    EXPECT_EQ(Ask(place), 100 + version);
  }
  ASSERT_TRUE(client_->SetOffer(0, std::nullopt).ok());
  ASSERT_TRUE(AwaitReady(1));
  EXPECT_EQ(Ask(1), 1119);
  int open = 0;
  EXPECT_TRUE(Eventually([&] {
    open = 0;
    for (size_t model = 100; model < 1200; ++model) {
      open += handler_.offered(model);
    }
    return open == 1;
  })) << open;
  EXPECT_EQ(server_->stats().violations, 0u);
}

INSTANTIATE_TEST_SUITE_P(Paths, OffersTest, testing::ValuesIn(PathsUnderTest()),
                         PathParamName);

}  // namespace
}  // namespace refract::transport
