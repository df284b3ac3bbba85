#ifndef REFRACT_TRANSPORT_LINKS_SERVER_CALL_H_
#define REFRACT_TRANSPORT_LINKS_SERVER_CALL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/links/channel.h"
#include "transport/links/link_memory.h"
#include "transport/loop/mailbox.h"
#include "transport/memory/storage_pool.h"
#include "transport/messages/wire.h"

namespace refract::transport {

class ServerCallImpl;

// State that a connection shares with its calls, which may outlive it: answers
// not yet taken, cancelled calls, and the memory of the call objects.
// Thread-safe, except for the connection's methods.
class ServerCalls {
 public:
  struct Reply {
    uint64_t id = 0;
    uint32_t number = 0;  // number of the call, from Open()
    // Null: even the failure could not be written.
    OutgoingMessage::ImplPtr message;
  };

  // At most `max_open` calls are open: begun, and their answer not yet taken by
  // the session.
  ServerCalls(std::shared_ptr<LinkMemory> memory, size_t max_open);

  // ------------------------------------------------- the session's thread only

  // Begins a call. Fewer than max_open calls must be open.
  uint32_t Open();
  // Call when the session took the answer: the number is free again.
  void Finish(uint32_t number) { free_numbers_.push_back(number); }
  // Call when the client cancelled an open call.
  void Abandon(uint32_t number) { abandoned_[number].store(true); }
  // Replaces the contents of `replies` by the waiting answers.
  void TakeReplies(std::vector<Reply>* replies) { replies_.Take(replies); }
  // Call at the end of the session: later answers are dropped.
  void Close() { replies_.Close(); }

  // -------------------------------------------------------------- any thread

  void Push(Reply reply);
  // For an open call.
  bool abandoned(uint32_t number) const { return abandoned_[number].load(); }
  const std::shared_ptr<LinkMemory>& memory() const { return memory_; }
  StoragePool<ServerCallImpl>& storage() { return storage_; }

 private:
  const std::shared_ptr<LinkMemory> memory_;
  StoragePool<ServerCallImpl> storage_;
  Mailbox<Reply> replies_;
  std::vector<std::atomic<bool>> abandoned_;  // by number
  std::vector<uint32_t> free_numbers_;
};

// Lies in its ServerCalls' storage, so that a request costs no allocation.
class ServerCallImpl final : public ServerCall {
 public:
  // `number`: from `calls`. `received`: InfinitePast if the client did not ask
  // for CallTimes.
  static std::unique_ptr<ServerCallImpl> Create(
      std::shared_ptr<ServerCalls> calls, uint64_t id, uint32_t number,
      size_t model, absl::Time deadline, absl::string_view request_id,
      absl::Time received, IncomingMessage::ImplPtr message);
  ~ServerCallImpl() override;
  // Runs the destructor and returns the memory to its ServerCalls, which stays
  // alive until then.
  static void operator delete(ServerCallImpl* call, std::destroying_delete_t);

  size_t model() const override { return model_; }
  absl::Time deadline() const override { return deadline_; }
  absl::Span<const base::TensorView> tensors() const override;
  bool settled() const override;
  absl::string_view request_id() const override {
    return {request_id_.data(), request_id_bytes_};
  }
  uint8_t priority() const override { return priority_; }
  void set_priority(uint8_t priority) { priority_ = priority; }
  bool abandoned() const override;
  void SetTimes(absl::Time started, absl::Time executed,
                absl::Time answered) override;
  absl::StatusOr<OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> tensors) override;
  void Reply(OutgoingMessage message) override;
  void Fail(const absl::Status& status) override;

 private:
  ServerCallImpl(std::shared_ptr<ServerCalls> calls, uint64_t id,
                 uint32_t number, size_t model, absl::Time deadline,
                 absl::string_view request_id, absl::Time received,
                 IncomingMessage::ImplPtr message);

  const std::shared_ptr<ServerCalls> calls_;
  const uint64_t id_;
  const uint32_t number_;
  const size_t model_;
  const absl::Time deadline_;
  uint8_t priority_ = 0;
  CallTimes times_;
  const IncomingMessage::ImplPtr message_;
  // Not a string: a request with an id would cost an allocation.
  size_t request_id_bytes_ = 0;
  std::array<char, kMaxRequestIdBytes> request_id_;
  std::atomic<bool> answered_ = false;  // then number_ may be reused
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_SERVER_CALL_H_
