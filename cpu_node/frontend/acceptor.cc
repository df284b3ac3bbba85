#include "cpu_node/frontend/acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/process/descriptor_limit.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// For GPU nodes, files and gRPC itself.
constexpr uint64_t kLeastReserve = 16;

// Pause after running out of descriptors, so that accepting does not spin.
constexpr absl::Duration kPause = absl::Milliseconds(20);

constexpr int kLinesPerSecond = 1;

absl::StatusOr<transport::Listener> Listen(const std::string& host, int port) {
  if (host == "0.0.0.0") {
    absl::StatusOr<transport::Listener> both =
        transport::ListenTcp({"::", port});
    if (both.ok()) return both;  // else: this machine has no IPv6
  }
  return transport::ListenTcp({host, port});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(
    const std::string& host, int port) {
  REFRACT_ASSIGN_OR_RETURN(transport::Listener listener, Listen(host, port));
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<transport::ThreadWaker> waker,
                           transport::ThreadWaker::Create());
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(listener), std::move(waker)));
}

Acceptor::Acceptor(transport::Listener listener,
                   std::shared_ptr<transport::ThreadWaker> waker)
    : listener_(std::move(listener)),
      waker_(std::move(waker)),
      max_descriptors_([] {
        const uint64_t limit = base::DescriptorLimit();
        return limit - std::min(limit, std::max(limit / 8, kLeastReserve));
      }()),
      log_(kLinesPerSecond, base::Clock::Real()) {}

Acceptor::~Acceptor() { Stop(); }

absl::Status Acceptor::Start(Take take) {
  REFRACT_ASSIGN_OR_RETURN(
      thread_,
      base::StartThread([this, take = std::move(take)] { Accept(take); }));
  return absl::OkStatus();
}

void Acceptor::Stop() {
  stopping_ = true;
  waker_->Wake();
  if (thread_.joinable()) thread_.join();
  listener_.fd.Reset(-1);
}

void Acceptor::Accept(const Take& take) {
  const transport::Wait wait{*waker_, base::Clock::Real(),
                             [] { return absl::OkStatus(); }};
  while (!stopping_) {
    wait.For(listener_.fd.get(), POLLIN, absl::InfiniteFuture()).IgnoreError();
    if (stopping_) return;
    absl::StatusOr<transport::UniqueFd> fd =
        transport::Accept(listener_.fd.get());
    // The kernel gives the lowest free number, so the number of a descriptor
    // tells how many are in use.
    const bool full =
        !fd.ok() ||
        (fd->valid() && static_cast<uint64_t>(fd->get()) >= max_descriptors_);
    if (full) {
      if (const std::optional<int64_t> held_back = log_.Admit()) {
        LOG(WARNING) << "a client's connection is refused: "
                     << (fd.ok() ? "too many descriptors are open"
                                 : std::string(fd.status().message()))
                     << " (" << *held_back << " earlier lines not logged)";
      }
      pollfd none = {-1, 0, 0};
      // A connection that could not be accepted keeps the listener readable.
      if (!fd.ok()) {
        wait.For(absl::MakeSpan(&none, 1), base::Clock::Real().Now() + kPause)
            .IgnoreError();
      }
      continue;
    }
    if (!fd->valid()) continue;
    const int on = 1;
    setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    take(fd->Release());
  }
}

}  // namespace refract::cpu_node
