#ifndef REFRACT_TESTS_TRANSPORT_TESTING_FUNCTION_SINK_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_FUNCTION_SINK_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/messages/message_receiver.h"

namespace refract::transport {

// A sink made of a function; refusals are kept.
class FunctionSink final : public MessageSink {
 public:
  using Function = std::function<absl::Status(
      const MessageHeader& header, absl::string_view text,
      IncomingMessage::ImplPtr message)>;

  explicit FunctionSink(Function on_message)
      : on_message_(std::move(on_message)) {}

  absl::Status OnMessage(const MessageHeader& header, absl::string_view text,
                         IncomingMessage::ImplPtr message) override {
    return on_message_(header, text, std::move(message));
  }
  absl::Status OnRefused(const MessageHeader& header,
                         const absl::Status& why) override {
    refused.emplace_back(header, why);
    return absl::OkStatus();
  }

  std::vector<std::pair<MessageHeader, absl::Status>> refused;

 private:
  const Function on_message_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_FUNCTION_SINK_H_
