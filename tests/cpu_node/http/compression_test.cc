#include "cpu_node/http/compression.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

class CompressionTest : public ::testing::Test {
 protected:
  absl::Status Read(const std::string& bytes, ContentCoding coding,
                    size_t most = 1 << 20) {
    HttpBody body(memory_, most);
    const absl::Status status = Decompress(bytes, coding, body);
    text_ = std::string(body.view());
    return status;
  }
  base::ByteBudget memory_{size_t{1} << 22, "--request-memory"};
  std::string text_;
};

TEST_F(CompressionTest, RoundTripsBothCodings) {
  std::string text;
  for (unsigned i = 0; i < 100000; ++i) text += static_cast<char>(i * i % 251);
  for (const ContentCoding coding :
       {ContentCoding::kGzip, ContentCoding::kDeflate}) {
    const std::string bytes = Compress(text, coding);
    EXPECT_LT(bytes.size(), text.size());
    ASSERT_TRUE(Read(bytes, coding).ok());
    EXPECT_EQ(text_, text);
    EXPECT_EQ(bytes[0], coding == ContentCoding::kGzip ? '\x1f' : '\x78');
  }
  EXPECT_EQ(memory_.held(), 0);
}

TEST_F(CompressionTest, BrokenBytesAreRefused) {
  const std::string bytes =
      Compress(std::string(1000, 'a'), ContentCoding::kGzip);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const absl::Status status =
        Read(bytes.substr(0, length), ContentCoding::kGzip);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << length << ": " << status;
  }
  EXPECT_THAT(Read(bytes + "x", ContentCoding::kGzip).message(),
              HasSubstr("after their end"));
  EXPECT_THAT(Read("not gzip at all", ContentCoding::kGzip).message(),
              HasSubstr("broken"));
  EXPECT_FALSE(Read(bytes, ContentCoding::kDeflate).ok());
}

TEST_F(CompressionTest, DecompressedBytesAreBounded) {
  const std::string bomb =
      Compress(std::string(3 << 20, '\0'), ContentCoding::kGzip);
  EXPECT_LT(bomb.size(), 20000);
  EXPECT_TRUE(absl::IsOutOfRange(Read(bomb, ContentCoding::kGzip)));
  EXPECT_EQ(text_.size(), 1 << 20);
  // The budget has 4 MiB: too few for the last doubling.
  EXPECT_TRUE(
      absl::IsResourceExhausted(Read(bomb, ContentCoding::kGzip, 1 << 30)));
  EXPECT_EQ(memory_.held(), 0);
}

TEST(ContentCodingTest, ReadsHeaders) {
  EXPECT_EQ(*CodingOf(""), ContentCoding::kIdentity);
  EXPECT_EQ(*CodingOf(" GZip"), ContentCoding::kGzip);
  EXPECT_EQ(*CodingOf("deflate"), ContentCoding::kDeflate);
  EXPECT_THAT(CodingOf("br").status().message(), HasSubstr("'br'"));
  EXPECT_FALSE(CodingOf("gzip, gzip").ok());
  EXPECT_EQ(PreferredCoding(""), ContentCoding::kIdentity);
  EXPECT_EQ(PreferredCoding("*"), ContentCoding::kIdentity);
  EXPECT_EQ(PreferredCoding("deflate, gzip"), ContentCoding::kGzip);
  EXPECT_EQ(PreferredCoding("br, deflate;q=0.5"), ContentCoding::kDeflate);
  EXPECT_EQ(PreferredCoding("gzip;q=0.1, deflate; q=0.2"),
            ContentCoding::kDeflate);
  EXPECT_EQ(PreferredCoding("gzip;q=0, identity"), ContentCoding::kIdentity);
  EXPECT_EQ(PreferredCoding("gzip;q=x"), ContentCoding::kIdentity);
}

}  // namespace
}  // namespace refract::cpu_node
