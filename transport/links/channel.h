#ifndef REFRACT_TRANSPORT_LINKS_CHANNEL_H_
#define REFRACT_TRANSPORT_LINKS_CHANNEL_H_

// The transport's interface for nodes: a CN dials HNs and sends requests, an HN
// listens and answers. Below it are session (handshake, liveness), message
// layer (headers, slots, credits, validation) and DataPath (verbs, shm, tcp).
// Nothing here depends on the DataPath in use.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/process/byte_budget.h"
#include "base/tensor.h"
#include "transport/paths/locality.h"
#include "transport/session/peer_health.h"

namespace refract::base {
class TlsContexts;
}

namespace refract::transport {

// Facts on which both ends must agree before a request of a model may travel.
struct ModelOffer {
  std::string name;
  int64_t version = 0;
  base::Digest model;   // models::ModelDigest
  base::Digest schema;  // models::SchemaDigest
  // Settings of the model's configuration that change its answers and are not
  // at their defaults: name and value (models::ResultSettingsOf). nullopt: the
  // peer is too old to send them.
  std::optional<std::vector<std::pair<std::string, std::string>>> settings =
      std::nullopt;
};

// Which data path to use. The numbers are those of proto::TransportPath.
enum class PathPreference { kAuto = 0, kVerbs = 1, kShm = 2, kTcp = 3 };
// The preference named `name`; kAuto for a name not in PathPreferenceNames().
PathPreference PathPreferenceNamed(absl::string_view name);
// "auto" and the name of every data path, in alphabetical order.
std::vector<std::string> PathPreferenceNames();

struct Limits {
  // Longer messages are described and then pulled by the receiver; shorter
  // messages are put directly into a granted slot. Bytes.
  size_t eager_bytes = size_t{64} << 10;
  // Longest message, header included. Bytes.
  size_t max_message_bytes = size_t{64} << 20;
  // Requests of a connection in flight; beyond it Allocate() fails.
  int max_in_flight = 64;
  // Registered memory for messages that a side sends. Bytes. Over verbs a
  // quarter, but at least the longest message: devices pin it from the start.
  size_t source_arena_bytes = size_t{256} << 20;
};

// Stages of a request on the HN, on the HN's clock, which may differ from the
// CN's by any amount.
struct CallTimes {
  absl::Time received;  // the complete request
  absl::Time started;   // first execution of a part of it
  absl::Time executed;  // end of the last execution
  absl::Time answered;
};

// A message being written, in registered memory: tensors are computed where
// they are sent from. Move-only; dropping it unsent frees the memory.
class OutgoingMessage {
 public:
  OutgoingMessage();  // empty
  OutgoingMessage(OutgoingMessage&&) noexcept;
  OutgoingMessage& operator=(OutgoingMessage&&) noexcept;
  ~OutgoingMessage();

  // Aligned to base::kTensorAlignBytes; valid until sent or dropped.
  std::byte* data(size_t tensor) const;
  size_t num_tensors() const;
  // Asks for CallTimes with the answer of this request; call before sending. No
  // effect if the HN is too old.
  void AskForTimes();
  // Of a request, before it is sent: its level in the HN's queue, 0 goes first.
  // No effect where the HN is too old for that. At most kMaxPriority.
  void SetPriority(uint8_t priority);

  struct Impl;
  struct Recycle {
    void operator()(Impl* impl) const;
  };
  using ImplPtr = std::unique_ptr<Impl, Recycle>;
  explicit OutgoingMessage(ImplPtr impl);
  // For the transport only; leaves this object empty.
  ImplPtr TakeImpl();

 private:
  ImplPtr impl_;
};

// A message that arrived: validated views of its tensors. Destroying it returns
// the memory to the peer. A hostile peer may change the payload while it is
// read: never use a value in it as an index or length without checking the copy
// that is used.
class IncomingMessage {
 public:
  IncomingMessage();  // empty
  IncomingMessage(IncomingMessage&&) noexcept;
  IncomingMessage& operator=(IncomingMessage&&) noexcept;
  ~IncomingMessage();

  absl::Span<const base::TensorView> tensors() const;
  // False: the peer may still write to the memory (a slot of this side).
  bool settled() const;
  // Set in answers whose request asked for them.
  const std::optional<CallTimes>& times() const;

