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

// DNS look-ups. Used by one thread at a time.
class Resolver {
 public:
  // An SRV record (RFC 2782).
  struct Service {
    std::string host;
    int port = 0;
    int priority = 0;  // lower comes first
  };

  virtual ~Resolver() = default;
  // A look-up waits for an answer for a few seconds, or until `stop`.
  // NotFound: no such name, or it has no records of that type.
  // DeadlineExceeded: no answer. Unavailable: any other failure.
  //
  // The IP addresses of `name`, as text: its A records, or its AAAA records
  // where it has no A record. A host with both is found once that way.
  virtual absl::StatusOr<std::vector<std::string>> Addresses(
      const std::string& name, std::stop_token stop) = 0;
  virtual absl::StatusOr<std::vector<Service>> Services(
      const std::string& name, std::stop_token stop) = 0;
};

// Longest wait of a look-up.
inline constexpr absl::Duration kLookUpTimeout = absl::Seconds(5);

// A resolver by c-ares. It asks `servers` ("IP" or "IP:PORT", separated by
// commas; empty: those of /etc/resolv.conf, which is read again at each
// look-up), with the search list of /etc/resolv.conf. InvalidArgument:
// `servers` is no such list.
absl::StatusOr<std::unique_ptr<Resolver>> MakeDnsResolver(
    const std::string& servers);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISCOVERY_RESOLVER_H_
