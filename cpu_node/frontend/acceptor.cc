#include "cpu_node/frontend/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/process/descriptor_limit.h"
#include "base/process/loopback.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// Descriptors kept for GPU nodes, files and gRPC itself.
constexpr uint64_t kLeastReserve = 16;

// Pause after running out of descriptors, so that accepting does not spin.
constexpr absl::Duration kPause = absl::Milliseconds(20);

// Age at which the count of connections by host is taken again. A count asks
// the kernel for the peer of every descriptor, about 1 µs each.
constexpr absl::Duration kCountAge = absl::Seconds(1);

constexpr int kLinesPerSecond = 1;

// The addresses of `host` as numbers.
absl::StatusOr<std::vector<std::string>> AddressesOf(absl::string_view host) {
  // A socket at :: takes IPv4 connections as well.
  if (host == "0.0.0.0") return std::vector<std::string>{"::"};
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(std::string(host).c_str(), nullptr, &hints, &list);
  if (error != 0) return absl::InvalidArgumentError(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list,
                                                                 &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    std::array<char, NI_MAXHOST> text = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(),
                    nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.push_back(text.data());
    }
  }
  return addresses;
}

absl::StatusOr<std::vector<transport::Listener>> Listen(const std::string& host,
                                                        int port) {
  const std::string name =
      absl::StrCat("cannot listen on ", base::AddressText(host, port));
  const auto addresses = AddressesOf(host);
  if (!addresses.ok()) return base::Annotate(addresses.status(), name);
  std::vector<transport::Listener> listeners;
  absl::Status missing =
      absl::UnavailableError(absl::StrCat(name, ": the host has no address"));
  for (const std::string& address : *addresses) {
    // All addresses use the port that the first listener got.
    if (!listeners.empty()) port = listeners.front().port;
    absl::StatusOr<transport::Listener> listener =
        transport::ListenTcp({address, port});
    if (listener.ok()) {
      listeners.push_back(*std::move(listener));
    } else if (absl::StrContains(address, ':')) {
      missing = listener.status();  // machines without IPv6
    } else {
      return listener.status();
    }
  }
  if (listeners.empty() && host == "0.0.0.0") {
    REFRACT_ASSIGN_OR_RETURN(listeners.emplace_back(),
                             transport::ListenTcp({host, port}));
  }
  if (listeners.empty()) return missing;
  return listeners;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(
    const std::string& host, int port) {
  REFRACT_ASSIGN_OR_RETURN(std::vector<transport::Listener> listeners,
                           Listen(host, port));
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<transport::ThreadWaker> waker,
                           transport::ThreadWaker::Create());
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(listeners), std::move(waker)));
}

Acceptor::Acceptor(std::vector<transport::Listener> listeners,
                   std::shared_ptr<transport::ThreadWaker> waker)
    : listeners_(std::move(listeners)),
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
      base::StartThread([this, take = std::move(take)] { Run(take); }));
  return absl::OkStatus();
}

void Acceptor::Stop() {
  stopping_ = true;
  waker_->Wake();
  if (thread_.joinable()) thread_.join();
  for (transport::Listener& listener : listeners_) listener.fd.Reset(-1);
}

void Acceptor::Run(const Take& take) {
  const transport::Wait wait{*waker_, base::Clock::Real(),
                             [] { return absl::OkStatus(); }};
  std::vector<pollfd> fds;
  while (!stopping_) {
    fds.clear();
    for (const transport::Listener& listener : listeners_) {
      fds.push_back({listener.fd.get(), POLLIN, 0});
    }
    wait.For(absl::MakeSpan(fds), absl::InfiniteFuture()).IgnoreError();
    for (const pollfd& each : fds) {
      if (stopping_) return;
      if (each.revents == 0 || AcceptOne(each.fd, take)) continue;
      // The listener stays readable while the connection cannot be accepted.
      pollfd none = {-1, 0, 0};
      wait.For(absl::MakeSpan(&none, 1), base::Clock::Real().Now() + kPause)
          .IgnoreError();
    }
  }
}

std::string Acceptor::Refusal(int fd) {
  // The kernel gives the lowest free number, so the number of a descriptor
  // tells how many are in use, and every lower number is in use.
  const auto in_use = static_cast<uint64_t>(fd);
  if (in_use >= max_descriptors_)
    return "too many descriptors are open; ulimit -n is their limit";
  // Below three quarters nothing needs counting. Above, a host that holds three
  // quarters of all descriptors is refused: other hosts need the rest.
  const uint64_t share = max_descriptors_ / 4 * 3;
  if (in_use < share) return "";
  const absl::Time now = base::Clock::Real().Now();
  if (now - counted_ > kCountAge) {
    connections_of_.clear();
    for (int open = 0; open < fd; ++open) {
      ++connections_of_[transport::PeerHost(open)];
    }
    counted_ = now;
  }
  const std::string host = transport::PeerHost(fd);
  uint64_t& connections = connections_of_[host];
  if (connections >= share) {
    return absl::StrCat(host, " holds ", connections,
                        " connections, three quarters of the descriptors");
  }
  ++connections;
  return "";
}

bool Acceptor::AcceptOne(int listener, const Take& take) {
  absl::StatusOr<transport::UniqueFd> fd = transport::Accept(listener);
  if (fd.ok() && !fd->valid()) return true;
  const std::string refusal =
      fd.ok() ? Refusal(fd->get()) : std::string(fd.status().message());
  if (refusal.empty()) {
    const int on = 1;
    setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    take(fd->Release());
    return true;
  }
  if (const auto held_back = log_.Admit()) {
    LOG(WARNING) << "a client's connection is refused: " << refusal
                 << *held_back;
  }
  return fd.ok();
}

}  // namespace refract::cpu_node
