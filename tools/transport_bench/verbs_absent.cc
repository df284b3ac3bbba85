// In builds without libibverbs.

#include "tools/transport_bench/verbs_port.h"
#include "tools/transport_bench/verbs_yardstick.h"

namespace refract::transport_bench {

absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view) {
  return absl::UnimplementedError("Refract was built without libibverbs");
}

// Not reached: there is never a port.
std::unique_ptr<Subject> VerbsYardstick(const VerbsPort&) { return nullptr; }

}  // namespace refract::transport_bench
