#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_REQUESTER_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_REQUESTER_H_

// The sending half of a queue pair: the send queue, packets of requests,
// acknowledgements, go-back-N retransmission (IBTA 1.4 chapter 9.7).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/nic/memory_table.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

class QueuePairState;

class Requester final : public PacketSource {
 public:
  explicit Requester(QueuePairState& owner) : owner_(owner) {}

  // 0 or an errno.
  int Post(const ibv_send_wr& request);
  // Number of requests posted so far; a doorbell carries it.
  uint32_t posted() const { return posted_; }
  void OnDoorbell(uint32_t position);
  // Up to `position`, the slots of the send queue may be posted to again.
  void FreeSlots(uint32_t position);

  bool HasPacket() const override;
  bool Fill(Packet& packet) override;

  void Start(uint64_t first_psn);
  void OnAck(uint64_t psn);
  void OnNak(const PacketHeader& header);
  void OnRnrNak(const PacketHeader& header);
  void OnReadResponse(const Packet& packet);
  bool AckTimerIsDue(Picoseconds at);
  void OnAckTimeout();
  void OnRnrTimer();

  // Completes everything that was posted with IBV_WC_WR_FLUSH_ERR.
  void Flush();
  // Drops all requests without completions.
  void Reset();
  // Whether a request that the device works on names this region.
  bool Uses(uint32_t local_key) const;

 private:
  struct Request {
    uint32_t position = 0;  // in the send queue, from 1
    uint64_t id = 0;
    ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
    bool signaled = false;
    bool solicited = false;
    bool fence = false;
    uint32_t immediate = 0;
    uint64_t remote_address = 0;
    uint32_t remote_key = 0;
    std::vector<ibv_sge> segments;
    std::vector<std::byte> inline_data;
    bool is_inline = false;
    uint64_t bytes = 0;
    // Hash of each packet's payload when posted; empty: nothing to check.
    std::vector<uint64_t> fingerprints;
    uint64_t first_psn = 0;
    uint64_t packets = 1;  // of a read: responses
    uint64_t done = 0;     // packets acknowledged, or responses received
    ibv_wc_status error = IBV_WC_SUCCESS;  // found by this device

    bool is_read() const { return opcode == IBV_WR_RDMA_READ; }
    bool has_immediate() const {
      return opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
             opcode == IBV_WR_SEND_WITH_IMM;
    }
  };

  int CheckAndCopy(const ibv_send_wr& wr, Request& request);
  // Copies payload [offset, offset + bytes) of a write or send.
  bool Gather(const Request& request, uint64_t offset, uint64_t bytes,
              std::byte* out, MemoryError& error) const;
  bool Scatter(const Request& request, uint64_t offset, const std::byte* data,
               uint64_t bytes, MemoryError& error) const;
  void TakeFingerprints(Request& request) const;
  // Whether `payload` equals the posted contents of packet `index`.
  bool IsAsPosted(const Request& request, uint64_t index,
                  const std::byte* payload) const;
  // Records a violation unless packet `index` still has its posted contents.
  void CheckSource(const Request& request, uint64_t index);
  uint64_t PacketBytes(const Request& request, uint64_t index) const;

  bool Unacknowledged() const;
  // Marks packets of writes and sends below `psn` as arrived, up to the first
  // read that is not complete. False: nothing new.
  bool AcknowledgeBelow(uint64_t psn);
  // Whether the oldest request is a read that `psn` says was answered, though
  // its responses did not come.
  bool MissesReadBefore(uint64_t psn) const;
  void CompleteOldest();
  void FailOldest(ibv_wc_status status);
  // Fails the oldest request if this device found an error in it.
  void FailIfWrong();
  void FoundError(Request& request, ibv_wc_status status,
                  absl::string_view what);
  void Emit(const Request& request, ibv_wc_status status);
  void MadeProgress();
  // Sends again from the first missing packet, if retries are left.
  void Retry();
  void GoBack();
  void StartTimer();

  QueuePairState& owner_;
  std::deque<Request> queue_;  // oldest first, until the device is done
  uint32_t posted_ = 0;
  uint32_t freed_ = 0;
  uint32_t rung_ = 0;
  uint64_t next_psn_ = 0;   // first PSN of the next posted request
  uint64_t psn_limit_ = 0;  // first PSN that was never sent
  // Next to send.
  size_t cursor_ = 0;
  uint64_t cursor_packet_ = 0;
  uint32_t reads_under_way_ = 0;

  uint8_t retries_left_ = 0;
  uint8_t rnr_retries_left_ = 0;
  bool waits_for_receiver_ = false;  // after an RNR NAK
  bool read_retried_ = false;        // responses beyond the gap are old ones
  Picoseconds deadline_ = 0;         // of the ack timer; 0: stopped
  Picoseconds timer_event_at_ = 0;   // 0: none
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_REQUESTER_H_
