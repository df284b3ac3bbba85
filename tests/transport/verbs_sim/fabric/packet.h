#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_PACKET_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_PACKET_H_

// A packet of the simulated fabric, and the pool that packets live in.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/transport/verbs_sim/fabric/wire_model.h"

namespace refract::transport::sim {

enum class PacketKind : uint8_t {
  kWrite,
  kSend,
  kReadRequest,
  kReadResponse,
  kAck,
  kNak,
  kRnrNak,
  kCnp,
};

enum class NakCode : uint8_t {
  kSequence,
  kInvalidRequest,
  kRemoteAccess,
  kRemoteOperation,
};

// The fields of a packet that fault rules see.
struct PacketHeader {
  PacketKind kind = PacketKind::kAck;
  NakCode nak = NakCode::kSequence;
  uint8_t rnr_timer = 0;
  bool first = false;  // of its message; carries the remote address
  bool last = false;
  bool ack_request = false;
  bool solicited = false;
  bool has_immediate = false;
  bool congestion = false;  // marked on its way
  bool corrupt = false;     // the receiver's CRC fails
  uint32_t source_nic = 0;
  uint32_t destination_nic = 0;
  uint32_t source_qp = 0;
  uint32_t destination_qp = 0;
  // Not modulo 2^24. A read response and an acknowledgement have that of
  // the request packet it answers.
  uint64_t psn = 0;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint32_t immediate = 0;      // network order
  uint64_t message_bytes = 0;  // of a first packet; of a read, wanted bytes
  uint32_t payload_bytes = 0;

  uint32_t wire_bytes() const {
    uint32_t bytes = kPacketBytes + payload_bytes;
    switch (kind) {
      case PacketKind::kWrite:
        if (first) bytes += kRdmaHeaderBytes;
        break;
      case PacketKind::kSend:
        break;
      case PacketKind::kReadRequest:
        bytes += kRdmaHeaderBytes;
        break;
      case PacketKind::kReadResponse:
        if (first || last) bytes += kAckHeaderBytes;
        break;
      case PacketKind::kAck:
      case PacketKind::kNak:
      case PacketKind::kRnrNak:
        bytes += kAckHeaderBytes;
        break;
      case PacketKind::kCnp:
        bytes += kCnpPaddingBytes;
        break;
    }
    if (has_immediate) bytes += kImmediateBytes;
    return bytes;
  }
};

struct Packet {
  PacketHeader header;
  std::array<std::byte, kMaxMtuBytes> payload;
};

// Reuses packets; a run of millions allocates only as many as travel at once.
class PacketPool {
 public:
  // With a new header; the payload is unchanged.
  Packet* Take() {
    if (free_.empty()) {
      // Default-initialised: clearing the payload would be wasted.
      all_.push_back(std::unique_ptr<Packet>(new Packet));
      free_.push_back(all_.back().get());
    }
    Packet* packet = free_.back();
    free_.pop_back();
    packet->header = PacketHeader();
    return packet;
  }
  void Return(Packet* packet) { free_.push_back(packet); }

 private:
  std::vector<std::unique_ptr<Packet>> all_;
  std::vector<Packet*> free_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_PACKET_H_
