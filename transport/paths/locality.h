#ifndef REFRACT_TRANSPORT_PATHS_LOCALITY_H_
#define REFRACT_TRANSPORT_PATHS_LOCALITY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::transport {

// Devices of this machine that are near the user of the transport, and CPUs for
// its threads. Empty: nothing is known, and nothing is bound.
struct Locality {
  struct Device {
    std::string name;  // RDMA device
    // The path between the device and the memory or GPU in use: its rate in
    // Gb/s, 0 = unknown, and the usable fraction of it, 0 < factor ≤ 1. Devices
    // are compared by factor × the smaller of path and port rate.
    double path_gbps = 0;
    double factor = 1;
    // NUMA node of the memory that the device pins; -1: any node.
    int numa_node = -1;
    friend bool operator==(const Device&, const Device&) = default;
  };
  std::vector<Device> devices;
  // CPUs of polling threads. Empty: all CPUs that the process may use.
  std::vector<int> cpus;

  // Null: the device is not listed.
  const Device* Find(absl::string_view name) const {
    for (const Device& device : devices) {
      if (device.name == name) return &device;
    }
    return nullptr;
  }
  friend bool operator==(const Locality&, const Locality&) = default;
};

// Called by a polling thread at its start: binds it to locality.cpus. If the
// system refuses, a log line says so and the thread runs anywhere.
void BindPollingThread(const Locality& locality);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_LOCALITY_H_
