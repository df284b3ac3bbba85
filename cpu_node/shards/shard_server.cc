#include "cpu_node/shards/shard_server.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/thread.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/served_model.h"
#include "runtime/cpu/look_ups/shard_message.h"

namespace refract::cpu_node {
namespace {

// `schema` covers the shard's number and the owner of every row (OfferTo()).
bool SameOffer(const transport::ModelOffer& a, const transport::ModelOffer& b) {
  return a.name == b.name && a.version == b.version && a.model == b.model &&
         a.schema == b.schema;
}

absl::Status NotLoaded(const transport::ModelOffer& offer) {
  return absl::UnavailableError(
      absl::StrCat("model '", offer.name, "' version ", offer.version,
                   " is not loaded on that node with the same files and plan, "
                   "or the node runs with another --shard"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Create(
    transport::ServerOptions options, int threads) {
  std::unique_ptr<ShardServer> result(new ShardServer(options.clock));
  for (int i = 0; i < threads; ++i) {
    REFRACT_ASSIGN_OR_RETURN(
        result->threads_.emplace_back(),
        base::StartThread([server = result.get()] { server->Work(); }));
  }
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Server> server,
      transport::Server::Create(options, result.get()));
  {
    absl::MutexLock lock(&result->server_mu_);
    result->server_ = std::move(server);
  }
  // Finds the models of offers that arrived meanwhile.
  result->Match();
  return result;
}

ShardServer::~ShardServer() {
  // Tell() finds no server from here on. The server outlives the queue's calls:
  // it is destroyed last.
  std::unique_ptr<transport::Server> server;
  {
    absl::MutexLock lock(&server_mu_);
    server = std::move(server_);
  }
  std::deque<std::unique_ptr<transport::ServerCall>> left;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    left.swap(queue_);
  }
  for (const auto& call : left) {
    call->Fail(absl::UnavailableError("the node is stopping"));
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ShardServer::Add(const std::shared_ptr<const ServedModel>& model) {
  {
    absl::MutexLock lock(&mu_);
    models_.push_back(model);
  }
  Match();
}

void ShardServer::Remove(const ServedModel* model) {
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(models_, [&](const std::weak_ptr<const ServedModel>& other) {
      const auto held = other.lock();
      return held == nullptr || held.get() == model;
    });
  }
  Match();
}

std::weak_ptr<const ServedModel> ShardServer::FindModel(
    const transport::ModelOffer& offer) const {
  for (const std::weak_ptr<const ServedModel>& other : models_) {
    const std::shared_ptr<const ServedModel> model = other.lock();
    if (model == nullptr) continue;
    const ShardedModel& sharded = *model->sharded();
    if (SameOffer(offer, sharded.OfferTo(sharded.place().own))) return other;
  }
  return {};
}

void ShardServer::Match() {
  size_t count = 0;
  {
    absl::MutexLock lock(&mu_);
    // A model may be loaded before or after its peers offer it, so all offers
    // are compared again.
    for (Offer& offer : offers_) offer.model = FindModel(offer.offer);
    count = offers_.size();
  }
  for (size_t number = 0; number < count; ++number) Tell(number);
}

void ShardServer::Tell(size_t number) {
  // Held until the peers are told, so that an older state never follows a newer
  // state.
  absl::MutexLock server_lock(&server_mu_);
  if (server_ == nullptr) return;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    const Offer& offer = offers_[number];
    if (offer.model.expired()) status = NotLoaded(offer.offer);
  }
  server_->SetModelStatus(number, status);
}

absl::StatusOr<size_t> ShardServer::OnOffer(
    const transport::ModelOffer& offer) {
  size_t number = 0;
  {
    absl::MutexLock lock(&mu_);
    // Peers with the same offer share a number. Numbers of offers without peers
    // are used again.
    size_t free = offers_.size();
    for (number = 0; number < offers_.size(); ++number) {
      if (offers_[number].peers == 0) {
        free = number;
      } else if (SameOffer(offers_[number].offer, offer)) {
        break;
      }
    }
    if (number == offers_.size()) {
      if (free == kMaxOffers) {
        return absl::ResourceExhaustedError(
            absl::StrCat("there are ", kMaxOffers, " offers of look-ups"));
      }
      number = free;
      if (free == offers_.size()) offers_.emplace_back();
      offers_[number] = {offer, 0, FindModel(offer)};
    }
    ++offers_[number].peers;
  }
  Tell(number);
  return number;
}

void ShardServer::OnOfferEnd(size_t number, bool) {
  absl::MutexLock lock(&mu_);
  --offers_[number].peers;
}

void ShardServer::OnRequest(std::unique_ptr<transport::ServerCall> call) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (stop_) {
      status = absl::UnavailableError("the node is stopping");
    } else if (queue_.size() >= kMaxQueue) {
      status = absl::ResourceExhaustedError(
          absl::StrCat(kMaxQueue, " look-ups of other shards wait"));
      ++failed_;
    } else {
      queue_.push_back(std::move(call));
    }
  }
  if (!status.ok()) call->Fail(status);
}

void ShardServer::Work() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || !queue_.empty();
  };
  while (true) {
    std::unique_ptr<transport::ServerCall> call;
    {
      absl::MutexLock lock(&mu_, absl::Condition(&due));
      if (queue_.empty()) return;  // stopping
      call = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Status status =
        base::WithinMemory([&] { return Answer(*call); });
    if (!status.ok()) call->Fail(status);
    absl::MutexLock lock(&mu_);
    ++(status.ok() ? answered_ : failed_);
  }
}

absl::Status ShardServer::Answer(transport::ServerCall& call) {
  // Checked when the request's turn comes: a request that nobody waits for
  // costs no look-ups.
  if (call.abandoned())
    return absl::CancelledError("the asking node does not wait any more");
  if (call.deadline() <= clock_.Now()) {
    return absl::DeadlineExceededError("deadline passed at another shard");
  }
  std::shared_ptr<const ServedModel> model;
  {
    absl::MutexLock lock(&mu_);
    const Offer& offer = offers_[call.model()];
    model = offer.model.lock();
    if (model == nullptr) return NotLoaded(offer.offer);
  }
  // Scratch of the thread, so that a look-up allocates nothing once warm.
  static thread_local runtime::cpu::ShardLookUps look_ups;
  // One state of the tables for the whole answer; its sequence travels with it.
  const TableStore::Pin tables = model->PinTables();
  REFRACT_RETURN_IF_ERROR(look_ups.Read(
      call.tensors(), model->sharded()->owned(), tables.state()));
  const base::TensorSpec specs[] = {
      {base::DType::kFloat32, {look_ups.answer_floats()}},
      {base::DType::kInt64, {3}}};
  REFRACT_ASSIGN_OR_RETURN(transport::OutgoingMessage reply,
                           call.AllocateReply(specs));
  runtime::RunStats stats;
  REFRACT_RETURN_IF_ERROR(
      look_ups.Run(reinterpret_cast<float*>(reply.data(0)), stats));
  const int64_t facts[] = {tables.sequence(),
                           static_cast<int64_t>(stats.replaced_ids),
                           look_ups.first_missing()};
  std::memcpy(reply.data(1), facts, sizeof(facts));
  call.Reply(std::move(reply));
  return absl::OkStatus();
}

uint64_t ShardServer::answered() const {
  absl::MutexLock lock(&mu_);
  return answered_;
}

uint64_t ShardServer::failed() const {
  absl::MutexLock lock(&mu_);
  return failed_;
}

}  // namespace refract::cpu_node
