#ifndef REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_
#define REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_

// Requests to run a DeviceModel on, without a transport.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_node/device/device.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "transport/links/channel.h"
#include "transport/links/link_memory.h"
#include "transport/loop/waker.h"
#include "transport/memory/arena.h"
#include "transport/memory/mapping.h"

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

  // Tensors of the reply that was allocated last.
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

// Executes `batch` as the scheduler has a device of steps do it: a single
// request of more than `most` rows in about equal steps.
inline void ExecuteInSteps(const DeviceModel& model, Batch& batch, int64_t most,
                           runtime::RowBuffers& buffers) {
  if (batch.members.size() != 1 || batch.rows <= most) {
    return model.ExecuteBatch(batch, buffers);
  }
  int64_t left = batch.rows;
  while (left > 0) {
    batch.rows = left / ((left - 1) / most + 1);
    model.ExecuteBatch(batch, buffers);
    if (!batch.members[0].status.ok()) return;
    batch.first_row += batch.rows;
    left -= batch.rows;
  }
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SLOT_CALL_H_
