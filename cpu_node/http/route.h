#ifndef REFRACT_CPU_NODE_HTTP_ROUTE_H_
#define REFRACT_CPU_NODE_HTTP_ROUTE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::cpu_node {

// The method of KServe v2 and its extensions that a path names.
struct Route {
  enum class Call : uint8_t {
    kServerLive,
    kServerReady,
    kServerMetadata,
    kModelReady,
    kModelMetadata,
    kModelConfig,
    kModelStatistics,  // without `model`: of all models
    kModelInfer,
    kRepositoryIndex,
    kModelLoad,
    kModelUnload,
    kTraceSetting,
  };
  Call call = Call::kServerLive;
  std::string model;    // unescaped
  std::string version;  // empty: not given
  bool post = false;    // required method: POST or GET
  bool both = false;    // both methods are allowed
};

// Reads the path of `target`; a query is skipped. NotFound names an unknown
// path, Unimplemented an extension of Triton's that this server lacks.
absl::StatusOr<Route> RouteOf(absl::string_view target);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_ROUTE_H_
