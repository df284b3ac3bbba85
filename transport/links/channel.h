#ifndef REFRACT_TRANSPORT_LINKS_CHANNEL_H_
#define REFRACT_TRANSPORT_LINKS_CHANNEL_H_

// What nodes use of the transport: a CN dials HNs and sends requests, an HN
// listens and answers. Below it are session (handshake, liveness), message
// layer (headers, slots, credits, validation) and DataPath (verbs, shm, tcp).
// Nothing here says which DataPath is in use.

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

namespace refract::transport {

// What both ends must agree on before a request of a model may travel.
struct ModelOffer {
  std::string name;
  int64_t version = 0;
  base::Digest model;   // models::ModelDigest
  base::Digest schema;  // models::SchemaDigest
  // Of the model's configuration, what changes its answers and is not at its
  // default: name and value (models::ResultSettingsOf). nullopt: the peer is
  // too old to say.
  std::optional<std::vector<std::pair<std::string, std::string>>> settings =
      std::nullopt;
};

// Which data path to use. The numbers are those of proto::TransportPath.
enum class PathPreference { kAuto = 0, kVerbs = 1, kShm = 2, kTcp = 3 };
// Of a name in PathPreferenceNames(); kAuto for any other text.
PathPreference PathPreferenceNamed(absl::string_view name);
// "auto" and the name of every data path, in alphabetical order.
std::vector<std::string> PathPreferenceNames();

struct Limits {
  // Larger messages are described and then pulled by the receiver; smaller ones
  // are put straight into a granted slot. Bytes.
  size_t eager_bytes = size_t{64} << 10;
  // Longest message, header included. Bytes.
  size_t max_message_bytes = size_t{64} << 20;
  // Requests of one connection in flight; more wait in Allocate's error.
  int max_in_flight = 64;
  // Registered memory that a side lends to messages it sends. Bytes. Over verbs
  // a quarter, but at least the longest message: devices pin it from the start.
  size_t source_arena_bytes = size_t{256} << 20;
};

// When a request was where at the HN, on the HN's clock, which may differ from
// the CN's by any amount.
struct CallTimes {
  absl::Time received;  // as a whole
  absl::Time started;   // the first execution of a part of it
  absl::Time executed;  // the last one
  absl::Time answered;
};

// A message being written, in registered memory: tensors are produced right
// where they are sent from. Move-only; dropping it unsent frees the memory.
class OutgoingMessage {
 public:
  OutgoingMessage();  // empty
  OutgoingMessage(OutgoingMessage&&) noexcept;
  OutgoingMessage& operator=(OutgoingMessage&&) noexcept;
  ~OutgoingMessage();

  // Aligned to base::kTensorAlignBytes; valid until sent or dropped.
  std::byte* data(size_t tensor) const;
  size_t num_tensors() const;
  // Of a request, before it is sent: its answer is to bring CallTimes. No
  // effect where the HN is too old for that.
  void AskForTimes();

  struct Impl;
  struct Recycle {
    void operator()(Impl* impl) const;
  };
  using ImplPtr = std::unique_ptr<Impl, Recycle>;
  explicit OutgoingMessage(ImplPtr impl);
  // For the transport itself; leaves this empty.
  ImplPtr TakeImpl();

 private:
  ImplPtr impl_;
};

// A message that arrived: validated views of its tensors. The memory is given
// back to the peer when this is destroyed. Its payload may be changed by a
// hostile peer while it is read: never use a value in it as an index or length
// without a check on the copy that is used.
class IncomingMessage {
 public:
  IncomingMessage();  // empty
  IncomingMessage(IncomingMessage&&) noexcept;
  IncomingMessage& operator=(IncomingMessage&&) noexcept;
  ~IncomingMessage();

