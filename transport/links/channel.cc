#include "transport/links/channel.h"

#include <glog/logging.h>

#include <utility>

#include "transport/links/link_memory.h"
#include "transport/loop/fd.h"

namespace refract::transport {

bool PeerEndedWithRequest(const absl::Status& status) {
  return IsPeerEnd(status);
}

OutgoingMessage::OutgoingMessage() = default;
OutgoingMessage::OutgoingMessage(ImplPtr impl) : impl_(std::move(impl)) {}
OutgoingMessage::OutgoingMessage(OutgoingMessage&&) noexcept = default;
OutgoingMessage& OutgoingMessage::operator=(OutgoingMessage&&) noexcept =
    default;
OutgoingMessage::~OutgoingMessage() = default;

std::byte* OutgoingMessage::data(size_t tensor) const {
  CHECK(impl_ != nullptr) << "a sent or empty message has no data";
  CHECK_LT(tensor, impl_->layout.tensor_offsets.size());
  return impl_->block.data() + impl_->layout.payload_begin +
         impl_->layout.tensor_offsets[tensor];
}

OutgoingMessage::ImplPtr OutgoingMessage::TakeImpl() {
  return std::move(impl_);
}

size_t OutgoingMessage::num_tensors() const {
  return impl_ == nullptr ? 0 : impl_->layout.tensor_offsets.size();
}

void OutgoingMessage::AskForTimes() {
  impl_->header.times = impl_->may_ask_times;
}

void OutgoingMessage::SetPriority(uint8_t priority) {
  if (impl_->may_set_priority) impl_->header.priority = priority;
}

IncomingMessage::IncomingMessage() = default;
IncomingMessage::IncomingMessage(ImplPtr impl) : impl_(std::move(impl)) {}
IncomingMessage::IncomingMessage(IncomingMessage&&) noexcept = default;
IncomingMessage& IncomingMessage::operator=(IncomingMessage&&) noexcept =
    default;
IncomingMessage::~IncomingMessage() = default;

absl::Span<const base::TensorView> IncomingMessage::tensors() const {
  if (impl_ == nullptr) return {};
  return impl_->tensors;
}

const std::optional<CallTimes>& IncomingMessage::times() const {
  static const std::optional<CallTimes> none;
  return impl_ == nullptr ? none : impl_->times;
}

bool IncomingMessage::settled() const {
  return impl_ == nullptr || impl_->settled();
}

}  // namespace refract::transport
