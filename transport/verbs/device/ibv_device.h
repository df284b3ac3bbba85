#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_IBV_DEVICE_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_IBV_DEVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

struct ContextCloser {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
struct DomainFreer {
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
};

class IbvDomain final : public ProtectionDomain {
 public:
  // Takes ownership of `domain`. The device `name` must outlive this object.
  IbvDomain(ibv_pd* domain, absl::string_view name)
      : domain_(domain), name_(name) {}

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data,
                                                         size_t bytes,
                                                         int access) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;

 private:
  const std::unique_ptr<ibv_pd, DomainFreer> domain_;
  const absl::string_view name_;
};

// A device of libibverbs.
class IbvDevice final : public Device {
 public:
  // Takes ownership of `context`.
  static absl::StatusOr<std::unique_ptr<Device>> Create(ibv_context* context);

  absl::string_view name() const override { return name_; }
  const ibv_device_attr& attributes() const override { return attributes_; }
  absl::StatusOr<std::vector<PortInfo>> Ports() const override;
  absl::StatusOr<std::unique_ptr<ProtectionDomain>> CreateDomain() override;
  absl::StatusOr<std::unique_ptr<CompletionChannel>> CreateChannel() override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      int entries, CompletionChannel* channel) override;
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries) override;
  int async_fd() const override { return context_->async_fd; }
  std::optional<AsyncEvent> TakeAsyncEvent() override;
  std::optional<uint64_t> HardwareCounter(
      uint8_t port, absl::string_view name) const override;

 private:
  explicit IbvDevice(ibv_context* context);
  absl::Status ErrorOf(absl::string_view call) const;

  const std::unique_ptr<ibv_context, ContextCloser> context_;
  const std::string name_;
  ibv_device_attr attributes_ = {};
  // Domain of the shared receive queues.
  std::unique_ptr<ibv_pd, DomainFreer> domain_;
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_IBV_DEVICE_H_
