#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_FLOW_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"
#include "transport/messages/endpoint.h"
#include "transport/links/link.h"
#include "transport/paths/path_resources.h"

namespace refract::transport_bench {

// One connection of the message layer: the initiator sends requests, the
// responder answers each as soon as it is here. Belongs to one thread, which
// calls Step.
class MessageFlow : public transport::MessageSink {
 public:
  // What the handshake does, without its socket. Both sides call it. `work` is
  // the largest of this connection, `eager_bytes` as in Config. `shared`: the
  // resources of another flow of this thread; null for its own.
  static absl::StatusOr<std::unique_ptr<MessageFlow>> Open(
      proto::TransportPath path, const std::string& rdma_device,
      size_t eager_bytes, const Setup& setup, const Work& work,
      std::shared_ptr<transport::PathResources> shared);

  const std::shared_ptr<transport::PathResources>& resources() const {
    return resources_;
  }
  transport::DataPath& path() { return *path_; }

  // Counts anew.
  void Begin(const Work& work);
  // Request `i` of the run.
  absl::Status SendRequest(int i) {
    return SendOne(transport::MessageKind::kRequest, i, work_.point.bytes);
  }
  // One round of progress. DataLoss: a message is not what it should be.
  absl::Status Step(int* worked);
  // Messages of this run that came.
  int received() const { return received_; }
  bool all_sent() const { return endpoint_.all_sent(); }
  // At the end of a run: the peer may still wait for credits of what it had
  // pulled here.
  absl::Status LastCredits();

  absl::Status OnMessage(const transport::MessageHeader& header,
                         absl::string_view text,
                         transport::IncomingMessage::ImplPtr message) override;
  absl::Status OnRefused(const transport::MessageHeader& header,
                         const absl::Status& why) override;

 private:
  MessageFlow(std::shared_ptr<transport::PathResources> resources,
              transport::Established established, Side side);

  absl::Status SendOne(transport::MessageKind kind, int i, size_t bytes);
  absl::Status Check(const transport::IncomingMessage::Impl& message,
                     uint64_t id, size_t bytes);

  const std::shared_ptr<transport::PathResources> resources_;
  const Side side_;
  const Side peer_;
  const std::shared_ptr<transport::LinkMemory> memory_;
  base::Clock& clock_ = base::Clock::Real();
  Work work_;
  int received_ = 0;
  transport::Endpoint endpoint_;
  const std::unique_ptr<transport::DataPath> path_;  // goes before endpoint_
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_FLOW_H_
