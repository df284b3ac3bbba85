#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_SIM_OBJECTS_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_SIM_OBJECTS_H_

// The objects of verbs/api.h: each takes the lock, passes time in automatic
// mode, and calls the state behind it. Destroying an object that others still
// use is a violation; the state then lives as long as its users do.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"
#include "tests/transport/verbs_sim/nic/completion_queue.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"
#include "tests/transport/verbs_sim/nic/receive_queue.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

inline absl::Status TooMany(absl::string_view what, uint64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the device has no more than ", limit, " ", what));
}

// Their common base. Created with the lock held, destroyed without.
class SimObject {
 protected:
  SimObject(std::shared_ptr<Simulation> simulation, Nic& nic,
            std::shared_ptr<Context> context)
      : simulation_(std::move(simulation)),
        nic_(nic),
        context_(std::move(context)) {
    ++context_->objects;
  }

  const std::shared_ptr<Simulation> simulation_;
  Nic& nic_;
  const std::shared_ptr<Context> context_;
};

// Base of objects in a protection domain.
class SimDomainObject : SimObject {
 protected:
  SimDomainObject(std::shared_ptr<Simulation> simulation, Nic& nic,
                  std::shared_ptr<Context> context,
                  std::shared_ptr<Domain> domain)
      : SimObject(std::move(simulation), nic, std::move(context)),
        domain_(std::move(domain)) {
    ++domain_->objects;
  }
  // With the lock held.
  void Leave() {
    --context_->objects;
    --domain_->objects;
  }

  using SimObject::nic_;
  using SimObject::simulation_;
  const std::shared_ptr<Domain> domain_;
};

class SimDomain final : public verbs::ProtectionDomain, SimObject {
 public:
  SimDomain(std::shared_ptr<Simulation> simulation, Nic& nic,
            std::shared_ptr<Context> context);
  ~SimDomain() override;

  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> Register(
      void* data, size_t bytes, int access) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;

 private:
  const std::shared_ptr<Domain> domain_ = std::make_shared<Domain>();
};

class SimMemoryRegion final : public verbs::MemoryRegion, SimDomainObject {
 public:
  SimMemoryRegion(std::shared_ptr<Simulation> simulation, Nic& nic,
                  std::shared_ptr<Context> context,
                  std::shared_ptr<Domain> domain)
      : SimDomainObject(std::move(simulation), nic, std::move(context),
                        std::move(domain)) {}
  ~SimMemoryRegion() override;

  void Set(const MemoryKeys& keys) { keys_ = keys; }
  uint32_t local_key() const override { return keys_.local; }
  uint32_t remote_key() const override { return keys_.remote; }

 private:
  MemoryKeys keys_;
};

class SimChannel final : public verbs::CompletionChannel, SimObject {
 public:
  SimChannel(std::shared_ptr<Simulation> simulation, Nic& nic,
             std::shared_ptr<Context> context, UniqueFd fd);
  ~SimChannel() override;

  const std::shared_ptr<ChannelState>& state() const { return state_; }
  int fd() const override { return state_->event_fd.get(); }
  int TakeEvents() override;

 private:
  const std::shared_ptr<ChannelState> state_;
};

class SimCompletionQueue final : public verbs::CompletionQueue, SimObject {
 public:
  SimCompletionQueue(std::shared_ptr<Simulation> simulation, Nic& nic,
                     std::shared_ptr<Context> context,
                     std::shared_ptr<CompletionQueueState> state)
      : SimObject(std::move(simulation), nic, std::move(context)),
        state_(std::move(state)) {}
  ~SimCompletionQueue() override;

  const std::shared_ptr<CompletionQueueState>& state() const { return state_; }
  int Poll(int count, ibv_wc* out) override;
  int Arm(bool solicited_only) override;

 private:
  std::shared_ptr<CompletionQueueState> state_;
};

class SimSharedReceiveQueue final : public verbs::SharedReceiveQueue,
                                    SimObject {
 public:
  SimSharedReceiveQueue(std::shared_ptr<Simulation> simulation, Nic& nic,
                        std::shared_ptr<Context> context,
                        std::shared_ptr<ReceiveQueueState> state)
      : SimObject(std::move(simulation), nic, std::move(context)),
        state_(std::move(state)) {}
  ~SimSharedReceiveQueue() override;

  const std::shared_ptr<ReceiveQueueState>& state() const { return state_; }
  int Post(ibv_recv_wr* list, ibv_recv_wr** bad) override;

 private:
  std::shared_ptr<ReceiveQueueState> state_;
};

class SimQueuePair final : public verbs::QueuePair, SimDomainObject {
 public:
  SimQueuePair(std::shared_ptr<Simulation> simulation, Nic& nic,
               std::shared_ptr<Context> context, std::shared_ptr<Domain> domain,
               std::shared_ptr<QueuePairState> state)
      : SimDomainObject(std::move(simulation), nic, std::move(context),
                        std::move(domain)),
        state_(std::move(state)) {}
  ~SimQueuePair() override;

  uint32_t number() const override { return state_->number; }
  uint32_t max_inline() const override { return state_->limits.inline_bytes; }
  int Modify(const ibv_qp_attr& attributes, int mask) override;
  int PostSend(ibv_send_wr* list, ibv_send_wr** bad) override;

 private:
  std::shared_ptr<QueuePairState> state_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_SIM_OBJECTS_H_
