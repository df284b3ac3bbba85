#include "cpu_node/discovery/node_watch.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/process/files.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// Interval of EndLeft(): requests of leaving nodes end in milliseconds.
constexpr absl::Duration kLeavingInterval = absl::Milliseconds(50);

std::string Join(absl::string_view host, int port) {
  const bool is_ipv6 = host.find(':') != absl::string_view::npos;
  return is_ipv6 ? absl::StrCat("[", host, "]:", port)
                 : absl::StrCat(host, ":", port);
}

// Keeps the records of the lowest priority, as RFC 2782 asks. Weights are
// ignored: the node policy knows how loaded the nodes are.
std::vector<std::string> FirstPriority(
    const std::vector<Resolver::Service>& records) {
  std::vector<std::string> nodes;
  int least = 0;
  for (const Resolver::Service& record : records) {
    const absl::string_view host = absl::StripSuffix(record.host, ".");
    // The target "." says that there is no such service; port 0 reaches nobody.
    if (host.empty() || record.port < 1 || record.port > 65535) continue;
    if (nodes.empty() || record.priority < least) {
      nodes.clear();
      least = record.priority;
    }
    if (record.priority == least) nodes.push_back(Join(host, record.port));
  }
  return nodes;
}

}  // namespace

NodeList::NodeList(std::vector<NodeSource> sources, absl::Duration interval,
                   Resolver* resolver)
    : interval_(interval), resolver_(resolver) {
  for (NodeSource& source : sources) {
    Source entry{.source = std::move(source), .due = absl::InfinitePast()};
    if (entry.source.kind == NodeSource::Kind::kFixed) {
      entry.nodes = {entry.source.name};
      entry.due = absl::InfiniteFuture();
    } else {
      entry.status = absl::UnavailableError("not asked yet");
    }
    sources_.push_back(std::move(entry));
  }
}

absl::StatusOr<std::vector<std::string>> NodeList::Ask(const NodeSource& source,
                                                       std::stop_token stop) {
  std::vector<std::string> nodes;
  switch (source.kind) {
    case NodeSource::Kind::kAddresses: {
      REFRACT_ASSIGN_OR_RETURN(nodes, resolver_->Addresses(source.name, stop));
      for (std::string& node : nodes) node = Join(node, source.port);
      break;
    }
    case NodeSource::Kind::kServices: {
      REFRACT_ASSIGN_OR_RETURN(const std::vector<Resolver::Service> records,
                               resolver_->Services(source.name, stop));
      nodes = FirstPriority(records);
      break;
    }
    case NodeSource::Kind::kFile: {
      REFRACT_ASSIGN_OR_RETURN(const std::string text,
                               base::ReadText(source.name));
      REFRACT_ASSIGN_OR_RETURN(nodes, ParseNodeFile(text));
      break;
    }
    case NodeSource::Kind::kFixed:
      nodes = {source.name};
      break;
  }
  if (nodes.empty()) return absl::NotFoundError("the answer names no GPU node");
  return nodes;
}

std::optional<std::vector<std::string>> NodeList::Look(absl::Time now,
                                                       std::stop_token stop) {
  for (Source& source : sources_) {
    if (source.due > now) continue;
    const bool is_file = source.source.kind == NodeSource::Kind::kFile;
    source.due =
        now + (is_file ? std::min(interval_, kFileInterval) : interval_);
    absl::StatusOr<std::vector<std::string>> nodes = Ask(source.source, stop);
    if (stop.stop_requested()) return std::nullopt;
    if (!nodes.ok()) {
      // A source that fails keeps the nodes of its last answer: a DNS server
      // that is down must not empty the pool.
      // A first failure is reported even if no look succeeded before.
      if (source.failures++ == 0 || source.status.ok()) {
        LOG(WARNING)
            << "GPU nodes of " << source.source.text << ": "
            << nodes.status().message()
            << (source.nodes.empty()
                    ? "; the source is asked again until it names nodes"
                    : absl::StrCat("; the ", source.nodes.size(),
                                   " nodes of its last answer stay in use"));
      }
      source.status = nodes.status();
      continue;
    }
    if (source.failures > 0 && !source.status.ok()) {
      LOG(INFO) << "GPU nodes of " << source.source.text
                << ": answers again, with " << nodes->size() << " node(s)";
    }
    source.status = absl::OkStatus();
    source.nodes = *std::move(nodes);
  }
  std::vector<std::string> all;
  absl::flat_hash_set<std::string> seen;
  for (const Source& source : sources_) {
    for (const std::string& node : source.nodes) {
      if (seen.insert(node).second) all.push_back(node);
    }
  }
  // Sorted, because DNS servers answer in any order.
  std::vector<std::string> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  if (sorted == told_) return std::nullopt;
  told_ = std::move(sorted);
  return all;
}

