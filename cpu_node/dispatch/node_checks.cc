#include "cpu_node/dispatch/node_checks.h"

#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "cpu_node/version_check.h"
#include "glog/logging.h"
#include "runtime/program.h"
#include "runtime/stable_inputs.h"
#include "runtime/wire/codec.h"

namespace refract::cpu_node {
namespace {

// True for errors that say nothing about the version: a repeat may succeed.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

}  // namespace

NodeChecks::~NodeChecks() {
  StopSending();
  Join();
}

void NodeChecks::Join() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void NodeChecks::Add(size_t offer, std::weak_ptr<const ServedModel> model) {
  absl::MutexLock lock(&mu_);
  models_[offer] = std::move(model);
  wake_ = true;
  if (!stop_ && !thread_.joinable()) {
    thread_ = std::thread([this] { Run(); });
  }
}

void NodeChecks::Remove(size_t offer) {
  absl::MutexLock lock(&mu_);
  models_.erase(offer);
}

void NodeChecks::Wake() {
  absl::MutexLock lock(&mu_);
  wake_ = true;
}

// Waits for a check that is being handed to the transport; no later check uses
// the pool.
void NodeChecks::StopSending() {
  absl::MutexLock lock(&sending_mu_);
  may_send_ = false;
}

void NodeChecks::Run() {
  absl::Time next = absl::InfiniteFuture();
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_ || wake_;
      };
      clock_.AwaitWithDeadline(mu_, absl::Condition(&due), next);
      if (stop_) return;
      wake_ = false;
    }
    next = RunDue() ? clock_.Now() + kAgain : absl::InfiniteFuture();
  }
}

bool NodeChecks::RunDue() {
  bool again = false;
  for (const NodePool::DueCheck& due : nodes_.DueChecks()) {
    std::shared_ptr<const ServedModel> model;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return false;
      const auto found = models_.find(due.offer);
      if (found != models_.end()) model = found->second.lock();
    }
    if (model == nullptr) continue;  // the model is being added or removed
    const absl::Time begin = clock_.Now();
    const absl::Status status = Check(*model, due);
    // The check stays due and is repeated after kAgain; the node gets no
    // requests of the model meanwhile.
    if (MayPass(status)) {
      again = true;
      continue;
    }
    const std::string label =
        absl::StrCat("model '", model->name(), "' version ", model->version(),
                     " at GPU node ", due.address);
    if (status.ok()) {
      LOG(INFO) << label << " has answered its " << model->checks().size()
                << " check requests in "
                << absl::FormatDuration(clock_.Now() - begin);
    } else {
      LOG(ERROR) << label << " is not served: " << status.message();
    }
    nodes_.SetCheck(due, status.ok()
                             ? status
                             : absl::FailedPreconditionError(status.message()));
  }
  return again;
}

absl::Status NodeChecks::Check(const ServedModel& model,
                               const NodePool::DueCheck& due) {
  // The way of a request through Engine, without queue, statistics and retries,
  // at one given GPU node.
  const CompiledPart& pre = model.pre();
  const CompiledPart& post = model.post();
  runtime::ContextPool::Lease pre_context = pre.Acquire();
  runtime::ContextPool::Lease post_context = post.Acquire();
  runtime::wire::EncoderPool::Lease encoder = model.encoders().Acquire();
  runtime::wire::DecoderPool::Lease decoder = model.decoders().Acquire();
  runtime::StableInputs stable;
  const TableStore::Pin tables = model.PinTables();
  std::optional<ShardGroup::Run> shards;
  if (model.sharded() != nullptr) {
    if (!model.sharded()->zero_when_lost()) {
      REFRACT_RETURN_IF_ERROR(shards_->WhyLost(model.places().shards));
    }
    shards.emplace(shards_, model.places().shards, clock_.Now() + kTimeout,
                   std::stop_token(), "check");
    pre_context->set_shard_peers(&*shards);
  }
  runtime::RunStats stats;
  pre_context->set_tables_at(tables.state());
  post_context->set_tables_at(tables.state());
  std::vector<base::TensorView> inputs;
  std::vector<base::TensorView> pre_outputs;
  std::vector<base::TensorView> outputs;
  transport::IncomingMessage answer;
  const auto execute = [&](absl::Span<const base::TensorView> padded)
      -> absl::StatusOr<absl::Span<base::TensorView>> {
    model.PreInputs(padded, inputs);
    std::optional<base::Pool<runtime::UniquePart::Request>::Lease> unique;
    if (model.unique() != nullptr) {
      unique.emplace(model.unique()->Acquire());
      REFRACT_RETURN_IF_ERROR(
          model.unique()->AddInputs(/*distinct=*/false, **unique, inputs));
    }
    REFRACT_RETURN_IF_ERROR(
        pre.program().Run(inputs, {}, *pre_context, pre_outputs, &stats));
    REFRACT_ASSIGN_OR_RETURN(
        const absl::Span<const base::TensorSpec> tensors,
        encoder->Prepare(
            absl::MakeConstSpan(pre_outputs).subspan(0, model.num_up())));
    absl::StatusOr<transport::IncomingMessage> response;
    absl::Notification answered;
    std::optional<NodePool::Lease> lease;
    {
      absl::MutexLock lock(&sending_mu_);
      // Held from the lease to the send: NodePool::Close() must find no thread
      // in between (StopSending).
      if (may_send_) lease = nodes_.AcquireFor(due);
      if (!lease.has_value()) {
        return absl::UnavailableError("the GPU node is not connected");
      }
      REFRACT_ASSIGN_OR_RETURN(
          transport::OutgoingMessage message,
          lease->client().Allocate(due.offer, tensors, "check"));
      encoder->WriteTo([&](size_t tensor) { return message.data(tensor); });
      lease->client().Send(
          std::move(message), clock_.Now() + kTimeout,
          [&](absl::StatusOr<transport::IncomingMessage> received) {
            response = std::move(received);
            answered.Notify();
          });
    }
    answered.WaitForNotification();
    lease.reset();
    if (!response.ok()) return response.status();
    answer = *std::move(response);
    REFRACT_ASSIGN_OR_RETURN(const absl::Span<const base::TensorView> down,
                             model.ReadAnswer(answer, *decoder, stable));
    model.PostInputs(padded, pre_outputs, down, inputs);
    REFRACT_RETURN_IF_ERROR(
        post.program().Run(inputs, {}, *post_context, outputs));
    return absl::MakeSpan(outputs);
  };
  // Rows changed by deltas, and zeros for rows of lost shards, give other
  // answers than the recorded answers.
  const auto as_imported = [&] {
    return tables.sequence() == 0 && stats.lost_ids == 0 &&
           (!shards || shards->newest_delta() == 0);
  };
  return CheckAnswers(model, as_imported, execute);
}

}  // namespace refract::cpu_node
