#include "tools/transport_meter/pattern.h"

#include <cstring>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::transport_meter {
namespace {

using testing::HasSubstr;

std::vector<std::byte> Message(size_t bytes, uint64_t seed, Side from,
                               uint64_t sequence) {
  std::vector<std::byte> message(bytes);
  FillPattern(absl::MakeSpan(message), seed, from, sequence);
  return message;
}

TEST(PatternTest, IsItself) {
  for (const size_t bytes : {1, 7, 8, 9, 64, 1000}) {
    const auto message = Message(bytes, 3, Side::kInitiator, 5);
    EXPECT_TRUE(CheckPattern(message, 3, Side::kInitiator, 5).ok()) << bytes;
  }
}

TEST(PatternTest, FindsEveryWrongByte) {
  auto message = Message(71, 3, Side::kInitiator, 5);
  for (size_t i = 0; i < message.size(); ++i) {
    message[i] ^= std::byte{0x40};
    const absl::Status status = CheckPattern(message, 3, Side::kInitiator, 5);
    EXPECT_TRUE(absl::IsDataLoss(status)) << i;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("byte " + std::to_string(i) + " is wrong"));
    message[i] ^= std::byte{0x40};
  }
}

// Payloads that a benchmark must not accept as a delivered message.
TEST(PatternTest, OthersDifferInEveryWord) {
  const auto message = Message(4096, 3, Side::kInitiator, 5);
  const auto words_shared = [&](const std::vector<std::byte>& other) {
    size_t shared = 0;
    for (size_t i = 0; i < message.size(); i += 8) {
      shared += std::memcmp(message.data() + i, other.data() + i, 8) == 0;
    }
    return shared;
  };
  EXPECT_EQ(words_shared(Message(4096, 3, Side::kInitiator, 4)), 0u);
  EXPECT_EQ(words_shared(Message(4096, 3, Side::kInitiator, 6)), 0u);
  EXPECT_EQ(words_shared(Message(4096, 3, Side::kResponder, 5)), 0u);
  EXPECT_EQ(words_shared(Message(4096, 4, Side::kInitiator, 5)), 0u);
  EXPECT_EQ(words_shared(std::vector<std::byte>(4096)), 0u);
  // Shifted by a word.
  std::vector<std::byte> shifted(message.begin() + 8, message.end());
  shifted.resize(4096);
  EXPECT_EQ(words_shared(shifted), 0u);
}

}  // namespace
}  // namespace refract::transport_meter
