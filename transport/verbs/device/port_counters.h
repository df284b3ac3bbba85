#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_PORT_COUNTERS_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_PORT_COUNTERS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace refract::transport::verbs {

// A counter of a port by its name, "np_cnp_sent", from hw_counters or counters
// of the device's folder, "/sys/class/infiniband/mlx5_0". Nullopt: no counter
// of that name, or its file holds no number. Some drivers ask their firmware,
// which takes some 100 µs: not for polling threads.
std::optional<uint64_t> ReadPortCounter(absl::string_view device_folder,
                                        uint8_t port, absl::string_view name);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_PORT_COUNTERS_H_