  absl::Span<const base::TensorView> tensors() const;
  // False: the peer may still write to that memory, a slot that it was lent.
  bool settled() const;
  // Of an answer whose request asked for them.
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

struct ClientOptions {
  std::string address;  // "host:port" of the HN
  PathPreference path = PathPreference::kAuto;
  // The RDMA device of verbs paths: "DEVICE", "DEVICE:PORT" or
  // "DEVICE:PORT:GID" (index). Empty: the best for each connection.
  std::string rdma_device;
  // Devices that are near, and CPUs of the polling thread.
  Locality locality;
  // Offers 0, 1, …; SetOffer() changes them.
  std::vector<ModelOffer> models;
  Limits limits;
  // How often the peer is asked to give a sign of life. After three that did
  // not come it is suspect.
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  // How long without any sign of life before the peer counts as lost.
  absl::Duration liveness_timeout = absl::Seconds(2);
  // How long session bytes may wait for the peer's kernel to acknowledge them:
  // a machine or network that is gone shows sooner than a process that hangs.
  absl::Duration ack_timeout = absl::Milliseconds(500);
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Reconnect back-off: doubles from first to last, with ±50 % jitter.
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration last_backoff = absl::Seconds(5);
  // While connected over a path that is not the best that the peer offers, a
  // better path is tried this often, and soon after a port of it came up.
  absl::Duration probe_interval = absl::Seconds(30);
  EjectionOptions ejection;
  base::Clock* clock = &base::Clock::Real();
};

struct ClientState {
  bool connected = false;
  PeerState health = PeerState::kConnecting;
  std::string path;    // "shm", "tcp", … empty when not connected
  std::string rail;    // the device's port, "mlx5_0:1", where the path has one
  uint64_t epoch = 0;  // counts successful handshakes
  int in_flight = 0;
  absl::Status last_error;  // why not connected
  // One per offer, in order: OK, or why the HN refused it, or cannot serve it
  // now. Of a place without an offer: why it has none.
  std::vector<absl::Status> models;
  // Sums over all epochs. Bytes: headers, tables and padding included.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  // Counts since creation.
  uint64_t losses = 0;         // connections that ended in failure
  uint64_t suspicions = 0;     // times that a peer became suspect
  uint64_t path_switches = 0;  // to another path, without a loss
  uint64_t path_failures = 0;  // paths that failed in set-up or in use
  uint64_t rail_pauses = 0;    // paths given up for a while (rail_health.h)
};

class ClientHub;

// Whether a request failed because the process of the peer ended while it had
// the request: its sockets were closed or reset without a message. False for a
// peer that was silent, stopped in order or closed the connection with a
// reason.
bool PeerEndedWithRequest(const absl::Status& status);

// The lasting link to one HN: connects, watches, reconnects by itself until
// destroyed. Thread-safe.
class Client {
 public:
  using Callback =
      std::function<void(absl::StatusOr<IncomingMessage> response)>;

  // Never fails for an absent peer; it goes on trying. InvalidArgument for bad
  // options. `on_change` (may be null) is called on an own thread, under no
  // lock, after connects and disconnects, changes of path or of models that the
  // peer can serve, and when it becomes suspect or ceases to be; quick ones may
  // share a call. Clients of one `hub` share its threads (client_hub.h); null:
  // the client has a hub of its own. ResourceExhausted: the hub is full.
  static absl::StatusOr<std::unique_ptr<Client>> Create(
      const ClientOptions& options, std::function<void()> on_change,
      std::shared_ptr<ClientHub> hub = nullptr);
  // Fails the requests in flight with kCancelled. Not on a thread of the hub.
  virtual ~Client() = default;

  virtual ClientState state() const = 0;
  // The state machine of the peer. The client tells it of connections; whoever
  // sends requests tells it how they ended.
  virtual PeerHealth& health() = 0;

  // Makes `offer` the offer number `model`, which is at most one more than the
  // largest number so far, or withdraws that offer. The HN is told at once, and
  // by every later connection; until its answer the model is not served there.
  // Requests of an offer that is replaced or withdrawn have all ended, and none
  // is allocated for it meanwhile. InvalidArgument: over 256 offers, or their
  // texts are too long for a frame; then nothing changes.
  virtual absl::Status SetOffer(size_t model,
                                std::optional<ModelOffer> offer) = 0;

  // Registered memory for a request of offer `model` with these tensors.
  // Unavailable: not connected, or the model is not served there.
  // ResourceExhausted: too many in flight or the arena is full.
  // OutOfRange: longer than the max_message_bytes of either end.
  // InvalidArgument: over 256 tensors.
  //
  // `request_id` is what the request is called in the HN's log
  // (ServerCall::request_id()), up to 64 bytes of it; empty: nothing. Older HNs
  // are not told.
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
  // Cancelled: `cancel` was requested, from any thread, before there was an
  // answer. The HN is told as well: it drops the request if it has not begun to
  // execute it, else the answer. The same holds for a request whose deadline
  // passes.
  virtual void Send(OutgoingMessage message, absl::Time deadline,
                    std::stop_token cancel, Callback done) = 0;
  // The same for a request that the caller never cancels.
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

