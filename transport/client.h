#ifndef REFRACT_TRANSPORT_CLIENT_H_
#define REFRACT_TRANSPORT_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "proto/session.pb.h"
#include "transport/client_hub.h"
#include "transport/links/channel.h"
#include "transport/links/client_link.h"
#include "transport/links/link_memory.h"
#include "transport/loop/socket.h"
#include "transport/paths/rail_health.h"
#include "transport/session/dialer.h"
#include "transport/session/handshake.h"
#include "transport/session/peer_health.h"
#include "transport/verbs/factory.h"

namespace refract::transport {

// The client of channel.h. The hub's polling thread owns the links and decides
// when to dial, and over which paths. A dialler's thread connects in the
// background. Other threads reach the polling thread through the hub.
//
// Usually there is one link. While connected over a path that is not the best
// that the server offers, the client dials a better path every probe_interval.
// The new link then takes all later allocations, and the old link ends when its
// last request has been answered. The client does the same, at once and over
// any path that works, when the port of the present link goes down.
class ClientImpl final : public Client, public ClientLink::Owner {
 public:
  // A client that `hub` runs. `paths`: allowed paths, best first.
  static absl::StatusOr<std::unique_ptr<Client>> Start(
      std::shared_ptr<ClientHub> hub, const ClientOptions& options,
      HostPort address, std::vector<proto::TransportPath> paths,
      std::function<void()> on_change);
  ~ClientImpl() override;

  ClientState state() const override;
  PeerHealth& health() override { return health_; }
  absl::Status SetOffer(size_t model, std::optional<ModelOffer> offer) override;
  using Client::Allocate;
  absl::StatusOr<OutgoingMessage> Allocate(
      size_t model, absl::Span<const base::TensorSpec> tensors,
      absl::string_view request_id) override;
  void Send(OutgoingMessage message, absl::Time deadline,
            std::stop_token cancel, Callback done) override;

  // ------------------------------- for the hub, on the polling thread

  // Passes a request to the link from which it was allocated.
  void Start(ClientRequest request);
  // Takes over the outcome of an attempt to connect, if an attempt has ended.
  void TakeDialled(absl::Time now);
  // When the next attempt is due; InfiniteFuture while one is under way.
  absl::Time next_dial() const;
  // Starts an attempt, or postpones it: next_dial() is later afterwards.
  void Dial(absl::Time now);
  // `ports`: all ports that verbs paths may take, after some came up or went
  // down.
  void OnPorts(const std::vector<verbs::PortState>& ports, absl::Time now);
  // Fails all requests and ends all links.
  void Shutdown();

  // Called on the notifier thread.
  void NotifyChange() { on_change_(); }

 private:
  // A link whose path failed. Whether the path was at fault is known when the
  // server is reached again: is it the same process?
  struct Suspicion {
    proto::TransportPath path;
    std::string rail;
    absl::Time when;
    std::string server_process;
  };

  ClientImpl(std::shared_ptr<ClientHub> hub, const ClientOptions& options,
             HostPort address, std::vector<proto::TransportPath> paths,
             std::unique_ptr<Dialer> dialer, std::function<void()> on_change);

  std::vector<proto::TransportPath> PathsToOffer(absl::Time now) const;
  void OnDialled(Dialer::Outcome outcome, absl::Time now);
  void LearnFromReport(const DialReport& report, absl::Time now);
  // Makes the link of a successful outcome the present one.
  absl::Status Adopt(Dialer::Outcome outcome, absl::Time now);
  void OnRailError(proto::TransportPath path, absl::string_view rail,
                   absl::Time when);
  void ScheduleProbe(absl::Time now);
  bool Usable(proto::TransportPath path, absl::Time now) const;
  // Whether the port of the present link is down.
  bool current_is_down() const;
  // Tries to connect, or to find a better path, after `delay` at the latest.
  void DialWithin(absl::Duration delay, absl::Time now);
  double Draw() { return absl::Uniform(random_, 0.0, 1.0); }

  void OnGoaway(ClientLink& link) override;
  void OnModels(ClientLink& link) override;
  std::vector<ClientOffer> offers() const override;
  uint64_t offers_version() const override { return offers_version_; }
  void OnSuspect(ClientLink& link) override;
  void OnEnd(ClientLink& link, const absl::Status& why) override;

  void SetConnected(const ClientLink& link, bool switched);
  void SetDisconnected(const absl::Status& why);
  void NoteChange();
  // Takes the state of every offer from `link`.
  void TakeModels(const ClientLink& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // First member: it must outlive everything made for its polling thread.
  const std::shared_ptr<ClientHub> hub_;
  const ClientOptions options_;
  const HostPort address_;
  const std::vector<proto::TransportPath> paths_;  // allowed, best first
  const std::string client_id_;
  const std::function<void()> on_change_;
  bool joined_ = false;
  ClientCounters counters_;
  PeerHealth health_;

  mutable absl::Mutex mu_;
  // By number; null: no offer. Keys are never used twice.
  struct Place {
    std::optional<ModelOffer> offer;
    uint64_t key = 0;
    uint16_t number = 0;  // in headers of the present link
  };
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);
  uint64_t next_key_ ABSL_GUARDED_BY(mu_) = 1;
  std::atomic<uint64_t> offers_version_ = 0;  // changes after places_
  ClientState state_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LinkMemory> memory_ ABSL_GUARDED_BY(mu_);  // while connected
  int max_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  bool takes_request_ids_ ABSL_GUARDED_BY(mu_) = false;
  bool sends_call_times_ ABSL_GUARDED_BY(mu_) = false;
  bool takes_priorities_ ABSL_GUARDED_BY(mu_) = false;

  // Members of the polling thread.
  absl::BitGen random_;
  uint64_t next_id_ = 1;   // never reused, also not by later connections
  uint64_t attempts_ = 0;  // epoch of the last attempt
  RailHealth rails_;
  std::vector<std::string> ports_;  // rails of verbs paths, once they are known
  absl::Time next_attempt_ = absl::InfinitePast();  // while disconnected
  absl::Time next_probe_ = absl::InfiniteFuture();  // while connected
  absl::Duration probe_interval_;  // grows up to the option's value
  std::vector<proto::TransportPath> not_offered_;  // missing at the server
  std::string server_process_;
  std::optional<Suspicion> suspicion_;
  std::unique_ptr<Dialer> dialer_;
  ClientLink* current_ = nullptr;      // the hub's loop owns all links
  std::vector<ClientLink*> draining_;  // replaced, or after a goaway
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_CLIENT_H_
