#ifndef REFRACT_BASE_PROCESS_LOOPBACK_H_
#define REFRACT_BASE_PROCESS_LOOPBACK_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::base {

// HOST:PORT, with an IPv6 address in brackets, as clients write it.
inline std::string AddressText(absl::string_view host, int port) {
  const bool bare =
      absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return bare ? absl::StrCat("[", host, "]:", port)
              : absl::StrCat(host, ":", port);
}

// Text for the log after a daemon's address: only this machine reaches it, and
// which flag changes that; empty if other machines reach it.
inline std::string WhoReaches(absl::string_view host, absl::string_view flag) {
  const bool loopback = absl::StartsWith(host, "127.") || host == "localhost" ||
                        host == "::1" || host == "[::1]";
  return loopback ? absl::StrCat(", for this machine alone (", flag,
                                 " 0.0.0.0: for others, too)")
                  : "";
}

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_LOOPBACK_H_
