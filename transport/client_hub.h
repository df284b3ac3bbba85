#ifndef REFRACT_TRANSPORT_CLIENT_HUB_H_
#define REFRACT_TRANSPORT_CLIENT_HUB_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/links/channel.h"
#include "transport/links/client_link.h"
#include "transport/loop/mailbox.h"
#include "transport/loop/poll_loop.h"
#include "transport/loop/waker.h"
#include "transport/paths/path_resources.h"
#include "transport/verbs/factory.h"

namespace refract::transport {

class ClientImpl;

// Resources that the clients of one process share, whatever servers they dial:
//
//  - the polling thread that runs every connection;
//  - the notifier thread that calls `on_change` of the clients;
//  - the window and congestion marks of their pulls (PullScheduler): the port
//    of this machine is where the answers of all servers meet;
//  - RDMA completion queues, and the number of dialling threads at a time.
//
// Registered memory stays per connection, so that a peer can read only the
// messages sent to it, and memory that a lost peer could reach is not used
// again before its path is destroyed.
//
// Thread-safe, except where a method says otherwise.
class ClientHub {
 public:
  struct Options {
    // Most clients at a time.
    size_t max_clients = 1;
    // Options that hold for every client of the hub, as in ClientOptions.
    std::string rdma_device;
    Locality locality;
    base::Clock* clock = &base::Clock::Real();
  };

  // Attempts to connect at a time, over all clients: each attempt has a thread.
  // Further attempts wait; the attempt that is due longest goes first. Eight
  // are enough for a restart of all GPU nodes, where an attempt takes
  // milliseconds; attempts that time out take handshake_timeout each.
  static constexpr int kMaxDials = 8;
  // Links of one client: the present link, a link being made, and old links
  // that wait for their last answers.
  static constexpr size_t kMaxLinksPerClient = 8;

  // Options of a hub for `client` alone.
  static Options OptionsFor(const ClientOptions& client);
  // Whether a client may have these options.
  bool Suits(const ClientOptions& client) const;

  // Starts the threads. Unavailable: no descriptors.
  static absl::StatusOr<std::shared_ptr<ClientHub>> Create(
      const Options& options);
  // Destroy it after its clients, and not on its own threads.
  ~ClientHub();
  ClientHub(const ClientHub&) = delete;
  ClientHub& operator=(const ClientHub&) = delete;

  // ------------------------------------------------------- what clients use

  // The hub runs `client` from now on. ResourceExhausted: the hub has
  // max_clients.
  absl::Status Join(ClientImpl* client);
  // Ends the client's links and requests on the polling thread, and returns
  // when neither thread of the hub can touch the client any more.
  void Leave(ClientImpl* client);
  // Passes `request` to the polling thread, which has `client` send it.
  void Submit(ClientImpl* client, ClientRequest request);
  // Wakes the polling thread to look after every client soon.
  void Attend() { attention_->Wake(); }
  const std::shared_ptr<Waker>& attention() const { return attention_waker_; }
  // Calls client->NotifyChange() soon; calls that wait are merged.
  void NoteChange(ClientImpl* client);

  const Options& options() const { return options_; }
  PathResources* resources() { return &resources_; }
  // For the polling thread only, except where PollLoop says otherwise.
  PollLoop& loop() { return *loop_; }
  void OnDialStarted() { ++dials_; }
  void OnDialEnded() {
    --dials_;
    Attend();
  }

 private:
  // Tells the polling thread that a client needs more than steps of its links.
  class Attention final : public Waker {
   public:
    explicit Attention(std::shared_ptr<ThreadWaker> thread)
        : thread_(std::move(thread)) {}
    void Wake() override {
      raised_ = true;
      thread_->Wake();
    }
    // Called by the polling thread in each round, hence the cheap check first.
    bool Take() {
      return raised_.load(std::memory_order_relaxed) && raised_.exchange(false);
    }

   private:
    std::atomic<bool> raised_ = true;
    const std::shared_ptr<ThreadWaker> thread_;
  };
  struct Submitted {
    ClientImpl* client = nullptr;
    ClientRequest request;
  };

  ClientHub(const Options& options, std::unique_ptr<PollLoop> loop);

  void Run();
  void StartRequests();
  void LookAfterClients(absl::Time now);
  void TakeJoinedAndLeft();
  void Dial(absl::Time now);
  void Notify();

  const Options options_;
  PathResources resources_;
  // Owns the links, and the links hold the resources.
  const std::unique_ptr<PollLoop> loop_;
  const std::shared_ptr<Attention> attention_;
  const std::shared_ptr<Waker> attention_waker_;  // the same
  std::atomic<bool> stopping_ = false;
  std::atomic<int> dials_ = 0;
  Mailbox<Submitted> submitted_;

  absl::Mutex mu_;
  size_t num_clients_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<ClientImpl*> joining_ ABSL_GUARDED_BY(mu_);
  std::vector<ClientImpl*> leaving_ ABSL_GUARDED_BY(mu_);
  std::vector<ClientImpl*> changed_ ABSL_GUARDED_BY(mu_);  // each once
  ClientImpl* notifying_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool notifier_stops_ ABSL_GUARDED_BY(mu_) = false;

  // Members of the polling thread.
  std::vector<ClientImpl*> clients_;
  std::vector<Submitted> starting_;  // scratch of StartRequests
  std::optional<std::vector<verbs::PortState>> ports_;  // nullopt: unknown
  absl::Time next_look_ = absl::InfinitePast();

  std::thread notifier_;
  std::thread poller_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_CLIENT_HUB_H_
