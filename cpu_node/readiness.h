#ifndef REFRACT_CPU_NODE_READINESS_H_
#define REFRACT_CPU_NODE_READINESS_H_

// When a CPU node as a whole is ready: for ServerReady and the health of "".

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "cpu_node/catalog.h"

namespace refract::cpu_node {

struct ReadinessRule {
  enum class When : uint8_t {
    kAll,     // every model that could be loaded is ready
    kListed,  // every model of `models` is ready
    kAny,     // at least one model is ready
  };
  When when = When::kAll;
  std::vector<std::string> models;  // kListed
  // Not ready while a version that should be served could not be loaded.
  bool strict = false;
};

// InvalidArgument names a listed model that `catalog` does not know, or says
// that the list is empty.
absl::Status CheckReadinessRule(const ReadinessRule& rule,
                                const Catalog& catalog);

// A model is ready when its default version is; other versions do not count.
bool NodeReady(const ReadinessRule& rule, const Catalog& catalog,
               absl::FunctionRef<bool(const ServedModel&)> ready);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_READINESS_H_
