#ifndef REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_
#define REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_

// Requests to run a DeviceModel on, without a transport.

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport/memory/arena.h"
#include "transport/links/channel.h"
#include "transport/links/link_memory.h"
#include "transport/memory/mapping.h"
#include "transport/loop/waker.h"

namespace refract::gpu_node {

// Tensors in memory of the test, answers in an arena.
class SlotCall : public transport::ServerCall {
 public:
  SlotCall(std::vector<base::TensorView> tensors,
           std::shared_ptr<transport::LinkMemory> memory, bool settled)
      : tensors_(std::move(tensors)),
        memory_(std::move(memory)),
        settled_(settled) {}

  size_t model() const override { return 0; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  absl::Span<const base::TensorView> tensors() const override {
    return tensors_;
  }
  bool settled() const override { return settled_; }
  bool abandoned() const override { return false; }
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> specs) override {
    specs_.assign(specs.begin(), specs.end());
    auto message = transport::NewMessage(
        memory_, transport::MessageKind::kResponse, specs);
    if (!message.ok()) return message.status();
    return transport::OutgoingMessage(*std::move(message));
  }
  // The scheduler answers; nothing here does.
  void Reply(transport::OutgoingMessage) override { FAIL(); }
  void Fail(const absl::Status& why) override { FAIL() << why; }

  // Of the reply that was allocated last.
  const std::vector<base::TensorSpec>& reply_specs() const { return specs_; }

 private:
  const std::vector<base::TensorView> tensors_;
  const std::shared_ptr<transport::LinkMemory> memory_;
  const bool settled_;
  std::vector<base::TensorSpec> specs_;
};

inline std::shared_ptr<transport::LinkMemory> NewSlotMemory(
    size_t bytes = 1 << 20) {
  const auto waker = *transport::ThreadWaker::Create();
  const auto arena = [&] {
    const transport::Region region{0, *transport::Mapping::Anonymous(bytes)};
    return std::make_shared<transport::Arena>(region, 0, bytes, waker);
  };
  return std::make_shared<transport::LinkMemory>(
      transport::Region{}, arena(), arena(), arena(), waker, bytes, 1);
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_
