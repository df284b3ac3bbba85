#ifndef REFRACT_CPU_NODE_DISCOVERY_RESOLVER_H_
#define REFRACT_CPU_NODE_DISCOVERY_RESOLVER_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::cpu_node {

// DNS look-ups. Not thread-safe.
class Resolver {
 public:
  // An SRV record (RFC 2782).
  struct Service {
    std::string host;
    int port = 0;
    int priority = 0;  // lower comes first
  };

  virtual ~Resolver() = default;
  // A look-up waits for an answer for kLookUpTimeout at most, or until `stop`.
  // NotFound: no such name, or the name has no records of that type.
  // DeadlineExceeded: no answer. Unavailable: any other failure.
  //
  // Returns the IP addresses of `name` as text: its A records, or its AAAA
  // records where it has no A record, so that a host with both is found once.
  virtual absl::StatusOr<std::vector<std::string>> Addresses(
      const std::string& name, std::stop_token stop) = 0;
  virtual absl::StatusOr<std::vector<Service>> Services(
      const std::string& name, std::stop_token stop) = 0;
};

// Longest time of a look-up.
inline constexpr absl::Duration kLookUpTimeout = absl::Seconds(5);

// Makes a resolver on c-ares. It asks `servers` ("IP" or "IP:PORT", separated
// by commas; empty: the servers of /etc/resolv.conf, which is read again at
// each look-up), with the search list of /etc/resolv.conf. InvalidArgument:
// `servers` is not such a list.
absl::StatusOr<std::unique_ptr<Resolver>> MakeDnsResolver(
    const std::string& servers);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISCOVERY_RESOLVER_H_
