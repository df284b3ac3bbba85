#ifndef REFRACT_TOOLS_LOADGEN_TARGETS_GRPC_TARGET_H_
#define REFRACT_TOOLS_LOADGEN_TARGETS_GRPC_TARGET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "tools/loadgen/targets/target.h"

namespace refract::loadgen {

// A target over gRPC, with TargetOptions::connections connections to each
// address. Unavailable names the address to which no connection is made in
// time.
absl::StatusOr<std::unique_ptr<Target>> ConnectGrpc(
    const TargetOptions& options, base::Clock& clock);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_TARGETS_GRPC_TARGET_H_
