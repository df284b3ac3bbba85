#include "cpu_node/dispatch/retries.h"

#include "absl/types/span.h"

namespace refract::cpu_node {

base::Digest Quarantine::Fingerprint(const InferRequest& request) {
  // The content that decides about a crash: model and inputs, but not id,
  // deadline or client.
  base::DigestBuilder digest;
  digest.AddString(request.model_name);
  for (const InputTensor& input : request.inputs) {
    const base::TensorView view = input.tensor.view();
    digest.AddString(input.name);
    digest.AddInt(static_cast<uint64_t>(view.dtype));
    digest.AddInt(view.dims.size());
    for (const int64_t size : view.dims) {
      digest.AddInt(static_cast<uint64_t>(size));
    }
    digest.Add(absl::MakeConstSpan(view.data, view.bytes));
  }
  return digest.Finish();
}

void Quarantine::OnLoss(const base::Digest& request, absl::Time now) {
  absl::MutexLock lock(&mu_);
  Forget(now);
  // A bound on memory: contents beyond it are not quarantined.
  if (entries_.size() >= kMost && !entries_.contains(request)) return;
  Entry& entry = entries_[request];
  ++entry.losses;
  entry.until = now + kTime;
  any_.store(true, std::memory_order_release);
}

void Quarantine::OnAnswer(const base::Digest& request) {
  absl::MutexLock lock(&mu_);
  entries_.erase(request);
  any_.store(!entries_.empty(), std::memory_order_release);
}

bool Quarantine::Holds(const base::Digest& request, absl::Time now) {
  absl::MutexLock lock(&mu_);
  Forget(now);
  const auto entry = entries_.find(request);
  return entry != entries_.end() && entry->second.losses >= kLosses;
}

void Quarantine::Forget(absl::Time now) {
  absl::erase_if(entries_,
                 [&](const auto& entry) { return entry.second.until <= now; });
  any_.store(!entries_.empty(), std::memory_order_release);
}

}  // namespace refract::cpu_node
