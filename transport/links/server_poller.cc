#include "transport/links/server_poller.h"

#include <glog/logging.h>

#include <utility>

#include "base/process/thread.h"
#include "base/status_macros.h"
#include "transport/paths/locality.h"

namespace refract::transport {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Milliseconds(500);
constexpr absl::Duration kFlushStep = absl::Microseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<ServerPoller>> ServerPoller::Create(
    ServerShared* shared) {
  // Every poller has room for all clients, and for as many connections that
  // will be refused for being too many.
  REFRACT_ASSIGN_OR_RETURN(
      auto loop, PollLoop::Create(
                     shared->options.clock,
                     2 * static_cast<size_t>(shared->options.max_connections)));
  return std::unique_ptr<ServerPoller>(
      new ServerPoller(shared, std::move(loop)));
}

ServerPoller::ServerPoller(ServerShared* shared, std::unique_ptr<PollLoop> loop)
    : shared_(shared),
      resources_{loop->waker(),
                 std::make_unique<PullScheduler>(PullScheduler::Options()),
                 verbs::MakePollGroup(shared->options.rdma_device,
                                      shared->options.locality)},
      loop_(std::move(loop)) {
  resources_.pulls->WatchMarks(verbs::Marks(resources_.verbs.get()));
}

absl::Status ServerPoller::Start() {
  REFRACT_ASSIGN_OR_RETURN(thread_, base::StartThread([this] { Run(); }));
  return absl::OkStatus();
}

ServerPoller::~ServerPoller() {
  loop_->Wake();
  if (thread_.joinable()) thread_.join();
}

void ServerPoller::Add(PollLoop::Seat seat, std::unique_ptr<ServerLink> link) {
  {
    absl::MutexLock lock(&mu_);
    new_links_.emplace_back(std::move(seat), std::move(link));
    any_new_ = true;
  }
  loop_->Wake();
}

void ServerPoller::Adopt() {
  if (!any_new_) return;
  std::vector<NewLink> added;
  {
    absl::MutexLock lock(&mu_);
    added.swap(new_links_);
    any_new_ = false;
  }
  for (auto& [seat, link] : added) {
    const absl::Status status = loop_->Add(std::move(seat), std::move(link));
    if (!status.ok()) shared_->log.Warn("poller", "cannot take a link", status);
  }
}

void ServerPoller::Run() {
  BindPollingThread(shared_->options.locality);
  bool draining = false;
  while (!shared_->stopping) {
    Adopt();
    if (!draining && shared_->draining) {
      draining = true;
      loop_->WakeAll();  // each link sends a goaway
    }
    if (wake_links_ && wake_links_.exchange(false)) loop_->WakeAll();
    loop_->Round(absl::InfiniteFuture());
  }
  Adopt();
  // Links that came last are told of the end, too.
  Flush();
  loop_->ForEach([](PollTask& task) {
    static_cast<ServerLink&>(task).SayClose(
        absl::CancelledError("the server is stopping"));
  });
  loop_->Clear();
}

// Sends the answers that were given before the server stopped.
void ServerPoller::Flush() {
  // The server's own clock may be a manual clock.
  base::Clock& clock = base::Clock::Real();
  const absl::Time deadline = clock.Now() + kFlushTimeout;
  while (clock.Now() < deadline) {
    loop_->WakeAll();
    loop_->Wake();  // the round must not sleep
    loop_->Round(absl::InfinitePast());
    bool all_sent = true;
    loop_->ForEach([&all_sent](PollTask& task) {
      all_sent &= static_cast<ServerLink&>(task).all_sent();
    });
    if (all_sent) return;
    PollUntil({}, clock, clock.Now() + kFlushStep);
  }
}

}  // namespace refract::transport
