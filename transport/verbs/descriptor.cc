#include "transport/verbs/descriptor.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "proto/verbs.pb.h"

namespace refract::transport::verbs {
namespace {

constexpr absl::string_view kPrefix = "verbs:";
constexpr uint32_t kVersion = 1;
// EncodeRegion() writes fewer than 200 bytes; the rest is room for later fields.
constexpr size_t kMaxTextBytes = 2048;
constexpr uint32_t kMax24Bits = (1u << 24) - 1;
constexpr uint64_t kMaxRegionBytes = uint64_t{1} << 40;
constexpr uint32_t kMaxReads = 128;
constexpr uint32_t kMaxNotifyWindow = 1u << 16;

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("region descriptor of verbs: ", what));
}

void Encode(const EndpointDescription::Pair& pair,
            proto::VerbsQueuePair* message) {
  message->set_number(pair.number);
  message->set_packet_number(pair.packet_number);
}

absl::StatusOr<EndpointDescription::Pair> Decode(
    const proto::VerbsQueuePair& message) {
  // Numbers 0 and 1 are the port's own management queue pairs, and the highest
  // one addresses multicast.
  if (message.number() < 2 || message.number() >= kMax24Bits) {
    return Bad("queue pair number");
  }
  if (message.packet_number() > kMax24Bits) return Bad("packet number");
  return EndpointDescription::Pair{message.number(), message.packet_number()};
}

absl::StatusOr<EndpointDescription> Decode(
    const proto::VerbsEndpoint& message) {
  if (message.version() != kVersion) {
    return Bad(absl::StrCat("version ", message.version()));
  }
  EndpointDescription endpoint;
  if (message.gid().size() != endpoint.gid.size()) return Bad("GID");
  std::copy(message.gid().begin(), message.gid().end(), endpoint.gid.begin());
  if (message.gid_type() > 2) return Bad("GID type");
  endpoint.gid_type = static_cast<uint8_t>(message.gid_type());
  if (message.lid() > 0xffff) return Bad("LID");
  endpoint.lid = static_cast<uint16_t>(message.lid());
  // RoCE finds its peer by the GID, InfiniBand within a subnet by the LID: one
  // of the two must be given.
  const bool routable = std::any_of(endpoint.gid.begin(), endpoint.gid.end(),
                                    [](uint8_t byte) { return byte != 0; });
  if (!routable && (endpoint.gid_type != 0 || endpoint.lid == 0)) {
    return Bad("no address");
  }
  endpoint.mtu_bytes = message.mtu_bytes();
  if (endpoint.mtu_bytes < 256 || endpoint.mtu_bytes > 4096 ||
      (endpoint.mtu_bytes & (endpoint.mtu_bytes - 1)) != 0) {
    return Bad("MTU");
  }
  REFRACT_ASSIGN_OR_RETURN(endpoint.express, Decode(message.express()));
  REFRACT_ASSIGN_OR_RETURN(endpoint.bulk, Decode(message.bulk()));
  if (endpoint.express.number == endpoint.bulk.number) {
    return Bad("one queue pair twice");
  }
  endpoint.max_reads = message.max_reads();
  if (endpoint.max_reads < 1 || endpoint.max_reads > kMaxReads) {
    return Bad("number of reads");
  }
  endpoint.notify_window = message.notify_window();
  if (endpoint.notify_window < 1 || endpoint.notify_window > kMaxNotifyWindow) {
    return Bad("notification window");
  }
  return endpoint;
}

}  // namespace

std::string EncodeRegion(const RegionDescription& region) {
  proto::VerbsRegion message;
  proto::VerbsEndpoint& endpoint = *message.mutable_endpoint();
  endpoint.set_version(kVersion);
  endpoint.set_gid(region.endpoint.gid.data(), region.endpoint.gid.size());
  endpoint.set_gid_type(region.endpoint.gid_type);
  endpoint.set_lid(region.endpoint.lid);
  endpoint.set_mtu_bytes(region.endpoint.mtu_bytes);
  Encode(region.endpoint.express, endpoint.mutable_express());
  Encode(region.endpoint.bulk, endpoint.mutable_bulk());
  endpoint.set_max_reads(region.endpoint.max_reads);
  endpoint.set_notify_window(region.endpoint.notify_window);
  message.set_id(region.id);
  message.set_address(region.address);
  message.set_bytes(region.bytes);
  message.set_key(region.key);
  message.set_access(static_cast<uint32_t>(region.access));
  return absl::StrCat(kPrefix, absl::Base64Escape(message.SerializeAsString()));
}

absl::StatusOr<RegionDescription> DecodeRegion(absl::string_view text) {
  std::string bytes;
  proto::VerbsRegion message;
  if (text.size() > kMaxTextBytes || !absl::ConsumePrefix(&text, kPrefix) ||
      !absl::Base64Unescape(text, &bytes) || !message.ParseFromString(bytes)) {
    return Bad("malformed");
  }
  RegionDescription region;
  REFRACT_ASSIGN_OR_RETURN(region.endpoint, Decode(message.endpoint()));
  region.id = message.id();
  region.address = message.address();
  region.bytes = message.bytes();
  if (region.bytes == 0 || region.bytes > kMaxRegionBytes ||
      region.address > ~uint64_t{0} - region.bytes) {
    return Bad("address or length");
  }
  // Address and key are not checked further: they only mean something to the
  // peer's own device, which refuses wrong values.
  region.key = message.key();
  // A local region has no descriptor: Export refuses it.
  switch (message.access()) {
    case static_cast<uint32_t>(Access::kRemoteRead):
      region.access = Access::kRemoteRead;
      break;
    case static_cast<uint32_t>(Access::kRemoteWrite):
      region.access = Access::kRemoteWrite;
      break;
    default:
      return Bad("access");
  }
  return region;
}

}  // namespace refract::transport::verbs
