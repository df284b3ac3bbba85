#ifndef REFRACT_TRANSPORT_VERBS_DESCRIPTOR_H_
#define REFRACT_TRANSPORT_VERBS_DESCRIPTOR_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/datapath.h"

namespace refract::transport::verbs {

// One end of a connection, described for its peer. proto/verbs.proto has the
// meaning of each field; docs/design/wire_format.md the encoding.
struct EndpointDescription {
  struct Pair {
    uint32_t number = 0;
    uint32_t packet_number = 0;
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  std::array<uint8_t, 16> gid = {};
  uint8_t gid_type = 0;
  uint16_t lid = 0;
  uint32_t mtu_bytes = 0;
  Pair express;
  Pair bulk;
  uint32_t max_reads = 0;
  uint32_t notify_window = 0;
  friend bool operator==(const EndpointDescription&,
                         const EndpointDescription&) = default;
};

struct RegionDescription {
  EndpointDescription endpoint;
  uint32_t id = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t key = 0;
  Access access = Access::kLocal;
};

// "verbs:" and base64 of a proto::VerbsRegion.
std::string EncodeRegion(const RegionDescription& region);
// Checks every field against what an honest peer writes. InvalidArgument names
// the wrong field.
absl::StatusOr<RegionDescription> DecodeRegion(absl::string_view text);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DESCRIPTOR_H_
