#include "transport/verbs/descriptor.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/base/random_seed.h"

namespace refract::transport::verbs {
namespace {

RegionDescription Example() {
  RegionDescription region;
  region.endpoint.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  region.endpoint.gid_type = 2;
  region.endpoint.mtu_bytes = 4096;
  region.endpoint.express = {17, 0xabcdef};
  region.endpoint.bulk = {18, 1};
  region.endpoint.max_reads = 16;
  region.endpoint.notify_window = 256;
  region.id = 1;
  region.address = 0x7f0000000000;
  region.bytes = 4096;
  region.key = 0x1234;
  region.access = Access::kRemoteRead;
  return region;
}

TEST(VerbsDescriptor, ComesBackAsItWent) {
  const RegionDescription region = Example();
  const auto decoded = DecodeRegion(EncodeRegion(region));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->endpoint, region.endpoint);
  EXPECT_EQ(decoded->id, region.id);
  EXPECT_EQ(decoded->address, region.address);
  EXPECT_EQ(decoded->bytes, region.bytes);
  EXPECT_EQ(decoded->key, region.key);
  EXPECT_EQ(decoded->access, region.access);
}

// docs/design/wire_format.md, "verbs data path": bytes written down by hand
// from proto/verbs.proto, not by this code. Peers of other versions rely on
// them.
constexpr char kGolden[] =
    "0a2d0801121000000000000000000000ffff0a0000011802288020320708"
    "1110ef9baf053a0408121001401048800210011900000000007f00002080"
    "202d341200003001";

TEST(VerbsDescriptor, HasTheBytesOfTheDocument) {
  const std::string golden =
      "verbs:" + absl::Base64Escape(absl::HexStringToBytes(kGolden));
  EXPECT_EQ(EncodeRegion(Example()), golden);
  const auto decoded = DecodeRegion(golden);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->endpoint, Example().endpoint);
  EXPECT_EQ(decoded->address, Example().address);
}

// Fields that a later version adds are skipped.
TEST(VerbsDescriptor, UnknownFieldsAreIgnored) {
  // Field 15, a varint.
  const auto decoded = DecodeRegion(
      "verbs:" + absl::Base64Escape(absl::HexStringToBytes(kGolden) +
                                    absl::HexStringToBytes("7805")));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->key, Example().key);
}

TEST(VerbsDescriptor, ImpossibleFieldsAreRefused) {
  std::vector<RegionDescription> bad(13, Example());
  bad[0].endpoint.gid = {};
  bad[1].endpoint.gid_type = 3;
  bad[2].endpoint.mtu_bytes = 1500;
  bad[3].endpoint.mtu_bytes = 8192;
  bad[4].endpoint.express.number = 1;
  bad[5].endpoint.bulk.number = 1u << 24;
  bad[6].endpoint.bulk.packet_number = 1u << 24;
  bad[7].endpoint.bulk.number = bad[7].endpoint.express.number;
  bad[8].endpoint.max_reads = 0;
  bad[9].endpoint.notify_window = 0;
  bad[10].bytes = 0;
  bad[11].address = ~uint64_t{0} - 10;
  bad[12].access = Access::kLocal;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(DecodeRegion(EncodeRegion(bad[i])).status().code(),
              absl::StatusCode::kInvalidArgument)
        << i;
  }
}

TEST(VerbsDescriptor, TruncatedAndDamagedTextsAreNoCrash) {
  const std::string text = EncodeRegion(Example());
  for (size_t length = 0; length < text.size(); ++length) {
    DecodeRegion(absl::string_view(text).substr(0, length)).IgnoreError();
  }
  EXPECT_FALSE(DecodeRegion("verbs:").ok());
  EXPECT_FALSE(DecodeRegion("verbs:" + std::string(4096, 'A')).ok());
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(text.substr(6), &bytes));
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = bytes;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    const auto decoded = DecodeRegion("verbs:" + absl::Base64Escape(damaged));
    if (!decoded.ok()) continue;
    // Accepted values are within the bounds.
    EXPECT_GE(decoded->endpoint.express.number, 2u);
    EXPECT_LE(decoded->bytes, ~uint64_t{0} - decoded->address);
    EXPECT_LE(decoded->endpoint.notify_window, 1u << 16);
  }
}

}  // namespace
}  // namespace refract::transport::verbs
