#ifndef REFRACT_TESTS_TRANSPORT_SIM_SPY_LIBRARY_H_
#define REFRACT_TESTS_TRANSPORT_SIM_SPY_LIBRARY_H_

// Verbs that forward every call and record what the device is asked to do:
// registrations, and which memory requests move to where. Allocations of the
// device behind are not counted by AllocationCounter.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tests/transport/testing/allocation_counter.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

struct SpyNotes {
  struct Request {
    ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
    const std::byte* local = nullptr;
    uint64_t remote = 0;
    size_t bytes = 0;
  };
  uint64_t registrations = 0;
  std::vector<Request> requests;  // those with bytes
};

class SpyCompletionQueue final : public verbs::CompletionQueue {
 public:
  explicit SpyCompletionQueue(std::unique_ptr<verbs::CompletionQueue> inner)
      : inner_(std::move(inner)) {}
  verbs::CompletionQueue* inner() { return inner_.get(); }

  int Poll(int count, ibv_wc* out) override {
    const AllocationCounter::Pause pause;
    return inner_->Poll(count, out);
  }
  int Arm(bool solicited_only) override {
    const AllocationCounter::Pause pause;
    return inner_->Arm(solicited_only);
  }

 private:
  const std::unique_ptr<verbs::CompletionQueue> inner_;
};

class SpyReceiveQueue final : public verbs::SharedReceiveQueue {
 public:
  explicit SpyReceiveQueue(std::unique_ptr<verbs::SharedReceiveQueue> inner)
      : inner_(std::move(inner)) {}
  verbs::SharedReceiveQueue* inner() { return inner_.get(); }

  int Post(ibv_recv_wr* list, ibv_recv_wr** bad) override {
    const AllocationCounter::Pause pause;
    return inner_->Post(list, bad);
  }

 private:
  const std::unique_ptr<verbs::SharedReceiveQueue> inner_;
};

class SpyQueuePair final : public verbs::QueuePair {
 public:
  SpyQueuePair(std::unique_ptr<verbs::QueuePair> inner, SpyNotes* notes)
      : inner_(std::move(inner)), notes_(notes) {}

  uint32_t number() const override { return inner_->number(); }
  uint32_t max_inline() const override { return inner_->max_inline(); }
  int Modify(const ibv_qp_attr& attributes, int mask) override {
    return inner_->Modify(attributes, mask);
  }
  int PostSend(ibv_send_wr* list, ibv_send_wr** bad) override {
    const AllocationCounter::Pause pause;
    for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next) {
      if (wr->num_sge == 0) continue;
      notes_->requests.push_back(
          {wr->opcode,
           reinterpret_cast<const std::byte*>(
               static_cast<uintptr_t>(wr->sg_list[0].addr)),
           wr->wr.rdma.remote_addr, wr->sg_list[0].length});
    }
    return inner_->PostSend(list, bad);
  }

 private:
  const std::unique_ptr<verbs::QueuePair> inner_;
  SpyNotes* const notes_;
};

class SpyDomain final : public verbs::ProtectionDomain {
 public:
  SpyDomain(std::unique_ptr<verbs::ProtectionDomain> inner, SpyNotes* notes)
      : inner_(std::move(inner)), notes_(notes) {}

  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> Register(
      void* data, size_t bytes, int access) override {
    ++notes_->registrations;
    return inner_->Register(data, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override {
    verbs::QueuePairOptions own = options;
    own.send_queue =
        static_cast<SpyCompletionQueue*>(options.send_queue)->inner();
    own.receive_queue =
        static_cast<SpyCompletionQueue*>(options.receive_queue)->inner();
    own.shared_receive_queue =
        static_cast<SpyReceiveQueue*>(options.shared_receive_queue)->inner();
    REFRACT_ASSIGN_OR_RETURN(auto pair, inner_->CreateQueuePair(own));
    return std::make_unique<SpyQueuePair>(std::move(pair), notes_);
  }

 private:
  const std::unique_ptr<verbs::ProtectionDomain> inner_;
  SpyNotes* const notes_;
};

class SpyDevice final : public verbs::Device {
 public:
  SpyDevice(std::unique_ptr<verbs::Device> inner, SpyNotes* notes)
      : inner_(std::move(inner)), notes_(notes) {}

  absl::string_view name() const override { return inner_->name(); }
  const ibv_device_attr& attributes() const override {
    return inner_->attributes();
  }
  absl::StatusOr<std::vector<verbs::PortInfo>> Ports() const override {
    return inner_->Ports();
  }
  absl::StatusOr<std::unique_ptr<verbs::ProtectionDomain>> CreateDomain()
      override {
    REFRACT_ASSIGN_OR_RETURN(auto domain, inner_->CreateDomain());
    return std::make_unique<SpyDomain>(std::move(domain), notes_);
  }
  absl::StatusOr<std::unique_ptr<verbs::CompletionChannel>> CreateChannel()
      override {
    return inner_->CreateChannel();
  }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      int entries, verbs::CompletionChannel* channel) override {
    REFRACT_ASSIGN_OR_RETURN(auto queue,
                             inner_->CreateCompletionQueue(entries, channel));
    return std::make_unique<SpyCompletionQueue>(std::move(queue));
  }
  absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>>
  CreateSharedReceiveQueue(uint32_t entries) override {
    REFRACT_ASSIGN_OR_RETURN(auto queue,
                             inner_->CreateSharedReceiveQueue(entries));
    return std::make_unique<SpyReceiveQueue>(std::move(queue));
  }
  int async_fd() const override { return inner_->async_fd(); }
  std::optional<verbs::AsyncEvent> TakeAsyncEvent() override {
    return inner_->TakeAsyncEvent();
  }
  std::optional<uint64_t> HardwareCounter(
      uint8_t port, absl::string_view name) const override {
    return inner_->HardwareCounter(port, name);
  }

 private:
  const std::unique_ptr<verbs::Device> inner_;
  SpyNotes* const notes_;
};

// Not thread-safe: for tests that step the time.
class SpyLibrary final : public verbs::Library {
 public:
  // `inner` outlives this, and this what it opened.
  explicit SpyLibrary(verbs::Library& inner) : inner_(inner) {}

  SpyNotes& notes() { return notes_; }
  absl::StatusOr<std::vector<std::string>> DeviceNames() const override {
    return inner_.DeviceNames();
  }
  absl::StatusOr<std::unique_ptr<verbs::Device>> Open(
      absl::string_view name) const override {
    REFRACT_ASSIGN_OR_RETURN(auto device, inner_.Open(name));
    return std::make_unique<SpyDevice>(std::move(device), &notes_);
  }

 private:
  verbs::Library& inner_;
  mutable SpyNotes notes_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_SIM_SPY_LIBRARY_H_
