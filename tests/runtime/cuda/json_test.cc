#include "bench/cuda/json.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace refract::bench {
namespace {

TEST(JsonTest, OtherParsersReadIt) {
  Json inner;
  inner.Set("name", "G1 \"x\" \\ y\n\t\x01");
  inner.Set("median", 0.125);
  Json json;
  json.Set("device", std::string("NVIDIA H200"));
  json.Set("count", 3);
  json.Set("seed", 4294967295.0);
  json.Set("ratio", 1.0 / 3);
  json.Set("quick", true);
  json.Set("limits", inner);
  json.Append("rows", inner);
  json.Append("rows", inner);
  json.Set("missing", NAN);
  json.Set("count", 4);
  const auto read = nlohmann::json::parse(json.Text());
  EXPECT_EQ(read["device"], "NVIDIA H200");
  EXPECT_EQ(read["count"], 4);
  EXPECT_EQ(read["seed"], 4294967295u);
  EXPECT_EQ(read["ratio"], 0.333333333);
  EXPECT_EQ(read["quick"], true);
  EXPECT_EQ(read["limits"]["median"], 0.125);
  EXPECT_EQ(read["rows"].size(), 2u);
  EXPECT_EQ(read["rows"][1]["name"], "G1 \"x\" \\ y\n\t\x01");
  EXPECT_TRUE(read["missing"].is_null());
  EXPECT_EQ(nlohmann::json::parse(Json().Text()).size(), 0u);
}

// As on a full disk.
TEST(JsonTest, WhatCannotBeWrittenLeavesTheFileAsItWas) {
  const std::string path =
      ::testing::TempDir() + "json_test." + std::to_string(getpid()) + ".json";
  Json json;
  json.Set("rows", 1);
  ASSERT_TRUE(json.Write(path));
  json.Set("more", std::string(1000, 'x'));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little = {100, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const bool written = json.Write(path);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(written);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path)).size(), 1u);
  EXPECT_FALSE(std::ifstream(path + ".new").good());
  ASSERT_TRUE(json.Write(path));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path)).size(), 2u);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace refract::bench
