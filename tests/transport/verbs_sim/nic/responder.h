#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RESPONDER_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RESPONDER_H_

// The answering half of a queue pair: checks and executes requests in order,
// and sends acknowledgements and read responses.

#include <cstdint>
#include <deque>

#include "tests/transport/verbs_sim/nic/memory_table.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

class QueuePairState;

class Responder final : public PacketSource {
 public:
  explicit Responder(QueuePairState& owner) : owner_(owner) {}

  void Start(uint64_t expected_psn) { expected_psn_ = expected_psn; }
  void OnRequest(const Packet& packet);

  bool HasPacket() const override;
  bool Fill(Packet& packet) override;

  void Reset();

 private:
  // In the order of the requests.
  struct Reply {
    PacketKind kind = PacketKind::kAck;
    NakCode nak = NakCode::kSequence;
    uint64_t psn = 0;  // of a read, of its first response
    // Reads.
    uint64_t address = 0;
    uint32_t key = 0;
    uint64_t bytes = 0;
    uint64_t packets = 1;
    uint64_t next = 0;
    Picoseconds ready_at = 0;
  };

  void OnDuplicate(const PacketHeader& header);
  void Execute(const Packet& packet);
  void ExecuteRead(const PacketHeader& header);
  void ExecuteWrite(const Packet& packet);
  void ExecuteSend(const Packet& packet);
  // Takes a receive request for a message that ends with `header`. False: there
  // is none, or its completion has no place; the sender was told.
  bool Consume(const PacketHeader& header, ibv_wc_status status,
               ibv_wc_opcode opcode, uint32_t bytes);
  void PushRead(const PacketHeader& header);
  void Send(const Reply& reply);
  void FillFrom(const Reply& reply, PacketHeader& header) const;
  // The request `psn` is refused for good: the requester fails, and so does
  // this queue pair.
  void Refuse(uint64_t psn, NakCode code);
  void FailAfterRefusal(NakCode code);
  void AddMemoryViolation(absl::string_view verb, MemoryError error,
                          uint64_t address, uint64_t bytes);

  QueuePairState& owner_;
  uint64_t expected_psn_ = 0;
  bool told_sequence_ = false;  // until the expected packet comes
  bool refusing_ = false;       // a NAK waits; requests are not looked at
  std::deque<Reply> replies_;
  // The current write.
  uint64_t write_address_ = 0;
  uint64_t write_left_ = 0;
  uint64_t write_bytes_ = 0;
  uint32_t write_key_ = 0;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RESPONDER_H_
