#ifndef REFRACT_BASE_PROCESS_LOOPBACK_H_
#define REFRACT_BASE_PROCESS_LOOPBACK_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::base {

// For the log, after an address that a daemon listens on: that nobody else
// reaches it, and which flag changes that; empty where others do.
inline std::string WhoReaches(absl::string_view host, absl::string_view flag) {
  const bool loopback = absl::StartsWith(host, "127.") || host == "localhost" ||
                        host == "::1" || host == "[::1]";
  return loopback ? absl::StrCat(", for this machine alone (", flag,
                                 " 0.0.0.0: for others, too)")
                  : "";
}

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_LOOPBACK_H_