  struct Impl;
  struct Recycle {
    void operator()(Impl* impl) const;
  };
  using ImplPtr = std::unique_ptr<Impl, Recycle>;
  explicit IncomingMessage(ImplPtr impl);

 private:
  ImplPtr impl_;
};

// ---------------------------------------------------------------- CN side

struct ClientTls {
  // TLS 1.3 on all TCP connections to the HN, with certificates of both ends;
  // made for TlsUse::kDialNodes. Null: no TLS.
  std::shared_ptr<base::TlsContexts> contexts;
  // DNS name or IP address that the HN's certificate must have. Empty: the host
  // of ClientOptions::address.
  std::string name;
};

struct ClientOptions {
  std::string address;  // "host:port" of the HN
  PathPreference path = PathPreference::kAuto;
  // The RDMA device of verbs paths: "DEVICE", "DEVICE:PORT" or
  // "DEVICE:PORT:GID" (index). Empty: the best for each connection.
  std::string rdma_device;
  // Nearby devices, and CPUs of the polling thread.
  Locality locality;
  // Offers 0, 1, …; SetOffer() changes them.
  std::vector<ModelOffer> models;
  Limits limits;
  // Interval of the peer's signs of life. After three missing signs the peer is
  // suspect.
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  // Silence after which the peer counts as lost.
  absl::Duration liveness_timeout = absl::Seconds(2);
  // Longest time for the peer's kernel to acknowledge session bytes: a dead
  // machine or network is noticed sooner than a hanging process.
  absl::Duration ack_timeout = absl::Milliseconds(500);
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Reconnect back-off: doubles from first to last, with ±50 % jitter.
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration last_backoff = absl::Seconds(5);
  // While connected over a path that is not the best that the peer offers, the
  // interval of trying a better path; a port that comes up shortens it.
  absl::Duration probe_interval = absl::Seconds(30);
  EjectionOptions ejection;
  ClientTls tls;
  base::Clock* clock = &base::Clock::Real();
};

struct ClientState {
  bool connected = false;
  PeerState health = PeerState::kConnecting;
  std::string path;    // "shm", "tcp", … empty when not connected
  std::string rail;    // device port, "mlx5_0:1"; empty: none
  uint64_t epoch = 0;  // counts successful handshakes
  int in_flight = 0;
  absl::Status last_error;  // reason of the disconnection
  // Per offer, in order: OK, or why the HN refused it or cannot serve it now. A
  // number without an offer has an error.
  std::vector<absl::Status> models;
  // Sums over all epochs. Bytes: headers, tables and padding included.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  // Counts since creation.
  uint64_t losses = 0;         // connections that ended in failure
  uint64_t suspicions = 0;     // times that a peer became suspect
  uint64_t path_switches = 0;  // changes to another path without a loss
  uint64_t path_failures = 0;  // paths that failed in set-up or in use
  uint64_t rail_pauses = 0;    // pauses of a path (rail_health.h)
};

class ClientHub;

// Whether a request failed because the peer's process ended while it had the
// request: its sockets were closed or reset without a message. False for a
// peer that was silent, stopped in order or closed the connection with a
// reason.
bool PeerEndedWithRequest(const absl::Status& status);

// The lasting connection to one HN: connects, watches and reconnects by itself
// until it is destroyed. Thread-safe.
class Client {
 public:
  using Callback =
      std::function<void(absl::StatusOr<IncomingMessage> response)>;

  // Does not fail for an absent peer, but keeps trying. InvalidArgument for bad
  // options. `on_change` (may be null) is called on a thread of the hub, under
  // no lock, after connects, disconnects, attempts that fail for another reason
  // than the last one, changes of path or of the peer's models, and when the
  // peer becomes suspect or recovers; quick changes may share a call. Clients
  // of one `hub` share its threads (client_hub.h); null: the client has its own
  // hub. ResourceExhausted: the hub is full.
  static absl::StatusOr<std::unique_ptr<Client>> Create(
      const ClientOptions& options, std::function<void()> on_change,
      std::shared_ptr<ClientHub> hub = nullptr);
  // Fails the requests in flight with kCancelled. Not on a thread of the hub.
  virtual ~Client() = default;

