#include "gpu_node/scheduler/model_queue.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "glog/logging.h"

namespace refract::gpu_node {
namespace {

// More than are ever merged; keeps a look at a long queue short.
constexpr size_t kMostCandidates = 512;

}  // namespace

bool RunsBefore(const ReadyKey& a, const ReadyKey& b) {
  if (a.deadline != b.deadline) return a.deadline < b.deadline;
  return a.arrival < b.arrival;
}

Verdict Judge(absl::Time deadline, bool abandoned, absl::Duration time,
              absl::Time now) {
  if (abandoned) return Verdict::kDropAbandoned;
  if (deadline <= now) return Verdict::kDropExpired;
  if (now + time > deadline) return Verdict::kDropHopeless;
  return Verdict::kRun;
}

void ModelQueue::Push(QueuedRequest request, absl::string_view merge_key) {
  const ReadyKey key{request.call->deadline(), arrivals_++};
  work_ += request.estimate;
  rows_ += request.rows;
  if (spare_.empty()) {
    request.merge_key = std::string(merge_key);
    entries_.insert(Entry{key, std::move(request)});
    // There is room for each entry's node when it is taken out.
    if (spare_.capacity() < entries_.size()) {
      spare_.reserve(std::bit_ceil(entries_.size()));
    }
    return;
  }
  Entries::node_type node = std::move(spare_.back());
  spare_.pop_back();
  Entry& entry = node.value();
  entry.key = key;
  std::string memory = std::move(entry.request.merge_key);
  memory.assign(merge_key.data(), merge_key.size());
  entry.request = std::move(request);
  entry.request.merge_key = std::move(memory);
  entries_.insert(std::move(node));
}

ModelQueue::Entries::const_iterator ModelQueue::NextEntry() const {
  if (run_with_deadline_ + 1 >= kTurnWithoutDeadline) {
    const auto oldest =
        entries_.lower_bound(Entry{{absl::InfiniteFuture(), 0}, {}});
    if (oldest != entries_.end()) return oldest;
  }
  return entries_.begin();
}

const QueuedRequest& ModelQueue::Next() const { return NextEntry()->request; }

std::vector<const QueuedRequest*> ModelQueue::Candidates(
    std::vector<const QueuedRequest*> candidates) const {
  const QueuedRequest& next = Next();
  candidates.clear();
  candidates.push_back(&next);
  if (next.merge_key.empty()) return candidates;
  for (const Entry& entry : entries_) {
    if (candidates.size() >= kMostCandidates) break;
    if (&entry.request == &next || entry.request.merge_key != next.merge_key) {
      continue;
    }
    candidates.push_back(&entry.request);
  }
  return candidates;
}

QueuedRequest ModelQueue::Take(Entries::const_iterator entry) {
  std::string memory = std::move(entry->request.merge_key);
  QueuedRequest request = std::move(entry->request);
  entry->request.merge_key = std::move(memory);
  spare_.push_back(entries_.extract(entry));
  work_ -= request.estimate;
  rows_ -= request.rows;
  if (entries_.empty()) work_ = absl::ZeroDuration();
  return request;
}

QueuedRequest ModelQueue::Take(const QueuedRequest& request) {
  const absl::Time deadline = request.call->deadline();
  auto entry = entries_.lower_bound(Entry{{deadline, 0}, {}});
  while (entry != entries_.end() && &entry->request != &request) ++entry;
  CHECK(entry != entries_.end()) << "a request that is not queued";
  return Take(entry);
}

void ModelQueue::CountTurn(bool with_deadline) {
  run_with_deadline_ = with_deadline ? run_with_deadline_ + 1 : 0;
}

std::vector<QueuedRequest> ModelQueue::TakeExpired(absl::Time now) {
  std::vector<QueuedRequest> expired;
  // The order is by deadline, so the expired ones are in front.
  while (!entries_.empty() && entries_.begin()->key.deadline <= now) {
    expired.push_back(Take(entries_.begin()));
  }
  return expired;
}

std::vector<QueuedRequest> ModelQueue::TakeAbandoned() {
  std::vector<QueuedRequest> abandoned;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->request.call->abandoned()) abandoned.push_back(Take(entry));
    entry = next;
  }
  return abandoned;
}

std::vector<QueuedRequest> ModelQueue::TakeAll() {
  std::vector<QueuedRequest> all;
  all.reserve(entries_.size());
  while (!entries_.empty()) all.push_back(Take(entries_.begin()));
  return all;
}

ModelQueue::Work ModelQueue::WorkBefore(absl::Time deadline,
                                        absl::Duration enough) const {
  Work work;
  for (const Entry& entry : entries_) {
    if (entry.key.deadline > deadline || work.time > enough) break;
    work.time += entry.request.estimate;
    work.rows += entry.request.rows;
  }
  return work;
}

}  // namespace refract::gpu_node
