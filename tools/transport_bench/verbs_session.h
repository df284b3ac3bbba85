#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_SESSION_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_SESSION_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "base/status_macros.h"
#include "tools/transport_bench/subject.h"
#include "tools/transport_bench/verbs_port.h"
#include "tools/transport_bench/waiter.h"
#include "transport/memory/mapping.h"

namespace refract::transport_bench {

// One end of a raw connection (verbs_yardstick.h).
class VerbsSession : public Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Create(const VerbsPort& port,
                                                         const Setup& setup);
  absl::Status Run(const Work& work, Recorder& recorder) override;

 private:
  template <auto Close>
  struct Closer {
    template <typename T>
    void operator()(T* object) const {
      Close(object);
    }
  };
  // What the other side must know; crosses as it lies in memory.
  struct Address {
    uint32_t queue_pair = 0;
    uint32_t key = 0;
    uint64_t memory = 0;
    uint64_t ring_bytes = 0;
    ibv_gid gid = {};
    uint16_t lid = 0;
  };
  enum Ring { kInbox, kSource, kLocal, kNumRings };

  explicit VerbsSession(Side side)
      : side_(side),
        peer_(side == Side::kInitiator ? Side::kResponder : Side::kInitiator) {}

  absl::Status OpenDevice(const VerbsPort& port, const Work& work);
  absl::Status Connect(const VerbsPort& port, const Address& peer);
  absl::Status Modify(ibv_qp_attr attributes, int mask);

  absl::Status PingPong(Recorder& recorder);
  absl::Status Read(Recorder& recorder);
  absl::Status Stream(Recorder& recorder);

  // Message i between its slots of the rings. `bytes` 0: nothing but the
  // immediate.
  absl::Status Post(ibv_wr_opcode opcode, int i, size_t bytes);
  absl::Status PostReceives(int count);
  absl::Status Progress();
  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) REFRACT_RETURN_IF_ERROR(Progress());
    return absl::OkStatus();
  }
  std::byte* Slot(Ring ring, int i) const;
  size_t SlotOffset(int i) const;

  const Side side_;
  const Side peer_;
  std::unique_ptr<ibv_context, Closer<ibv_close_device>> context_;
  std::unique_ptr<ibv_pd, Closer<ibv_dealloc_pd>> domain_;
  std::unique_ptr<ibv_comp_channel, Closer<ibv_destroy_comp_channel>> channel_;
  std::unique_ptr<ibv_cq, Closer<ibv_destroy_cq>> queue_;
  std::shared_ptr<const transport::Mapping> memory_;
  std::unique_ptr<ibv_mr, Closer<ibv_dereg_mr>> registration_;
  std::unique_ptr<ibv_qp, Closer<ibv_destroy_qp>> pair_;
  Address own_;
  Address remote_;
  uint32_t max_inline_ = 0;
  uint8_t max_reads_ = 0;

  Work work_;
  Waiter waiter_;
  bool armed_ = false;
  // Of this run.
  int posted_ = 0;
  int sent_ = 0;
  int received_ = 0;
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_SESSION_H_