  virtual ClientState state() const = 0;
  // The state machine of the peer. The client reports connections to it;
  // senders of requests report how they ended.
  virtual PeerHealth& health() = 0;

  // Makes `offer` the offer number `model`, which is at most one past the
  // largest number so far; nullopt withdraws it. The HN is told at once, and by
  // every later connection; until its answer the model is not served there. All
  // requests of a replaced or withdrawn offer must have ended, and none may be
  // allocated meanwhile. InvalidArgument: over 256 offers, or their texts are
  // too long for a frame; then nothing changes.
  virtual absl::Status SetOffer(size_t model,
                                std::optional<ModelOffer> offer) = 0;

  // Registered memory for a request of offer `model` with these tensors.
  // Unavailable: not connected, or the model is not served there.
  // ResourceExhausted: too many in flight or the arena is full.
  // OutOfRange: longer than the max_message_bytes of either end.
  // InvalidArgument: over 256 tensors.
  //
  // `request_id` is the request's name in the HN's log
  // (ServerCall::request_id()), up to 64 bytes of it; empty: no name. Older HNs
  // do not receive it.
  virtual absl::StatusOr<OutgoingMessage> Allocate(
      size_t model, absl::Span<const base::TensorSpec> tensors,
      absl::string_view request_id) = 0;
  absl::StatusOr<OutgoingMessage> Allocate(
      size_t model, absl::Span<const base::TensorSpec> tensors) {
    return Allocate(model, tensors, {});
  }

  // Sends and returns at once. `done` runs exactly once, on the transport's
  // thread and under no lock; it must not block. Its status is the HN's own
  // (as passed to Fail), DeadlineExceeded when `deadline` (of options.clock)
  // passes first, or Unavailable when the connection is lost: the request may
  // or may not have run ("unknown outcome"), re-sending is safe.
  //
  // Cancelled: `cancel` was requested, from any thread, before the answer
  // arrived. The HN is told too: it drops the request if it has not begun to
  // execute it, else the answer. The same holds for a request whose deadline
  // passes.
  virtual void Send(OutgoingMessage message, absl::Time deadline,
                    std::stop_token cancel, Callback done) = 0;
  // As above, for a request that the caller never cancels.
  void Send(OutgoingMessage message, absl::Time deadline, Callback done) {
    Send(std::move(message), deadline, std::stop_token(), std::move(done));
  }
};

// ---------------------------------------------------------------- HN side

// A request at the HN. Exactly one of Reply and Fail must be called, from any
// thread; destroying it unanswered fails it with kInternal. Holding it after
// the connection is gone is safe: the answer is dropped.
class ServerCall {
 public:
  virtual ~ServerCall() = default;

  virtual size_t model() const = 0;  // result of Handler::OnOffer
  // On the server's clock; InfiniteFuture when the client set none.
  virtual absl::Time deadline() const = 0;
  virtual absl::Span<const base::TensorView> tensors() const = 0;
  virtual bool settled() const = 0;  // as IncomingMessage's
  // The client's name for the request, any bytes; empty: no name.
  virtual absl::string_view request_id() const { return {}; }
  // As the client set it: 0 goes first.
  virtual uint8_t priority() const { return 0; }
  // Whether the client is gone or has cancelled, so that work may be dropped.
  virtual bool abandoned() const = 0;
  // Sets CallTimes of the answer, if the client asked for them; call before
  // Reply. On the server's clock.
  virtual void SetTimes(absl::Time started, absl::Time executed,
                        absl::Time answered) {}

  virtual absl::StatusOr<OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> tensors) = 0;
  virtual void Reply(OutgoingMessage message) = 0;
  virtual void Fail(const absl::Status& status) = 0;
};

// A request that still lies in its client's memory and is about to be pulled.
struct RequestDescriptor {
  size_t model = 0;  // result of Handler::OnOffer
  // On the server's clock; InfiniteFuture when the client set none.
  absl::Time deadline;
  uint8_t priority = 0;  // ServerCall::priority()
  size_t payload_bytes = 0;
  // As in ServerCall::tensors(), without data.
  absl::Span<const base::TensorView> tensors;
};

