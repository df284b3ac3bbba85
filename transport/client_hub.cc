#include "transport/client_hub.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "transport/client.h"
#include "transport/paths/locality.h"

namespace refract::transport {

ClientHub::Options ClientHub::OptionsFor(const ClientOptions& client) {
  return {.max_clients = 1,
          .rdma_device = client.rdma_device,
          .locality = client.locality,
          .clock = client.clock};
}

bool ClientHub::Suits(const ClientOptions& client) const {
  return client.rdma_device == options_.rdma_device &&
         client.locality == options_.locality && client.clock == options_.clock;
}

absl::StatusOr<std::shared_ptr<ClientHub>> ClientHub::Create(
    const Options& options) {
  REFRACT_ASSIGN_OR_RETURN(
      auto loop, PollLoop::Create(options.clock,
                                  kMaxLinksPerClient * options.max_clients));
  std::shared_ptr<ClientHub> hub(new ClientHub(options, std::move(loop)));
  REFRACT_ASSIGN_OR_RETURN(
      hub->notifier_, base::StartThread([raw = hub.get()] { raw->Notify(); }));
  REFRACT_ASSIGN_OR_RETURN(
      hub->poller_, base::StartThread([raw = hub.get()] { raw->Run(); }));
  return hub;
}

ClientHub::ClientHub(const Options& options, std::unique_ptr<PollLoop> loop)
    : options_(options),
      loop_(std::move(loop)),
      attention_(std::make_shared<Attention>(loop_->waker())),
      attention_waker_(attention_),
      submitted_(static_cast<size_t>(Limits().max_in_flight) *
                 options.max_clients) {
  resources_ = {loop_->waker(),
                std::make_unique<PullScheduler>(PullScheduler::Options()),
                verbs::MakePollGroup(options.rdma_device, options.locality)};
  verbs::WatchPorts(resources_.verbs.get(), attention_);
  resources_.pulls->WatchMarks(verbs::Marks(resources_.verbs.get()));
}

ClientHub::~ClientHub() {
  stopping_ = true;
  // The polling thread ends first, because it records changes for the notifier.
  loop_->Wake();
  if (poller_.joinable()) poller_.join();
  {
    absl::MutexLock lock(&mu_);
    notifier_stops_ = true;
  }
  if (notifier_.joinable()) notifier_.join();
}

absl::Status ClientHub::Join(ClientImpl* client) {
  {
    absl::MutexLock lock(&mu_);
    if (num_clients_ == options_.max_clients) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the hub has its maximum of ", num_clients_, " clients"));
    }
    ++num_clients_;
    joining_.push_back(client);
  }
  Attend();
  return absl::OkStatus();
}

void ClientHub::Leave(ClientImpl* client) {
  {
    absl::MutexLock lock(&mu_);
    leaving_.push_back(client);
  }
  Attend();
  absl::MutexLock lock(&mu_);
  // Two waits: until the polling thread has shut the client down, and until a
  // running call of its on_change has ended.
  const auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::find(leaving_.begin(), leaving_.end(), client) ==
           leaving_.end();
  };
  mu_.Await(absl::Condition(&gone));
  // The polling thread records no further change of the client.
  std::erase(changed_, client);
  const auto not_called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return notifying_ != client;
  };
  mu_.Await(absl::Condition(&not_called));
  --num_clients_;
}

void ClientHub::Submit(ClientImpl* client, ClientRequest request) {
  submitted_.Push({client, std::move(request)});
  loop_->Wake();
}

void ClientHub::NoteChange(ClientImpl* client) {
  absl::MutexLock lock(&mu_);
  if (std::find(changed_.begin(), changed_.end(), client) == changed_.end()) {
    changed_.push_back(client);
  }
}

// ------------------------------------------------ the polling thread from here

void ClientHub::Run() {
  BindPollingThread(options_.locality);
  while (!stopping_) {
    // Requests first: a round may sleep, and a request that was submitted
    // before must be on its link by then.
    StartRequests();
    const absl::Time now = loop_->Now();
    // Either an outside call or a timer of a client; links have timers of their
    // own.
    if (attention_->Take() || now >= next_look_) {
      LookAfterClients(now);
      loop_->ForgetNow();
    }
    loop_->Round(next_look_);
  }
}

void ClientHub::StartRequests() {
  submitted_.Take(&starting_);
  for (Submitted& submitted : starting_) {
    submitted.client->Start(std::move(submitted.request));
  }
  starting_.clear();
}

void ClientHub::LookAfterClients(absl::Time now) {
  TakeJoinedAndLeft();
  if (auto ports = verbs::TakePorts(resources_.verbs.get())) {
    ports_ = *std::move(ports);
    for (ClientImpl* client : clients_) client->OnPorts(*ports_, now);
  }
  for (ClientImpl* client : clients_) client->TakeDialled(now);
  Dial(now);
  next_look_ = absl::InfiniteFuture();
  // Without room for an attempt, the end of another attempt comes first, and
  // wakes this thread.
  if (dials_ >= kMaxDials) return;
  for (const ClientImpl* client : clients_) {
    next_look_ = std::min(next_look_, client->next_dial());
  }
}

void ClientHub::TakeJoinedAndLeft() {
  std::vector<ClientImpl*> joined;
  std::vector<ClientImpl*> left;
  {
    absl::MutexLock lock(&mu_);
    // Clients that leave stay in leaving_ until Shutdown() has returned:
    // Leave() waits for that.
    joined.swap(joining_);
    left = leaving_;
  }
  clients_.insert(clients_.end(), joined.begin(), joined.end());
  if (ports_.has_value()) {
    for (ClientImpl* client : joined) {
      client->OnPorts(*ports_, options_.clock->Now());
    }
  }
  if (left.empty()) return;
  // Work that clients submitted must not outlive the clients.
  StartRequests();
  for (ClientImpl* client : left) {
    client->Shutdown();
    std::erase(clients_, client);
  }
  absl::MutexLock lock(&mu_);
  for (ClientImpl* client : left) std::erase(leaving_, client);
}

// Fair among clients: a server that never answers takes a slot for a time-out,
// and then comes after all clients that became due meanwhile.
void ClientHub::Dial(absl::Time now) {
  while (dials_ < kMaxDials) {
    ClientImpl* next = nullptr;
    for (ClientImpl* client : clients_) {
      if (next == nullptr || client->next_dial() < next->next_dial()) {
        next = client;
      }
    }
    if (next == nullptr || next->next_dial() > now) return;
    next->Dial(now);
  }
}

// --------------------------------------------------------- the notifier thread

void ClientHub::Notify() {
  const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return notifier_stops_ || !changed_.empty();
  };
  absl::MutexLock lock(&mu_);
  while (true) {
    mu_.Await(absl::Condition(&any));
    if (notifier_stops_) return;
    ClientImpl* const client = changed_.front();
    changed_.erase(changed_.begin());
    notifying_ = client;
    mu_.Unlock();
    // Without the lock, because on_change may call the client and the hub.
    // notifying_ keeps the client alive meanwhile (Leave).
    client->NotifyChange();
    mu_.Lock();
    notifying_ = nullptr;
  }
}

}  // namespace refract::transport
