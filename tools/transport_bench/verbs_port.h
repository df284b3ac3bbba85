#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_PORT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_PORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::transport_bench {

// The port that the data path, the raw loops and perftest all use.
struct VerbsPort {
  std::string device;
  int port = 0;
  int gid_index = 0;
  int mtu_bytes = 0;
};

// What the data path would choose. `preference`: "DEVICE", "DEVICE:PORT" or
// "DEVICE:PORT:GID", or empty. InvalidArgument: it has another form;
// Unimplemented: built without verbs; else no port is usable now.
absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view preference);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_PORT_H_
