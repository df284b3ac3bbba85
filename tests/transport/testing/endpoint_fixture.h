#ifndef REFRACT_TESTS_TRANSPORT_TESTING_ENDPOINT_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_ENDPOINT_FIXTURE_H_

// Two endpoints over a real data path, without handshake and threads: the test
// decides which side takes a step.

#include <glog/logging.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/testing/function_sink.h"
#include "transport/messages/endpoint.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"

namespace refract::transport {

// One side. Belongs to one thread at a time.
class EndpointEnd {
 public:
  struct Received {
    MessageHeader header;
    std::string text;
    IncomingMessage::ImplPtr message;
  };

  EndpointEnd(std::unique_ptr<PathResources> resources, Established link,
              MessageKind sends)
      : resources_(std::move(resources)),
        link_(std::move(link)),
        sends_(sends) {
    slot_bytes = link_.setup.slot_bytes;
    num_slots = link_.setup.num_slots;
    peer_num_slots = link_.setup.peer_num_slots;
    memory = link_.setup.memory;
    peer_slots = link_.setup.peer_slots;
    Restart();
  }
  ~EndpointEnd() {
    received.clear();
    link_.path.reset();
    endpoint.reset();
  }

  // New endpoints on the same path, as after a new handshake.
  void Restart() {
    received.clear();
    // Slots that the last endpoint lent out are nothing to the next one.
    std::vector<uint16_t> returned;
    memory->returns.Drain(&returned);
    endpoint.emplace(link_.path.get(), link_.setup, &sink);
  }

  absl::Status Step() { return Step(base::Clock::Real().Now()); }
  absl::Status Step(absl::Time now) {
    int heard = 0;
    return endpoint->Progress(now, &worked, &heard);
  }
  // A message of `bytes` of payload, all `value`.
  absl::Status Send(uint64_t id, size_t bytes, uint8_t value) {
    absl::StatusOr<OutgoingMessage::ImplPtr> message =
        NewMessage(memory, sends_,
                   std::vector<base::TensorSpec>{
                       {base::DType::kUInt8, {static_cast<int64_t>(bytes)}}});
    if (!message.ok()) return message.status();
    std::memset((*message)->block.data() + (*message)->layout.payload_begin,
                value, bytes);
    endpoint->Send(*std::move(message), id, absl::InfiniteFuture());
    return absl::OkStatus();
  }
  DataPath& path() { return *link_.path; }

  std::deque<Received> received;
  // Gets messages instead of `received`, if set.
  std::function<absl::Status(const MessageHeader& header,
                             IncomingMessage::ImplPtr message)>
      on_message;
  FunctionSink sink{[this](const MessageHeader& header, absl::string_view text,
                           IncomingMessage::ImplPtr message) {
    if (on_message) return on_message(header, std::move(message));
    received.push_back({header, std::string(text), std::move(message)});
    return absl::OkStatus();
  }};
  int worked = 0;
  size_t slot_bytes = 0;
  int num_slots = 0;
  int peer_num_slots = 0;
  std::shared_ptr<LinkMemory> memory;
  RemoteRegion peer_slots;
  std::optional<Endpoint> endpoint;

 private:
  const std::unique_ptr<PathResources> resources_;
  Established link_;
  const MessageKind sends_;
};

// Whether every byte of the only tensor is `value`.
inline bool HoldsOnly(const IncomingMessage::Impl& message, uint8_t value) {
  const base::TensorView& tensor = message.tensors.front();
  for (size_t i = 0; i < tensor.bytes; ++i) {
    if (tensor.data[i] != std::byte{value}) return false;
  }
  return true;
}

struct EndpointPair {
  std::unique_ptr<EndpointEnd> client;  // sends requests
  std::unique_ptr<EndpointEnd> server;
};

using EndpointResources = std::array<std::unique_ptr<PathResources>, 2>;

// `resources`: the client's and the server's.
inline EndpointPair ConnectEndpoints(proto::TransportPath kind,
                                     const Limits& limits,
                                     EndpointResources resources) {
  std::array<int, 2> fds;
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                    fds.data()) == 0);
  const proto::ReceiveLimits announced =
      AnnouncedLimits(limits, limits.max_in_flight);
  std::array<std::unique_ptr<PathSetup>, 2> ends;
  for (size_t i = 0; i < 2; ++i) {
    auto end = PathSetup::Create(kind, UniqueFd(fds[i]), "", limits, announced,
                                 resources[i]->waker, resources[i].get());
    CHECK(end.ok()) << end.status();
    ends[i] = *std::move(end);
  }
  std::array<std::unique_ptr<EndpointEnd>, 2> made;
  for (size_t i = 0; i < 2; ++i) {
    CHECK(ends[i]
              ->ImportPeer(ends[1 - i]->slots_descriptor(),
                           ends[1 - i]->source_descriptor(), announced)
              .ok());
  }
  for (size_t i = 0; i < 2; ++i) {
    const MessageKind sends =
        i == 0 ? MessageKind::kRequest : MessageKind::kResponse;
    const MessageKind receives =
        i == 0 ? MessageKind::kResponse : MessageKind::kRequest;
    Established link;
    ends[i]->Finish(1, receives, &link);
    made[i] = std::make_unique<EndpointEnd>(std::move(resources[i]),
                                            std::move(link), sends);
  }
  return {std::move(made[0]), std::move(made[1])};
}

inline EndpointPair ConnectEndpoints(proto::TransportPath kind,
                                     const Limits& limits) {
  EndpointResources resources;
  for (std::unique_ptr<PathResources>& own : resources) {
    own =
        std::make_unique<PathResources>(PathResources{*ThreadWaker::Create()});
  }
  return ConnectEndpoints(kind, limits, std::move(resources));
}

inline std::string TransportPathName(
    const testing::TestParamInfo<proto::TransportPath>& info) {
  return std::string(PathName(info.param));
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_ENDPOINT_FIXTURE_H_