  virtual size_t model() const = 0;  // what Handler::OnOffer returned
  // On the server's clock; InfiniteFuture when the client set none.
  virtual absl::Time deadline() const = 0;
  virtual absl::Span<const base::TensorView> tensors() const = 0;
  virtual bool settled() const = 0;  // as IncomingMessage's
  // What the client calls the request, any bytes; empty: nothing.
  virtual absl::string_view request_id() const { return {}; }
  // True when the client is gone or has cancelled: work may be dropped.
  virtual bool abandoned() const = 0;
  // For the CallTimes of the answer, where the client asked for them; before
  // Reply. On the server's clock.
  virtual void SetTimes(absl::Time started, absl::Time executed,
                        absl::Time answered) {}

  virtual absl::StatusOr<OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> tensors) = 0;
  virtual void Reply(OutgoingMessage message) = 0;
  virtual void Fail(const absl::Status& status) = 0;
};

// A request that waits in its client's memory, about to be pulled.
struct RequestDescriptor {
  size_t model = 0;  // what Handler::OnOffer returned
  // On the server's clock; InfiniteFuture when the client set none.
  absl::Time deadline;
  size_t payload_bytes = 0;
  // As ServerCall::tensors() will be, without data.
  absl::Span<const base::TensorView> tensors;
};

// Implemented by the HN. Methods are called on transport threads, concurrently
// for different connections; they must not block: all connections of a polling
// thread wait meanwhile.
class Handler {
 public:
  virtual ~Handler() = default;
  // A number that later calls carry, or why this HN does not serve the offer.
  // Below 2^32.
  virtual absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) = 0;
  // An offer that was given the number `model` is over, once for each such
  // OnOffer(): its client withdrew it (`withdrawn`), or the connection ended
  // while the server lives. Calls that are open then stay open until they are
  // answered.
  virtual void OnOfferEnd(size_t model, bool withdrawn) {}
  // A request that is longer than eager_bytes was announced. OK: it is pulled
  // when its turn comes. Otherwise it fails with this status at once, before
  // any of its payload moves.
  virtual absl::Status OnAnnounced(const RequestDescriptor& request) {
    return absl::OkStatus();
  }
  virtual void OnRequest(std::unique_ptr<ServerCall> call) = 0;
  // Calls of `model` have just become abandoned: a cancelled one, or all calls
  // of a client that is gone. The handler must answer them all the same.
  virtual void OnAbandoned(size_t model) {}
  // A request was cancelled before it had arrived as a whole: OnRequest is not
  // called for it.
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
  // Of these, from one address, so that no machine can take all places. Nodes
  // behind one address translation share it.
  int max_connections_per_host = 512;
  // Threads that run the connections, each its own share of them. One drives a
  // NIC; more help when small messages of many clients fill a core. 1 to 64.
  int pollers = 1;
  // As ClientOptions'.
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration liveness_timeout = absl::Seconds(2);
  absl::Duration ack_timeout = absl::Milliseconds(500);
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Of all connections: bytes of payloads that were announced, until their call
  // has ended; further requests are refused. Outlives the server and its calls.
  // Null: only each connection's own memory bounds them.
  base::ByteBudget* request_memory = nullptr;
  base::Clock* clock = &base::Clock::Real();
};

struct ServerStats {
  int connections = 0;
  uint64_t accepted = 0;
  uint64_t refused = 0;        // handshakes that failed, whatever the reason
  uint64_t violations = 0;     // connections closed for breaking the protocol
  uint64_t losses = 0;         // connections that ended in another failure
  uint64_t path_failures = 0;  // of these, because their data path failed
  uint64_t superseded = 0;     // connections that their client gave up
  uint64_t suspicions = 0;     // times that a client became suspect
  uint64_t requests = 0;
};

class Server {
 public:
  // Listens before it returns. Unavailable names host:port when it is taken.
  // `handler` must outlive the server.
  static absl::StatusOr<std::unique_ptr<Server>> Create(
      const ServerOptions& options, Handler* handler);
  // Closes every connection and joins. Answers given before are still sent, to
  // clients that take them within half a second.
  virtual ~Server() = default;

  virtual int port() const = 0;
  virtual ServerStats stats() const = 0;
  // Tells the present and later clients of `model` (a result of
  // Handler::OnOffer) whether it can be served now: OK, which is the state of
  // models never named, or why not. Requests that arrive all the same still go
  // to the handler. From any thread, but concurrent calls for a model may take
  // effect in any order.
  virtual void SetModelStatus(size_t model, const absl::Status& status) = 0;
  // Tells clients to send no more here and refuses new connections. Requests
  // that still arrive are served, because clients hear of it later.
  virtual void AnnounceStop() = 0;
  // AnnounceStop(); also fails requests that arrive from now on. Those that
  // arrived before are still answered.
  virtual void StopAdmitting() = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_CHANNEL_H_
