#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cpu_node/discovery/resolver.h"

namespace refract::cpu_node {
namespace {

// Timeout of the first try; c-ares doubles it for the second. Both tries fit
// into kLookUpTimeout with one server, and a second server is still asked.
constexpr int kTryMs = 1000;
constexpr int kTries = 2;
// Interval at which a look-up checks its stop token.
constexpr int kStopLookMs = 100;

absl::Status FromAres(int code, const std::string& name) {
  const std::string text = absl::StrCat("DNS: ", name, ": ");
  switch (code) {
    case ARES_SUCCESS:
      return absl::OkStatus();
    case ARES_ENOTFOUND:
      return absl::NotFoundError(absl::StrCat(text, "no such name"));
    case ARES_ENODATA:
      return absl::NotFoundError(absl::StrCat(text, "no records of that type"));
    case ARES_ETIMEOUT:
    case ARES_ECANCELLED:
      return absl::DeadlineExceededError(absl::StrCat(text, "no answer"));
    default:
      return absl::UnavailableError(absl::StrCat(text, ares_strerror(code)));
  }
}

class Channel {
 public:
  Channel() = default;
  ~Channel() {
    // Destruction calls the callbacks of the queries under way.
    if (open_) ares_destroy(channel_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  absl::Status Open(const std::string& servers) {
    ares_options options = {};
    options.timeout = kTryMs;
    options.tries = kTries;
    int code = ares_init_options(&channel_, &options,
                                 ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
    open_ = code == ARES_SUCCESS;
    if (open_ && !servers.empty()) {
      code = ares_set_servers_ports_csv(channel_, servers.c_str());
      if (code == ARES_EBADSTR) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", servers, "' is not a list of DNS servers, IP or IP:PORT"));
      }
    }
    return FromAres(code, "set-up");
  }

  // Runs queries until a callback sets `done`.
  void Run(const bool& done, const std::stop_token& stop) {
    const absl::Time deadline = base::Clock::Real().Now() + kLookUpTimeout;
    while (!done) {
      if (stop.stop_requested() || base::Clock::Real().Now() >= deadline) {
        ares_cancel(channel_);  // its callback sets `done`
        return;
      }
      Step();
    }
  }

  ares_channel get() { return channel_; }

 private:
  // poll(), not select(): select() cannot name descriptors above FD_SETSIZE.
  void Step() {
    std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets = {};
    const int mask = ares_getsock(channel_, sockets.data(), sockets.size());
    std::array<pollfd, ARES_GETSOCK_MAXNUM> watched = {};
    nfds_t count = 0;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const int bit = static_cast<int>(i);
      const bool read = ARES_GETSOCK_READABLE(mask, bit) != 0;
      const bool write = ARES_GETSOCK_WRITABLE(mask, bit) != 0;
      if (!read && !write) continue;
      watched[count++] = {.fd = sockets[i],
                          .events = static_cast<short>((read ? POLLIN : 0) |
                                                       (write ? POLLOUT : 0))};
    }
    timeval longest = {.tv_sec = 0, .tv_usec = kStopLookMs * 1000};
    timeval buffer = {};
    // The earlier of c-ares' own next timeout and the look at the stop token.
    const timeval* wait = ares_timeout(channel_, &longest, &buffer);
    const int ready =
        poll(watched.data(), count,
             static_cast<int>(wait->tv_sec * 1000 + wait->tv_usec / 1000 + 1));
    if (ready <= 0) {  // a time-out, or a signal
      return ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    }
    for (nfds_t i = 0; i < count; ++i) {
      if (watched[i].revents == 0) continue;
      const bool write = (watched[i].revents & POLLOUT) != 0;
      const bool read = (watched[i].revents & ~POLLOUT) != 0;
      ares_process_fd(channel_, read ? watched[i].fd : ARES_SOCKET_BAD,
                      write ? watched[i].fd : ARES_SOCKET_BAD);
    }
  }

  ares_channel channel_ = nullptr;
  bool open_ = false;
};

std::string AddressText(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* const bytes =
      address.sa_family == AF_INET
          ? static_cast<const void*>(
                &reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  inet_ntop(address.sa_family, bytes, text.data(), text.size());
  return text.data();
}

// Filled in by the callback, which c-ares calls exactly once per query, also
// when the channel is cancelled or destroyed.
struct AddressResult {
  bool done = false;
  int code = ARES_SUCCESS;
  std::vector<std::string> addresses;
};

void OnAddresses(void* argument, int code, int /*timeouts*/,
                 ares_addrinfo* answer) {
  auto& result = *static_cast<AddressResult*>(argument);
  result.done = true;
  result.code = code;
  if (answer == nullptr) return;
  for (const ares_addrinfo_node* at = answer->nodes; at != nullptr;
       at = at->ai_next) {
    result.addresses.push_back(AddressText(*at->ai_addr));
  }
  ares_freeaddrinfo(answer);
}

struct ServiceResult {
  bool done = false;
  int code = ARES_SUCCESS;
  std::vector<Resolver::Service> services;
};

void OnServices(void* argument, int code, int /*timeouts*/,
                unsigned char* bytes, int length) {
  auto& result = *static_cast<ServiceResult*>(argument);
  result.done = true;
  result.code = code;
  if (code != ARES_SUCCESS) return;
  ares_srv_reply* records = nullptr;
  result.code = ares_parse_srv_reply(bytes, length, &records);
  for (const ares_srv_reply* at = records; at != nullptr; at = at->next) {
    result.services.push_back({at->host, at->port, at->priority});
  }
  if (records != nullptr) ares_free_data(records);
}

// Opens a channel per look-up: /etc/resolv.conf may change.
class DnsResolver final : public Resolver {
 public:
  explicit DnsResolver(std::string servers) : servers_(std::move(servers)) {}

  absl::StatusOr<std::vector<std::string>> Addresses(
      const std::string& name, std::stop_token stop) override {
    AddressResult result;
    for (const int family : {AF_INET, AF_INET6}) {
      result = AddressResult();
      Channel channel;
      REFRACT_RETURN_IF_ERROR(channel.Open(servers_));
      ares_addrinfo_hints hints = {};
      hints.ai_flags = ARES_AI_NOSORT;  // sorting would connect to each
      hints.ai_family = family;
      hints.ai_socktype = SOCK_STREAM;
      // IPv6 is asked for only where a name has no IPv4 address: a node reached
      // by both would be listed twice.
      ares_getaddrinfo(channel.get(), name.c_str(), nullptr, &hints,
                       OnAddresses, &result);
      channel.Run(result.done, stop);
      // ENODATA: the name exists, without addresses of this family.
      if (result.code != ARES_ENODATA) break;
    }
    REFRACT_RETURN_IF_ERROR(FromAres(result.code, name));
    return std::move(result.addresses);
  }

  absl::StatusOr<std::vector<Service>> Services(const std::string& name,
                                                std::stop_token stop) override {
    ServiceResult result;
    Channel channel;
    REFRACT_RETURN_IF_ERROR(channel.Open(servers_));
    ares_search(channel.get(), name.c_str(), ns_c_in, ns_t_srv, OnServices,
                &result);
    channel.Run(result.done, stop);
    REFRACT_RETURN_IF_ERROR(FromAres(result.code, name));
    return std::move(result.services);
  }

 private:
  const std::string servers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Resolver>> MakeDnsResolver(
    const std::string& servers) {
  static const int kInit = ares_library_init(ARES_LIB_INIT_ALL);
  REFRACT_RETURN_IF_ERROR(FromAres(kInit, "set-up"));
  Channel channel;  // only checks that c-ares accepts the server list
  REFRACT_RETURN_IF_ERROR(channel.Open(servers));
  return std::make_unique<DnsResolver>(servers);
}

}  // namespace refract::cpu_node
