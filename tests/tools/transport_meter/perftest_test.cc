#include "tools/transport_meter/perftest.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::transport_meter {
namespace {

using testing::HasSubstr;

// Output of perftest 6.06.
constexpr char kLatency[] = R"(
************************************
* Waiting for client to connect... *
************************************
---------------------------------------------------------------------------------------
                    Send Latency Test
 Dual-port       : OFF		Device         : rxe0
 Number of qps   : 1		Transport type : IB
 local address: LID 0000 QPN 0x0011 PSN 0x8e1b22
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          13.52          148.83       15.25       	       16.03       	3.21   		48.50   		148.83
---------------------------------------------------------------------------------------
)";

constexpr char kBandwidth[] = R"(
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             50.00              48.00		   0.000768
---------------------------------------------------------------------------------------
)";

TEST(PerftestTest, DoublesHalvesOfRoundTrips) {
  const auto send = ParsePerftest("ib_send_lat", kLatency);
  ASSERT_TRUE(send.ok()) << send.status();
  EXPECT_DOUBLE_EQ(send->p50_us, 30.5);
  EXPECT_DOUBLE_EQ(send->mean_us, 32.06);
  EXPECT_DOUBLE_EQ(send->p99_us, 97);
  EXPECT_TRUE(std::isnan(send->bytes_per_s));
  const auto read = ParsePerftest("ib_read_lat", kLatency);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_DOUBLE_EQ(read->p50_us, 15.25);
}

TEST(PerftestTest, CountsItsMegabytesInBinary) {
  const auto figures = ParsePerftest("ib_write_bw", kBandwidth);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_DOUBLE_EQ(figures->bytes_per_s, 48.0 * 1024 * 1024);
  EXPECT_TRUE(std::isnan(figures->p50_us));
}

TEST(PerftestTest, KeepsInfinityForTheRoundsToDiscard) {
  std::string output = kLatency;
  output.replace(output.find("15.25"), 5, "  inf");
  const auto figures = ParsePerftest("ib_send_lat", output);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_TRUE(std::isinf(figures->p50_us));
}

TEST(PerftestTest, RefusesWhatIsNoResult) {
  EXPECT_THAT(std::string(ParsePerftest("ib_send_lat", "Couldn't connect\n")
                              .status()
                              .message()),
              HasSubstr("ib_send_lat has no results"));
  // The columns of another test.
  EXPECT_TRUE(absl::IsInvalidArgument(
      ParsePerftest("ib_send_lat", kBandwidth).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(ParsePerftest("ib_write_bw", kLatency).status()));
  std::string output = kLatency;
  output.replace(output.find("15.25"), 5, "15,25");
  EXPECT_TRUE(
      absl::IsInvalidArgument(ParsePerftest("ib_send_lat", output).status()));
}

}  // namespace
}  // namespace refract::transport_meter
