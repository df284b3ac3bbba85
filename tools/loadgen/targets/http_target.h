#ifndef REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_TARGET_H_
#define REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_TARGET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "tools/loadgen/targets/target.h"

namespace refract::loadgen {

// A target over HTTP/1.1 with kept connections, tensors in the binary tensor
// extension where the server has it and else as JSON. A connection carries one
// request at a time; when all are busy another connection is opened, up to
// 1,000 to each address. Further queries wait in the client, and the wait
// counts in their latencies.
//
// Unavailable names the address that cannot be reached in time.
absl::StatusOr<std::unique_ptr<Target>> ConnectHttp(
    const TargetOptions& options, base::Clock& clock);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_TARGET_H_
