#ifndef REFRACT_TRANSPORT_SERVER_CALL_H_
#define REFRACT_TRANSPORT_SERVER_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/channel.h"
#include "transport/link_memory.h"

namespace refract::transport {

// Answers on their way from any thread to a session's poller. Thread-safe.
// Shared by the session and its calls, which may outlive it.
class ReplyQueue {
 public:
  struct Reply {
    uint64_t id = 0;
    // Null: not even a failure could be written.
    OutgoingMessage::ImplPtr message;
  };

  explicit ReplyQueue(std::shared_ptr<LinkMemory> memory)
      : memory_(std::move(memory)) {}

  // Drops the answer when the session is over.
  void Push(Reply reply);
  std::vector<Reply> Take();
  void Close();
  const std::shared_ptr<LinkMemory>& memory() const { return memory_; }

 private:
  const std::shared_ptr<LinkMemory> memory_;
  absl::Mutex mu_;
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Set by the session when nobody waits for an answer any more.
using AbandonedFlag = std::shared_ptr<std::atomic<bool>>;

class ServerCallImpl final : public ServerCall {
 public:
  ServerCallImpl(uint64_t id, size_t model, absl::Time deadline,
                 IncomingMessage::ImplPtr message,
                 std::shared_ptr<ReplyQueue> replies, AbandonedFlag abandoned);
  ~ServerCallImpl() override;

  size_t model() const override { return model_; }
  absl::Time deadline() const override { return deadline_; }
  absl::Span<const base::TensorView> tensors() const override;
  bool settled() const override;
  bool abandoned() const override;
  absl::StatusOr<OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> tensors) override;
  void Reply(OutgoingMessage message) override;
  void Fail(const absl::Status& status) override;

 private:
  const uint64_t id_;
  const size_t model_;
  const absl::Time deadline_;
  const IncomingMessage::ImplPtr message_;
  const std::shared_ptr<ReplyQueue> replies_;
  const AbandonedFlag abandoned_;
  bool answered_ = false;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SERVER_CALL_H_