// Implemented by the HN. Methods are called on transport threads, concurrently
// for different connections. They must not block: all connections of a polling
// thread would wait.
class Handler {
 public:
  virtual ~Handler() = default;
  // Returns a number that later calls carry, or why this HN does not serve the
  // offer. Below 2^32.
  virtual absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) = 0;
  // Called once per successful OnOffer() when that offer ends: its
  // client withdrew it (`withdrawn`), or the connection ended
  // while the server lives. Open calls stay open until they are
  // answered.
  virtual void OnOfferEnd(size_t model, bool withdrawn) {}
  // Called when a request longer than eager_bytes was announced. OK: the
  // request is pulled at its turn. Otherwise it fails with this status at once,
  // before any of its payload moves.
  virtual absl::Status OnAnnounced(const RequestDescriptor& request) {
    return absl::OkStatus();
  }
  virtual void OnRequest(std::unique_ptr<ServerCall> call) = 0;
  // Called when calls of `model` became abandoned: a cancelled call, or all
  // calls of a client that is gone. The handler must still answer them.
  virtual void OnAbandoned(size_t model) {}
  // Called when a request was cancelled before it had arrived completely:
  // OnRequest is not called for it.
  virtual void OnWithdrawn(size_t model) {}
};

struct ServerOptions {
  std::string host = "0.0.0.0";
  int port = 0;  // 0: any free one
  PathPreference path = PathPreference::kAuto;
  std::string rdma_device;  // as in ClientOptions
  Locality locality;        // as in ClientOptions
  Limits limits;
  int max_connections = 1024;
  // Most connections from one address, so that no machine can take all places.
  // Nodes behind one address translation share it.
  int max_connections_per_host = 512;
  // Threads that run the connections, each its share. One thread drives a NIC;
  // more help when small messages of many clients fill a core. 1 to 64.
  int pollers = 1;
  // As in ClientOptions.
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration liveness_timeout = absl::Seconds(2);
  absl::Duration ack_timeout = absl::Milliseconds(500);
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Budget over all connections for announced payloads, until their call has
  // ended; requests beyond it are refused. Outlives the server and its calls.
  // Null: only each connection's own memory bounds them.
  base::ByteBudget* request_memory = nullptr;
  // As in ClientTls, made for TlsUse::kAcceptNodes. Then a client without TLS
  // is refused, and so is a client without a certificate of the roots: neither
  // learns of regions, names or tokens.
  std::shared_ptr<base::TlsContexts> tls;
  base::Clock* clock = &base::Clock::Real();
};

struct ServerStats {
  int connections = 0;
  uint64_t accepted = 0;
  uint64_t refused = 0;        // failed handshakes, for any reason
  uint64_t violations = 0;     // connections closed for breaking the protocol
  uint64_t losses = 0;         // connections that ended in another failure
  uint64_t path_failures = 0;  // of these, by failure of their data path
  uint64_t superseded = 0;     // connections replaced by their client
  uint64_t suspicions = 0;     // times that a client became suspect
  uint64_t requests = 0;
};

class Server {
 public:
  // Listens before it returns. Unavailable names host:port when it is taken.
  // `handler` must outlive the server.
  static absl::StatusOr<std::unique_ptr<Server>> Create(
      const ServerOptions& options, Handler* handler);
  // Closes every connection and joins. Earlier answers are still sent, to
  // clients that take them within half a second.
  virtual ~Server() = default;

  virtual int port() const = 0;
  virtual ServerStats stats() const = 0;
  // Tells the present and later clients of `model` (a result of
  // Handler::OnOffer) whether it can be served now: OK, the default,
  // or why not. Requests that still arrive go to the handler. From
  // any thread; concurrent calls for a model may take effect in any
  // order.
  virtual void SetModelStatus(size_t model, const absl::Status& status) = 0;
  // Tells clients to send no more requests and refuses new connections.
  // Requests that still arrive are served, because clients learn of it later.
  virtual void AnnounceStop() = 0;
  // AnnounceStop(); also fails requests that arrive from now on. Earlier
  // requests are still answered.
  virtual void StopAdmitting() = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_CHANNEL_H_