absl::Time NodeList::next_due() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Source& source : sources_) next = std::min(next, source.due);
  return next;
}

// ------------------------------------------------------------------ the thread

absl::StatusOr<std::unique_ptr<NodeWatch>> NodeWatch::Start(
    std::vector<NodeSource> sources, absl::Duration interval,
    std::unique_ptr<Resolver> resolver, NodePool* pool) {
  std::unique_ptr<NodeWatch> watch(
      new NodeWatch(std::move(sources), interval, std::move(resolver), pool));
  REFRACT_ASSIGN_OR_RETURN(
      watch->thread_, base::StartThread([raw = watch.get()] { raw->Run(); }));
  return watch;
}

NodeWatch::NodeWatch(std::vector<NodeSource> sources, absl::Duration interval,
                     std::unique_ptr<Resolver> resolver, NodePool* pool)
    : resolver_(std::move(resolver)),
      pool_(pool),
      list_(std::move(sources), interval, resolver_.get()) {
  Show();
}

NodeWatch::~NodeWatch() {
  stop_.request_stop();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void NodeWatch::Run() {
  base::Clock& clock = base::Clock::Real();
  std::vector<std::string> wanted;
  absl::Status applied;
  while (true) {
    auto nodes = list_.Look(clock.Now(), stop_.get_token());
    if (nodes.has_value()) {
      wanted = *std::move(nodes);
      LOG(INFO) << wanted.size()
                << " GPU node(s) are listed: " << absl::StrJoin(wanted, ", ");
    }
    // Tries again when there was no room: nodes may have left since.
    if (nodes.has_value() || !applied.ok()) {
      const absl::Status status = pool_->SetAddresses(wanted);
      if (!status.ok() && status != applied) LOG(WARNING) << status.message();
      applied = status;
    }
    Show();
    // Leaving nodes are looked at on this thread, because ending a client waits
    // for the transport's threads.
    const bool leaving = pool_->EndLeft();
    absl::Time next = list_.next_due();
    if (leaving) next = std::min(next, clock.Now() + kLeavingInterval);
    absl::MutexLock lock(&mu_);
    if (clock.AwaitWithDeadline(mu_, absl::Condition(&stopping_), next)) return;
  }
}

void NodeWatch::Show() {
  std::vector<Shown> shown;
  for (const NodeList::Source& source : list_.sources()) {
    shown.push_back({source.source.text, source.nodes.size(),
                     source.status.ok(), source.failures});
  }
  absl::MutexLock lock(&mu_);
  shown_ = std::move(shown);
}

void NodeWatch::Collect(metrics::Exposition& out) const {
  absl::MutexLock lock(&mu_);
  for (const Shown& shown : shown_) {
    const metrics::Labels source = {{"source", shown.source}};
    out.AddGauge("refract_discovery_nodes",
                 "GPU nodes of the last good answer, by entry of --gpu-nodes",
                 source, static_cast<double>(shown.nodes));
    out.AddGauge("refract_discovery_up",
                 "1 if the last look-up of the source succeeded", source,
                 shown.ok);
    out.AddCounter("refract_discovery_failures_total",
                   "Look-ups of the source that failed", source,
                   static_cast<double>(shown.failures));
  }
}

}  // namespace refract::cpu_node
