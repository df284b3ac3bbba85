#ifndef REFRACT_TESTS_TRANSPORT_SIM_PATHS_H_
#define REFRACT_TESTS_TRANSPORT_SIM_PATHS_H_

// The verbs data path on the simulator: together the `sim` data path.

#include <glog/logging.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport/datapath.h"
#include "tests/transport/verbs_sim/fabric/fabric.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/options.h"
#include "transport/verbs/poll_group.h"
#include "transport/verbs/verbs_path.h"

namespace refract::transport::sim {

// Idle probes go by real time, which has nothing to do with the simulation.
inline verbs::HubOptions NoProbes(int max_paths = 16) {
  verbs::HubOptions options;
  options.max_paths = max_paths;
  options.idle_probe_interval = absl::ZeroDuration();
  return options;
}

// The devices of a process on a host, and one polling thread's queues.
class Process {
 public:
  Process(Fabric& fabric, int host,
          verbs::DeviceContext::Events events =
              verbs::DeviceContext::Events::kPumped,
          const verbs::HubOptions& hub = NoProbes())
      : registry_(fabric.library(host), events),
        group_(std::make_shared<verbs::PollGroup>(registry_, hub)) {}

  std::unique_ptr<DataPath> NewPath(const verbs::PathOptions& options = {}) {
    auto names = registry_.DeviceNames();
    CHECK(names.ok()) << names.status();
    auto context = registry_.Open(names->front());
    CHECK(context.ok()) << context.status();
    auto ports = (*context)->device().Ports();
    CHECK(ports.ok()) << ports.status();
    auto addresses =
        verbs::RankAddresses({{names->front(), *ports}}, {}, std::nullopt);
    CHECK(addresses.ok()) << addresses.status();
    auto path = verbs::VerbsPath::Create(group_, addresses->front(), options);
    CHECK(path.ok()) << path.status();
    return *std::move(path);
  }

 private:
  verbs::DeviceRegistry registry_;
  const std::shared_ptr<verbs::PollGroup> group_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_SIM_PATHS_H_
