#ifndef REFRACT_TRANSPORT_CLIENT_H_
#define REFRACT_TRANSPORT_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "proto/session.pb.h"
#include "transport/channel.h"
#include "transport/handshake.h"
#include "transport/link.h"
#include "transport/link_memory.h"
#include "transport/path_setup.h"
#include "transport/socket.h"
#include "transport/waker.h"

namespace refract::transport {

// The client of channel.h: one polling thread that connects, runs the link and
// connects again, and one that calls `on_change`. Other threads reach the first
// through `inbox_`.
class ClientImpl final : public Client {
 public:
  ClientImpl(const ClientOptions& options, HostPort address,
             std::vector<proto::TransportPath> paths,
             std::shared_ptr<Waker> waker, std::function<void()> on_change);
  ~ClientImpl() override;

  ClientState state() const override;
  absl::StatusOr<OutgoingMessage> Allocate(
      size_t model, absl::Span<const base::TensorSpec> tensors) override;
  void Send(OutgoingMessage message, absl::Time deadline,
            Callback done) override;

 private:
  struct Request {
    std::unique_ptr<OutgoingMessage::Impl> message;
    absl::Time deadline;
    Callback done;
  };
  struct Pending {
    Callback done;
    absl::Time deadline;
    RequestToken token;
  };

  void Run();
  void RunLink(Established established);
  void Sleep(absl::Duration time);
  // Fails requests that were sent without a link. Cancelled: stop.
  absl::Status WhileDisconnected();
  void StartRequests(Link& link);
  void ExpireRequests(Link& link);
  void OnResponse(const MessageHeader& header, std::string text,
                  std::unique_ptr<IncomingMessage::Impl> message);
  absl::Status OnFrame(const SessionFrame& frame);
  void FailPending(const absl::Status& why);
  void Finish(Callback done, absl::StatusOr<IncomingMessage> response);
  std::vector<Request> TakeInbox();
  void SetConnected(const Established& established);
  void SetDisconnected(const absl::Status& why);
  void Count(const EndpointCounters& now);
  void Notify();

  const ClientOptions options_;
  const HostPort address_;
  const std::vector<proto::TransportPath> paths_;
  const std::shared_ptr<Waker> waker_;
  const std::function<void()> on_change_;
  const Wait wait_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> in_flight_ = 0;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<uint64_t> bytes_received_ = 0;
  std::atomic<uint64_t> messages_sent_ = 0;

  absl::Mutex inbox_mu_;
  std::vector<Request> inbox_ ABSL_GUARDED_BY(inbox_mu_);

  mutable absl::Mutex mu_;
  ClientState state_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LinkMemory> memory_ ABSL_GUARDED_BY(mu_);  // while connected
  int max_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  bool notifier_stop_ ABSL_GUARDED_BY(mu_) = false;

  // The polling thread's.
  absl::BitGen random_;
  uint64_t next_id_ = 1;  // never reused, not even by a later connection
  absl::flat_hash_map<uint64_t, Pending> pending_;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  bool draining_ = false;
  EndpointCounters counted_;

  std::thread notifier_;
  std::thread poller_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_CLIENT_H_
