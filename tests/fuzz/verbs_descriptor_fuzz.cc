// The text by which a peer describes a region and its end of a verbs
// connection: what is accepted is within what the device will be given, and
// says the same when it is written again.
#include <glog/logging.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/target.h"
#include "transport/verbs/descriptor.h"

namespace refract::fuzz {
namespace {

using namespace transport;
using namespace transport::verbs;

constexpr uint8_t kEncode = 1;  // the input is what the base64 holds

RegionDescription Honest() {
  RegionDescription region;
  region.endpoint.gid[10] = region.endpoint.gid[11] = 0xff;
  region.endpoint.gid[12] = 10;
  region.endpoint.gid[15] = 7;
  region.endpoint.gid_type = 2;
  region.endpoint.mtu_bytes = 4096;
  region.endpoint.express = {17, 0x123456};
  region.endpoint.bulk = {18, 0x654321};
  region.endpoint.max_reads = 16;
  region.endpoint.notify_window = 256;
  region.id = 1;
  region.address = 0x7f0000200000;
  region.bytes = 1 << 20;
  region.key = 0x1234;
  region.access = Access::kRemoteWrite;
  return region;
}

// The bytes inside base64, so that mutations reach the fields.
std::string Unwrapped(const RegionDescription& region) {
  std::string bytes;
  CHECK(absl::Base64Unescape(EncodeRegion(region).substr(6), &bytes));
  return Script().U8(kEncode).Raw(bytes).bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  RegionDescription source = Honest();
  source.access = Access::kRemoteRead;
  source.id = 0;
  RegionDescription infiniband = Honest();
  infiniband.endpoint.gid = {};
  infiniband.endpoint.gid_type = 0;
  infiniband.endpoint.lid = 9;
  return {{"slots", Unwrapped(Honest())},
          {"source", Unwrapped(source)},
          {"infiniband", Unwrapped(infiniband)},
          {"text", Script().U8(0).Raw(EncodeRegion(Honest())).bytes()},
          {"other_path", Script().U8(0).Raw("shm:0:4096:2").bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract::fuzz;
  Input input(data, size);
  const uint8_t flags = input.U8();
  std::string text(input.Take(size));
  if ((flags & kEncode) != 0) {
    text = absl::StrCat("verbs:", absl::Base64Escape(text));
  }
  const auto region = DecodeRegion(text);
  if (!region.ok()) return 0;
  const EndpointDescription& endpoint = region->endpoint;
  CHECK_GT(region->bytes, 0u);
  CHECK_LE(region->address, ~uint64_t{0} - region->bytes);
  CHECK(region->access == Access::kRemoteRead ||
        region->access == Access::kRemoteWrite);
  CHECK(endpoint.express.number != endpoint.bulk.number);
  for (const EndpointDescription::Pair& pair :
       {endpoint.express, endpoint.bulk}) {
    CHECK_LT(pair.number, 1u << 24);
    CHECK_LT(pair.packet_number, 1u << 24);
  }
  CHECK(endpoint.mtu_bytes >= 256 && endpoint.mtu_bytes <= 4096);
  CHECK_GE(endpoint.notify_window, 1u);
  const auto again = DecodeRegion(EncodeRegion(*region));
  CHECK(again.ok()) << again.status();
  CHECK(again->endpoint == endpoint);
  CHECK(again->id == region->id && again->address == region->address &&
        again->bytes == region->bytes && again->key == region->key &&
        again->access == region->access);
  return 0;
}
