#include "transport/links/server_call.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/status_macros.h"
#include "transport/messages/byte_order.h"

namespace refract::transport {

ServerCalls::ServerCalls(std::shared_ptr<LinkMemory> memory, size_t max_open)
    : memory_(std::move(memory)), replies_(max_open), abandoned_(max_open) {
  // The lowest number on top, so that warm memory is reused.
  free_numbers_.reserve(max_open);
  for (size_t i = max_open; i > 0; --i) {
    free_numbers_.push_back(static_cast<uint32_t>(i - 1));
  }
}

uint32_t ServerCalls::Open() {
  CHECK(!free_numbers_.empty())
      << "more than " << abandoned_.size() << " calls are open";
  const uint32_t number = free_numbers_.back();
  free_numbers_.pop_back();
  // The number may be that of an earlier cancelled call.
  abandoned_[number].store(false);
  return number;
}

void ServerCalls::Push(Reply reply) {
  // Push() fails after Close(): the link has ended, and the reply is dropped.
  if (replies_.Push(std::move(reply))) memory_->waker->Wake();
}

std::unique_ptr<ServerCallImpl> ServerCallImpl::Create(
    std::shared_ptr<ServerCalls> calls, uint64_t id, uint32_t number,
    size_t model, absl::Time deadline, absl::string_view request_id,
    absl::Time received, IncomingMessage::ImplPtr message) {
  void* const place = calls->storage().Take();
  return std::unique_ptr<ServerCallImpl>(::new (place) ServerCallImpl(
      std::move(calls), id, number, model, deadline, request_id, received,
      std::move(message)));
}

ServerCallImpl::ServerCallImpl(std::shared_ptr<ServerCalls> calls, uint64_t id,
                               uint32_t number, size_t model,
                               absl::Time deadline,
                               absl::string_view request_id,
                               absl::Time received,
                               IncomingMessage::ImplPtr message)
    : calls_(std::move(calls)),
      id_(id),
      number_(number),
      model_(model),
      deadline_(deadline),
      times_{received, received, received, received},
      message_(std::move(message)) {
  request_id_bytes_ = std::min(request_id.size(), request_id_.size());
  std::copy_n(request_id.data(), request_id_bytes_, request_id_.data());
}

void ServerCallImpl::operator delete(ServerCallImpl* call,
                                     std::destroying_delete_t) {
  // The call may be the last owner.
  const std::shared_ptr<ServerCalls> calls = call->calls_;
  call->~ServerCallImpl();
  calls->storage().Give(call);
}

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
  // After the answer the number may belong to another call.
  return (!answered_ && calls_->abandoned(number_)) ||
         !calls_->memory()->open.load();
}

absl::StatusOr<OutgoingMessage> ServerCallImpl::AllocateReply(
    absl::Span<const base::TensorSpec> tensors) {
  if (!calls_->memory()->open.load()) {
    return absl::UnavailableError("the client is gone");
  }
  const bool times = times_.received != absl::InfinitePast();
  // Room for the times that Reply() writes.
  const std::array<char, kCallTimesBytes> room = {};
  REFRACT_ASSIGN_OR_RETURN(
      OutgoingMessage::ImplPtr message,
      NewMessage(calls_->memory(), MessageKind::kResponse, tensors,
                 {room.data(), times ? room.size() : 0}));
  message->header.times = times;
  return OutgoingMessage(std::move(message));
}

void ServerCallImpl::SetTimes(absl::Time started, absl::Time executed,
                              absl::Time answered) {
  times_ = {times_.received, started, executed, answered};
}

void ServerCallImpl::Reply(OutgoingMessage message) {
  CHECK(!answered_.exchange(true)) << "a request was answered twice";
  OutgoingMessage::ImplPtr impl = message.TakeImpl();
  CHECK(impl != nullptr && impl->memory == calls_->memory())
      << "a reply that was not allocated by its call";
  if (impl->header.times) {
    std::byte* text =
        impl->block.data() + kHeaderBytes + impl->layout.table_bytes;
    for (const absl::Time time :
         {times_.received, times_.started, times_.executed, times_.answered}) {
      StoreLittle<int64_t>(text, absl::ToUnixNanos(time));
      text += sizeof(int64_t);
    }
  }
  calls_->Push({id_, number_, std::move(impl)});
}

void ServerCallImpl::Fail(const absl::Status& status) {
  CHECK(!answered_.exchange(true)) << "a request was answered twice";
  calls_->Push(
      {id_, number_,
       NewFailure(calls_->memory(),
                  status.ok()
                      ? absl::InternalError("a request failed without a reason")
                      : status)});
}

}  // namespace refract::transport
