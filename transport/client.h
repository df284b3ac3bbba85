#ifndef REFRACT_TRANSPORT_CLIENT_H_
#define REFRACT_TRANSPORT_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "proto/session.pb.h"
#include "transport/links/channel.h"
#include "transport/links/client_link.h"
#include "transport/session/dialer.h"
#include "transport/session/handshake.h"
#include "transport/links/link_memory.h"
#include "transport/loop/mailbox.h"
#include "transport/paths/path_resources.h"
#include "transport/loop/poll_loop.h"
#include "transport/paths/rail_health.h"
#include "transport/session/reconnect_policy.h"
#include "transport/loop/socket.h"
#include "transport/verbs/factory.h"

namespace refract::transport {

// The client of channel.h. One polling thread owns everything that happens: the
// links, when to dial, and over which paths. A dialler's thread connects in the
// background, and a notifier calls `on_change`. Other threads reach the polling
// thread through `inbox_`.
//
// Usually there is one link. While connected over a path that is not the best
// one the server offers, a better one is dialled every probe_interval; the new
// link then takes what is allocated from there on, and the old one ends when
// its last request has been answered. The same is done, at once and with
// whatever path works, when the port goes down that the present link goes
// through.
class ClientImpl final : public Client, public ClientLink::Owner {
 public:
  ClientImpl(const ClientOptions& options, HostPort address,
             std::vector<proto::TransportPath> paths,
             std::unique_ptr<PollLoop> loop, std::unique_ptr<Dialer> dialer,
             std::function<void()> on_change);
  ~ClientImpl() override;

  ClientState state() const override;
  absl::StatusOr<OutgoingMessage> Allocate(
      size_t model, absl::Span<const base::TensorSpec> tensors) override;
  void Send(OutgoingMessage message, absl::Time deadline,
            std::stop_token cancel, Callback done) override;

 private:
  // A link that ended because its path failed. Whether that was the path's
  // fault shows when the server is reached again: is it the same process?
  struct Suspicion {
    proto::TransportPath path;
    std::string rail;
    absl::Time when;
    std::string server_process;
  };

  void Run();
  // Dials if it is time to.
  void MaybeDial(absl::Time now);
  std::vector<proto::TransportPath> PathsToOffer(absl::Time now) const;
  absl::Time NextDial() const;
  void OnDialled(Dialer::Outcome outcome, absl::Time now);
  void LearnFromReport(const DialReport& report, absl::Time now);
  // Makes the link of a successful outcome the present one.
  absl::Status Adopt(Dialer::Outcome outcome, absl::Time now);
  void OnRailError(proto::TransportPath path, absl::string_view rail,
                   absl::Time when);
  void ScheduleProbe(absl::Time now);
  // Ports came up or went down.
  void OnPorts(const std::vector<verbs::PortState>& ports, absl::Time now);
  bool Usable(proto::TransportPath path, absl::Time now) const;
  // The port that the present link goes through is down.
  bool current_is_down() const;
  // Tries to connect, or to connect better, after `delay` at the latest.
  void DialWithin(absl::Duration delay, absl::Time now);
  double Draw() { return absl::Uniform(random_, 0.0, 1.0); }

  void StartRequests();
  void OnGoaway(ClientLink& link) override;
  void OnModels(ClientLink& link) override;
  void OnSuspect(ClientLink& link) override;
  void OnEnd(ClientLink& link, const absl::Status& why) override;
  void Shutdown();

  void SetConnected(const ClientLink& link, bool switched);
  void SetDisconnected(const absl::Status& why);
  void UpdateBreaker(absl::Time now);
  void Notify();

  const ClientOptions options_;
  const HostPort address_;
  const std::vector<proto::TransportPath> paths_;  // allowed, best first
  const std::string client_id_;
  const std::function<void()> on_change_;
  std::atomic<bool> stopping_ = false;
  ClientCounters counters_;

  Mailbox<ClientRequest> inbox_;

  mutable absl::Mutex mu_;
  ClientState state_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LinkMemory> memory_ ABSL_GUARDED_BY(mu_);  // while connected
  int max_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  bool notifier_stop_ ABSL_GUARDED_BY(mu_) = false;

  // The polling thread's.
  std::vector<ClientRequest> starting_;  // in StartRequests
  absl::BitGen random_;
  uint64_t next_id_ = 1;   // never reused, not even by a later connection
  uint64_t attempts_ = 0;  // the last attempt's epoch
  RailHealth rails_;
  std::vector<std::string> ports_;  // rails of verbs paths, once they are known
  ReconnectPolicy reconnect_;
  absl::Time next_attempt_ = absl::InfinitePast();  // while disconnected
  absl::Time next_probe_ = absl::InfiniteFuture();  // while connected
  absl::Duration probe_interval_;  // grows to the one of the options
  absl::Time breaker_check_ = absl::InfiniteFuture();
  std::vector<proto::TransportPath> not_offered_;  // by the present server
  std::string server_process_;
  std::optional<Suspicion> suspicion_;
  PathResources resources_;
  const std::unique_ptr<PollLoop> loop_;
  const std::unique_ptr<Dialer> dialer_;
  ClientLink* current_ = nullptr;      // the loop's, as all links
  std::vector<ClientLink*> draining_;  // replaced, or said goaway

  std::thread notifier_;
  std::thread poller_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_CLIENT_H_
