#include "transport/server_call.h"

#include <glog/logging.h>

#include <utility>

#include "base/status_macros.h"

namespace refract::transport {

void ReplyQueue::Push(Reply reply) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    replies_.push_back(std::move(reply));
  }
  memory_->waker->Wake();
}

std::vector<ReplyQueue::Reply> ReplyQueue::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(replies_, {});
}

void ReplyQueue::Close() {
  std::vector<Reply> dropped;
  absl::MutexLock lock(&mu_);
  closed_ = true;
  dropped.swap(replies_);
}

ServerCallImpl::ServerCallImpl(uint64_t id, size_t model, absl::Time deadline,
                               IncomingMessage::ImplPtr message,
                               std::shared_ptr<ReplyQueue> replies,
                               AbandonedFlag abandoned)
    : id_(id),
      model_(model),
      deadline_(deadline),
      message_(std::move(message)),
      replies_(std::move(replies)),
      abandoned_(std::move(abandoned)) {}

ServerCallImpl::~ServerCallImpl() {
  if (!answered_) {
    Fail(absl::InternalError("the request was dropped without an answer"));
  }
}

absl::Span<const base::TensorView> ServerCallImpl::tensors() const {
  return message_->tensors;
}

bool ServerCallImpl::settled() const { return message_->settled(); }

bool ServerCallImpl::abandoned() const {
  return abandoned_->load() || !replies_->memory()->open.load();
}

absl::StatusOr<OutgoingMessage> ServerCallImpl::AllocateReply(
    absl::Span<const base::TensorSpec> tensors) {
  if (!replies_->memory()->open.load()) {
    return absl::UnavailableError("the client is gone");
  }
  REFRACT_ASSIGN_OR_RETURN(
      OutgoingMessage::ImplPtr message,
      NewMessage(replies_->memory(), MessageKind::kResponse, tensors));
  return OutgoingMessage(std::move(message));
}

void ServerCallImpl::Reply(OutgoingMessage message) {
  CHECK(!answered_) << "a request was answered twice";
  answered_ = true;
  OutgoingMessage::ImplPtr impl = message.TakeImpl();
  CHECK(impl != nullptr && impl->memory == replies_->memory())
      << "a reply that was not allocated by its call";
  replies_->Push({id_, std::move(impl)});
}

void ServerCallImpl::Fail(const absl::Status& status) {
  CHECK(!answered_) << "a request was answered twice";
  answered_ = true;
  replies_->Push(
      {id_, NewFailure(replies_->memory(),
                       status.ok() ? absl::InternalError(
                                         "a request failed without a reason")
                                   : status)});
}

}  // namespace refract::transport
