#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_DEVICE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_DEVICE_H_

// verbs/api.h over the simulated devices of one host.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

// Thread-safe, and so are its objects, beyond the demands of verbs/api.h.
class SimLibrary final : public verbs::Library {
 public:
  SimLibrary(std::shared_ptr<Simulation> simulation, int host)
      : simulation_(std::move(simulation)), host_(host) {}

  absl::StatusOr<std::vector<std::string>> DeviceNames() const override;
  absl::StatusOr<std::unique_ptr<verbs::Device>> Open(
      absl::string_view name) const override;

 private:
  const std::shared_ptr<Simulation> simulation_;
  const int host_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_DEVICE_H_
