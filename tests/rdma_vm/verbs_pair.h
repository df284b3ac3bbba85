#ifndef REFRACT_TESTS_RDMA_VM_VERBS_PAIR_H_
#define REFRACT_TESTS_RDMA_VM_VERBS_PAIR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/datapath.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/options.h"
#include "transport/verbs/poll_group.h"

namespace refract::rdma_vm {

// The devices that run_in_vm says are there; empty outside of it.
std::vector<std::string> RdmaDevices();

// The best address of a device.
transport::verbs::LocalAddress AddressOf(const std::string& device);

// Two verbs paths that know of each other only by what they Import: on the
// first and the last device.
std::pair<std::unique_ptr<transport::DataPath>,
          std::unique_ptr<transport::DataPath>>
MakeVerbsPair(const std::shared_ptr<transport::verbs::PollGroup>& a,
              const std::shared_ptr<transport::verbs::PollGroup>& b,
              const transport::verbs::PathOptions& options = {});

}  // namespace refract::rdma_vm

#endif  // REFRACT_TESTS_RDMA_VM_VERBS_PAIR_H_
