#include "placement/planner/deployment.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace refract::placement {
namespace {

constexpr size_t kLongestLabel = 63;  // RFC 1123
constexpr size_t kLongestObjectName = 253;
// Pods of a StatefulSet have the label controller-revision-hash: the name, '-'
// and up to 10 characters, together at most a label's 63.
constexpr size_t kLongestServiceName = 52;
constexpr int kMostReplicas = 1'000'000;
constexpr int kMostPort = 65535;

absl::Status Wrong(const Service& service, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("service '", service.name, "': ", what));
}

absl::Status CheckService(const Service& service) {
  if (!IsDnsLabel(service.name)) {
    return Wrong(service,
                 "name: is no DNS label (a-z, 0-9, '-', 63 at the most)");
  }
  if (!absl::ascii_islower(service.name.front()) ||
      service.name.size() > kLongestServiceName) {
    return Wrong(service,
                 absl::StrCat("name: must begin with a letter and have ",
                              kLongestServiceName, " characters at the most"));
  }
  if (!IsDnsLabel(service.app)) {
    return Wrong(service,
                 absl::StrCat("app: '", service.app, "' is no DNS label"));
  }
  if (service.replicas < 1 || service.replicas > kMostReplicas) {
    return Wrong(service, absl::StrCat("replicas: ", service.replicas,
                                       ", must be 1 to ", kMostReplicas));
  }
  if (service.least_replicas < 1 || service.least_replicas > service.replicas) {
    return Wrong(service,
                 absl::StrCat("least_replicas: ", service.least_replicas,
                              ", must be 1 to replicas, ", service.replicas));
  }
  if (service.parallel < 1) {
    return Wrong(service, absl::StrCat("parallel: ", service.parallel,
                                       ", must be at least 1"));
  }
  if (service.role == Role::kCn && service.demand.gpus > 0) {
    return Wrong(service, absl::StrCat("gpus: ", service.demand.gpus,
                                       ", a CN has no GPU"));
  }
  const absl::Status demand = Check(service.demand);
  if (!demand.ok()) return Wrong(service, demand.message());
  return absl::OkStatus();
}

}  // namespace

bool IsObjectName(absl::string_view name) {
  if (name.size() > kLongestObjectName) return false;
  for (const absl::string_view label : absl::StrSplit(name, '.')) {
    for (const char c : label) {
      if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') {
        return false;
      }
    }
    if (label.empty() || label.front() == '-' || label.back() == '-') {
      return false;
    }
  }
  return true;
}

bool IsDnsLabel(absl::string_view name) {
  return IsObjectName(name) && name.size() <= kLongestLabel &&
         !absl::StrContains(name, '.');
}

namespace {

// Whether `key` can be the key of a Kubernetes label, such as zone or
// example.com/leaf.
bool IsLabelKey(absl::string_view key) {
  absl::string_view name = key;
  if (const size_t slash = key.find('/'); slash != key.npos) {
    if (!IsObjectName(key.substr(0, slash))) return false;
    name = key.substr(slash + 1);
  }
  const auto inside = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= kLongestLabel &&
         std::all_of(name.begin(), name.end(), inside) &&
         absl::ascii_isalnum(name.front()) && absl::ascii_isalnum(name.back());
}

}  // namespace

absl::Status Check(const Deployment& deployment) {
  if (!IsDnsLabel(deployment.name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "deployment '", deployment.name,
        "': name: is no DNS label (a-z, 0-9, '-', 63 at the most)"));
  }
  for (const std::string& key : deployment.tier_keys) {
    if (!IsLabelKey(key)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "labels of the fabric: '", key,
          "' is no key of a node label (a name of a-z, A-Z, 0-9, '-', '_' and "
          "'.', 63 at the most, after a DNS name and '/' or alone)"));
    }
  }
  if (deployment.services.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "deployment '", deployment.name, "': services: there are none"));
  }
  for (const int port : {deployment.grpc_port, deployment.cn_metrics_port,
                         deployment.hn_port, deployment.hn_metrics_port}) {
    if (port < 0 || port > kMostPort) {
      return absl::InvalidArgumentError(
          absl::StrCat("deployment '", deployment.name, "': port ", port,
                       ", must be 0 to ", kMostPort));
    }
  }
  std::set<std::string> names;
  for (const Service& service : deployment.services) {
    const absl::Status status = CheckService(service);
    if (!status.ok()) return status;
    if (!names.insert(service.name).second) {
      return Wrong(service, "name: occurs twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::placement
