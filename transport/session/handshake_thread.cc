#include "transport/session/handshake_thread.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/process/thread.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

// Most handshakes at once without an allocation.
constexpr size_t kUsualSessions = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<HandshakeThread>> HandshakeThread::Create(
    ServerShared* shared) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<ThreadWaker> waker,
                           ThreadWaker::Create());
  std::unique_ptr<HandshakeThread> thread(
      new HandshakeThread(shared, std::move(waker)));
  REFRACT_ASSIGN_OR_RETURN(
      thread->thread_, base::StartThread([raw = thread.get()] { raw->Run(); }));
  return thread;
}

HandshakeThread::HandshakeThread(ServerShared* shared,
                                 std::shared_ptr<ThreadWaker> waker)
    : shared_(shared), waker_(std::move(waker)), added_(kUsualSessions) {}

HandshakeThread::~HandshakeThread() {
  waker_->Wake();
  if (thread_.joinable()) thread_.join();
}

void HandshakeThread::Add(std::unique_ptr<ServerSession> session) {
  ++load_;
  added_.Push(std::move(session));
  waker_->Wake();
}

void HandshakeThread::Run() {
  base::Clock& clock = *shared_->options.clock;
  const Wait wait{*waker_, clock, [] { return absl::OkStatus(); }};
  Sessions sessions;
  Sessions added;
  std::vector<pollfd> fds;
  while (!shared_->stopping) {
    // All handshakes of the thread take a step in each round: steps are short,
    // except where memory is registered with a device.
    added_.Take(&added);
    std::move(added.begin(), added.end(), std::back_inserter(sessions));
    const absl::Time now = clock.Now();
    load_ -= std::erase_if(sessions, [&](const auto& session) {
      return session->Step(now, waker_);
    });
    fds.clear();
    absl::Time next = absl::InfiniteFuture();
    bool sleep = true;
    for (const auto& session : sessions) {
      sleep &= session->Arm(&fds);
      next = std::min(next, session->next_timer());
    }
    // The next steps find out what ended the wait.
    if (sleep) wait.For(absl::MakeSpan(fds), next).IgnoreError();
  }
}

}  // namespace refract::transport
