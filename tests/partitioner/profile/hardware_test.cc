#include "partitioner/profile/hardware.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/profile/hardware_files.h"

namespace refract::partitioner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kGood[] = R"(
    name: "toy"
    units { value: 4 source: "counted" }
    operator_seconds { value: 1e-6 source: "measured" }
    flops_per_second { value: 2e9 source: "read" }
    bytes_per_second { value: 3e9 source: "read" }
    row_seconds { value: 5e-9 source: "measured" }
    memory_bytes { value: 8e9 source: "read" })";

std::string Replaced(std::string text, const std::string& from,
                     const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string Refused(const std::string& text) {
  const absl::StatusOr<Hardware> hardware =
      ParseHardware(text, "toy.textproto");
  EXPECT_EQ(hardware.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(hardware.status().message()),
              HasSubstr("toy.textproto"));
  return std::string(hardware.status().message());
}

TEST(HardwareTest, ReadsEveryFigure) {
  const absl::StatusOr<Hardware> hardware = ParseHardware(kGood, "toy");
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  EXPECT_EQ(hardware->name, "toy");
  EXPECT_EQ(hardware->units, 4);
  EXPECT_EQ(hardware->operator_s, 1e-6);
  EXPECT_EQ(hardware->flops_per_s, 2e9);
  EXPECT_EQ(hardware->bytes_per_s, 3e9);
  EXPECT_EQ(hardware->row_s, 5e-9);
  EXPECT_EQ(hardware->memory_bytes, 8e9);
}

TEST(HardwareTest, ACacheHasASizeAndASpeedOrIsNotThere) {
  EXPECT_FALSE(ParseHardware(kGood, "toy")->cache.has_value());
  const std::string bytes = " cache_bytes { value: 5e6 source: \"read\" }";
  const std::string speed =
      " cache_bytes_per_second { value: 9e9 source: \"read\" }";
  const absl::StatusOr<Hardware> both =
      ParseHardware(kGood + bytes + speed, "toy");
  ASSERT_TRUE(both.ok()) << both.status();
  ASSERT_TRUE(both->cache.has_value());
  EXPECT_EQ(both->cache->bytes, 5e6);
  EXPECT_EQ(both->cache->bytes_per_s, 9e9);
  EXPECT_THAT(Refused(kGood + bytes),
              AllOf(HasSubstr("cache_bytes_per_second"), HasSubstr("missing")));
  EXPECT_THAT(Refused(kGood + speed),
              AllOf(HasSubstr("cache_bytes:"), HasSubstr("missing")));
  EXPECT_THAT(Refused(Replaced(kGood + bytes + speed, "5e6", "-5e6")),
              AllOf(HasSubstr("cache_bytes"), HasSubstr("negative")));
}

TEST(HardwareTest, EveryFigureIsNamedWhenItIsMissingOrNegative) {
  for (const char* figure :
       {"units", "operator_seconds", "flops_per_second", "bytes_per_second",
        "row_seconds", "memory_bytes"}) {
    const std::string text = kGood;
    const size_t begin = text.find(figure);
    const size_t end = text.find('\n', begin);
    const std::string line =
        text.substr(begin, end == std::string::npos ? end : end - begin);
    if (std::string(figure) != "row_seconds") {
      EXPECT_THAT(Refused(Replaced(text, line, "")),
                  AllOf(HasSubstr(figure), HasSubstr("missing")));
    }
    EXPECT_THAT(
        Refused(Replaced(text, line,
                         std::string(figure) + " { value: -2 source: \"s\" }")),
        AllOf(HasSubstr(figure), HasSubstr("negative")));
    EXPECT_THAT(
        Refused(Replaced(
            text, line, std::string(figure) + " { value: nan source: \"s\" }")),
        AllOf(HasSubstr(figure), HasSubstr("finite")));
    EXPECT_THAT(
        Refused(Replaced(text, line, std::string(figure) + " { value: 1 }")),
        AllOf(HasSubstr(figure), HasSubstr("source")));
  }
  EXPECT_THAT(Refused(Replaced(kGood, "value: 2e9", "value: 0")),
              HasSubstr("flops_per_second"));
}

TEST(HardwareTest, RatesOfFormsOnTheWireAreOptionalButSound) {
  const auto with = [](const std::string& wire) {
    return std::string(kGood) + " wire { " + wire + " }";
  };
  const std::string both =
      "encode_bytes_per_second { value: 2e9 source: \"read\" } "
      "decode_bytes_per_second { value: 3e9 source: \"read\" }";
  const absl::StatusOr<Hardware> hardware =
      ParseHardware(with("form: \"int8\" " + both), "toy");
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  ASSERT_EQ(hardware->wire.count("int8"), 1u);
  EXPECT_EQ(hardware->wire.at("int8").encode_bytes_per_s, 2e9);
  EXPECT_EQ(hardware->wire.at("int8").decode_bytes_per_s, 3e9);
  EXPECT_TRUE(ParseHardware(kGood, "toy")->wire.empty());
  EXPECT_THAT(Refused(with("form: \"int9\" " + both)), HasSubstr("int9"));
  EXPECT_THAT(Refused(with("form: \"int8\"")),
              AllOf(HasSubstr("int8"), HasSubstr("encode_bytes_per_second")));
  EXPECT_THAT(
      Refused(with("form: \"int8\" " + Replaced(both, "3e9", "-3e9"))),
      AllOf(HasSubstr("decode_bytes_per_second"), HasSubstr("negative")));
  EXPECT_THAT(Refused(with("form: \"int8\" " + both +
                           " } wire { form: "
                           "\"int8\" " +
                           both)),
              HasSubstr("twice"));
}

TEST(HardwareTest, OnlyWhatNeverLooksUpRowsMayLeaveThemOut) {
  const absl::StatusOr<Hardware> hardware = ParseHardware(
      Replaced(kGood, "row_seconds { value: 5e-9 source: \"measured\" }", ""),
      "toy");
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  EXPECT_FALSE(hardware->row_s);
}

TEST(HardwareTest, NamesTheLineThatCannotBeRead) {
  EXPECT_THAT(Refused("name: \"x\"\nspeed: 3"),
              AllOf(HasSubstr("line 2"), HasSubstr("speed")));
  EXPECT_THAT(Refused(""), HasSubstr("name"));
}

TEST(HardwareTest, BuiltInDescriptionsAreSound) {
  EXPECT_EQ(BuiltInHardware(), "a100, cpu-2s, h200, l4, vm-2core");
  for (const HardwareFile& file : HardwareFiles()) {
    const absl::StatusOr<Hardware> hardware =
        FindHardware(std::string(file.name));
    ASSERT_TRUE(hardware.ok()) << hardware.status();
    EXPECT_EQ(hardware->name, file.name);
    EXPECT_FALSE(hardware->description.empty());
  }
  EXPECT_TRUE(FindHardware("cpu-2s")->row_s);
}

TEST(HardwareTest, ReadsFilesByPath) {
  const std::string path = testing::TempDir() + "/refract_hardware_test." +
                           std::to_string(getpid()) + ".textproto";
  std::ofstream(path) << kGood;
  const absl::StatusOr<Hardware> hardware = FindHardware(path);
  std::remove(path.c_str());
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  EXPECT_EQ(hardware->name, "toy");
  const absl::Status absent = FindHardware(path).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr(path), HasSubstr("h200")));
}

}  // namespace
}  // namespace refract::partitioner
