// Counters of a port, from trees as sysfs shows them.
#include "transport/verbs/device/port_counters.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace refract::transport::verbs {
namespace {

class PortCountersTest : public testing::Test {
 protected:
  PortCountersTest() {
    std::string name = testing::TempDir() + "/countersXXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~PortCountersTest() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::filesystem::path root_;
};

TEST_F(PortCountersTest, ReadsThePortsOwnAndPrefersHwCounters) {
  Put("ports/1/hw_counters/np_cnp_sent", "12\n");
  Put("ports/2/hw_counters/np_cnp_sent", "18446744073709551615\n");
  Put("ports/1/counters/port_xmit_data", "7\n");
  Put("ports/1/counters/np_cnp_sent", "99\n");
  EXPECT_EQ(ReadPortCounter(root_.string(), 1, "np_cnp_sent"), 12u);
  EXPECT_EQ(ReadPortCounter(root_.string(), 2, "np_cnp_sent"), ~uint64_t{0});
  EXPECT_EQ(ReadPortCounter(root_.string(), 1, "port_xmit_data"), 7u);
}

TEST_F(PortCountersTest, WhatIsNoNumberIsNoCounter) {
  EXPECT_EQ(ReadPortCounter(root_.string(), 1, "np_cnp_sent"), std::nullopt);
  for (const char* text : {"", "\n", "N/A (no PMA)\n", "-1\n", "12 13\n",
                           "18446744073709551616\n"}) {
    Put("ports/1/hw_counters/np_cnp_sent", text);
    EXPECT_EQ(ReadPortCounter(root_.string(), 1, "np_cnp_sent"), std::nullopt)
        << text;
  }
  // The other folder counts then.
  Put("ports/1/counters/np_cnp_sent", "3\n");
  EXPECT_EQ(ReadPortCounter(root_.string(), 1, "np_cnp_sent"), 3u);
  EXPECT_EQ(ReadPortCounter(root_.string() + "/missing", 1, "np_cnp_sent"),
            std::nullopt);
}

}  // namespace
}  // namespace refract::transport::verbs
