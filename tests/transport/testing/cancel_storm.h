#ifndef REFRACT_TESTS_TRANSPORT_TESTING_CANCEL_STORM_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_CANCEL_STORM_H_

// Requests that are given up at any moment, for tests over every path.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {

// Keeps calls until they are popped, and counts cancellations. Thread-safe.
class KeepingHandler final : public Handler {
 public:
  absl::StatusOr<size_t> OnOffer(const ModelOffer&) override { return kModel; }
  absl::Status OnAnnounced(const RequestDescriptor&) override {
    ++announced;
    return absl::OkStatus();
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    absl::MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  void OnAbandoned(size_t model) override {
    EXPECT_EQ(model, kModel);
    ++abandoned;
  }
  void OnWithdrawn(size_t model) override {
    EXPECT_EQ(model, kModel);
    ++withdrawn;
  }

  size_t size() {
    absl::MutexLock lock(&mu_);
    return calls_.size();
  }
  // Any of them; null when there is none.
  std::unique_ptr<ServerCall> Pop(std::mt19937& random) {
    absl::MutexLock lock(&mu_);
    if (calls_.empty()) return nullptr;
    std::swap(calls_[random() % calls_.size()], calls_.back());
    std::unique_ptr<ServerCall> call = std::move(calls_.back());
    calls_.pop_back();
    return call;
  }
  // The only one, once it is here.
  std::unique_ptr<ServerCall> Await() {
    EXPECT_TRUE(Eventually([&] { return size() == 1; }));
    std::mt19937 random(1);
    return Pop(random);
  }

  std::atomic<int> announced = 0;
  std::atomic<int> abandoned = 0;
  std::atomic<int> withdrawn = 0;

 private:
  static constexpr size_t kModel = 3;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<ServerCall>> calls_;
};

// Sends short and pulled requests, of which another thread gives up some at any
// time, while a third one answers. Each ends once, rightly or as given up, and
// afterwards everything is free again.
inline void CancelStorm(Client& client, KeepingHandler& handler, int requests) {
  const uint32_t seed = base::RandomSeed();
  struct Sent {
    std::stop_source cancel;
    bool cancelled = false;
    std::vector<base::TensorSpec> specs;
    uint32_t contents = 0;
    std::atomic<int> answers = 0;
    bool right = false;
    absl::Status status;
  };
  std::vector<std::unique_ptr<Sent>> all;
  for (int i = 0; i < requests; ++i) all.push_back(std::make_unique<Sent>());
  std::atomic<int> sent = 0;
  std::atomic<int> ended = 0;
  std::thread canceller([&] {
    std::mt19937 random(seed + 1);
    for (int next = 0; next < requests;) {
      const int until = sent.load();
      if (next == until) std::this_thread::yield();
      for (; next < until; ++next) {
        if (!all[next]->cancelled) continue;
        // Some at once, some when the answer may be on its way.
        if (random() % 2 == 0) {
          while (handler.size() > 4) std::this_thread::yield();
        }
        all[next]->cancel.request_stop();
      }
    }
  });
  std::thread responder([&] {
    std::mt19937 random(seed + 2);
    while (ended.load() < requests) {
      auto call = handler.Pop(random);
      if (call != nullptr &&
          !absl::IsResourceExhausted(
              call->AllocateReply(SpecsOf(call->tensors())).status())) {
        Echo(std::move(call));
        continue;
      }
      // Memory of answers comes back when the client has let go of it.
      if (call != nullptr) handler.OnRequest(std::move(call));
      std::this_thread::yield();
    }
  });
  std::mt19937 random(seed);
  for (int i = 0; i < requests; ++i) {
    Sent& request = *all[i];
    request.cancelled = random() % 2 == 0;
    request.specs = {
        {base::DType::kFloat32, {random() % 4 == 0 ? 60'000 : 100}}};
    request.contents = random();
    absl::StatusOr<OutgoingMessage> message = absl::UnknownError("none");
    const bool allocated = Eventually([&] {
      message = client.Allocate(0, request.specs);
      return message.ok();
    });
    if (!allocated) {
      // Other threads use this frame's variables: the test cannot return.
      std::fprintf(stderr, "no memory for request %d: %s\n", i,
                   message.status().ToString().c_str());
      std::abort();
    }
    Fill(*message, Contents(request.contents, request.specs));
    client.Send(
        *std::move(message), absl::InfiniteFuture(), request.cancel.get_token(),
        [&ended, &request](absl::StatusOr<IncomingMessage> response) {
          request.status = response.status();
          if (response.ok()) {
            const std::string want =
                Contents(request.contents, request.specs)[0];
            const base::TensorView& got = response->tensors()[0];
            request.right = got.bytes == want.size() &&
                            std::memcmp(got.data, want.data(), got.bytes) == 0;
          }
          ++request.answers;
          ++ended;
        });
    ++sent;
  }
  canceller.join();
  if (!Eventually([&] { return ended.load() == requests; })) {
    // Their callbacks use what is here, and come when the client goes.
    std::fprintf(stderr, "%d of %d requests ended\n", ended.load(), requests);
    std::abort();
  }
  responder.join();
  for (const std::unique_ptr<Sent>& request : all) {
    EXPECT_EQ(request->answers, 1);
    if (request->cancelled && absl::IsCancelled(request->status)) continue;
    EXPECT_TRUE(request->status.ok()) << request->status;
    EXPECT_TRUE(request->right);
  }
  EXPECT_EQ(client.state().in_flight, 0);
  EXPECT_EQ(client.state().losses, 0u);
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_CANCEL_STORM_H_
