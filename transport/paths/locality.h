#ifndef REFRACT_TRANSPORT_PATHS_LOCALITY_H_
#define REFRACT_TRANSPORT_PATHS_LOCALITY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::transport {

// Which devices of this machine are near what uses the transport, and where its
// threads should run. Empty: nothing is known, and nothing is bound.
struct Locality {
  struct Device {
    std::string name;  // RDMA device
    // The path between the device and the memory or GPU in use: its rate in
    // Gb/s, 0 = unknown, and how much of that to expect, 0 < factor ≤ 1.
    // Devices are compared by factor × the smaller of path and port rate.
    double path_gbps = 0;
    double factor = 1;
    // Memory that the device pins comes from here; -1: from anywhere.
    int numa_node = -1;
    friend bool operator==(const Device&, const Device&) = default;
  };
  std::vector<Device> devices;
  // Of polling threads. Empty: all CPUs that the process may use.
  std::vector<int> cpus;

  // Null: nothing is known of it.
  const Device* Find(absl::string_view name) const {
    for (const Device& device : devices) {
      if (device.name == name) return &device;
    }
    return nullptr;
  }
  friend bool operator==(const Locality&, const Locality&) = default;
};

// By a polling thread when it starts: runs on locality.cpus from then on. Where
// the system refuses, a log line says so and the thread runs anywhere.
void BindPollingThread(const Locality& locality);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_LOCALITY_H_
