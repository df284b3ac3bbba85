#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_WIRE_MODEL_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_WIRE_MODEL_H_

// Sizes and times of RoCEv2 over Ethernet with reliable connected queue pairs.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace refract::transport::sim {

// Virtual time since the start. A byte takes 80 ps at 100 Gb/s, so nanoseconds
// would round every packet; 63 bits of picoseconds last 106 days.
using Picoseconds = int64_t;

inline Picoseconds ToPicoseconds(absl::Duration duration) {
  // absl::Duration counts quarters of a nanosecond.
  return absl::ToInt64Nanoseconds(duration * 4) * 250;
}
inline absl::Duration ToDuration(Picoseconds time) {
  return absl::Nanoseconds(time / 1000) + absl::Nanoseconds(time % 1000) / 1000;
}

// Headers, by layer (IBTA 1.4 chapter 9 and annex A17; IEEE 802.3).
inline constexpr uint32_t kEthernetBytes = 8 + 14 + 4 + 12;  // preamble to gap
inline constexpr uint32_t kIpUdpBytes = 20 + 8;
inline constexpr uint32_t kTransportBytes = 12 + 4;  // BTH, invariant CRC
inline constexpr uint32_t kPacketBytes =
    kEthernetBytes + kIpUdpBytes + kTransportBytes;
static_assert(kPacketBytes == 82);
inline constexpr uint32_t kRdmaHeaderBytes = 16;  // RETH
inline constexpr uint32_t kAckHeaderBytes = 4;    // AETH
inline constexpr uint32_t kImmediateBytes = 4;    // ImmDt
inline constexpr uint32_t kCnpPaddingBytes = 16;  // reserved field of a CNP

// Largest path MTU.
inline constexpr uint32_t kMaxMtuBytes = 4096;

// The time an ibv_qp_attr::timeout stands for; 0 (never) has none.
inline Picoseconds AckTimeout(uint8_t timeout) {
  return Picoseconds{4'096'000} << timeout;
}

// The wait that ibv_qp_attr::min_rnr_timer stands for (IBTA 1.4 table 45), in
// units of 10 us.
inline constexpr std::array<int32_t, 32> kRnrTimer10us = {
    65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
    48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
    2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
inline Picoseconds RnrTimer(uint8_t code) {
  return Picoseconds{10'000'000} * kRnrTimer10us[code & 31];
}

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_WIRE_MODEL_H_
