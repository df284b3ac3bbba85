#include "placement/fabric/fabric.h"

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::placement {
namespace {

constexpr std::array<absl::string_view, kNumTiers> kNames = {
    "host", "leaf", "pod", "zone", "region", "far"};

bool Shares(const std::string& a, const std::string& b) {
  return !a.empty() && a == b;
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

// HOST of "HOST:PORT" and of "[HOST]:PORT".
absl::string_view HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return host;
}

}  // namespace

absl::string_view Name(Tier tier) { return kNames[static_cast<size_t>(tier)]; }

Tier TierBetween(const FabricHost& a, const FabricHost& b) {
  // Nearest domain first: Add() has made sure that hosts of one leaf are in one
  // pod, and so on.
  if (a.name == b.name) return Tier::kHost;
  if (Shares(a.leaf, b.leaf)) return Tier::kLeaf;
  if (Shares(a.pod, b.pod)) return Tier::kPod;
  if (Shares(a.zone, b.zone)) return Tier::kZone;
  if (Shares(a.region, b.region)) return Tier::kRegion;
  return Tier::kFar;
}

absl::Status Fabric::Add(FabricHost host) {
  // Checks first, so that a refused host changes nothing.
  const auto is_known = [&](const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return absl::OkStatus();
    const std::string& owner = hosts_[found->second].name;
    return absl::InvalidArgumentError(
        name == host.name && name == owner
            ? absl::StrCat("host ", name, " is listed twice")
            : absl::StrCat(name, " stands for two hosts: ", owner, " and ",
                           host.name));
  };
  REFRACT_RETURN_IF_ERROR(is_known(host.name));
  for (const std::string& address : host.addresses) {
    REFRACT_RETURN_IF_ERROR(is_known(address));
  }
  const struct {
    const char* kind;
    const char* above;
    std::string FabricHost::*domain;
    std::string FabricHost::*parent;
    std::map<std::string, size_t>* seen;
  } kKinds[] = {
      {"leaf", "pod", &FabricHost::leaf, &FabricHost::pod, &leaves_},
      {"pod", "zone", &FabricHost::pod, &FabricHost::zone, &pods_},
      {"zone", "region", &FabricHost::zone, &FabricHost::region, &zones_},
  };
  for (const auto& kind : kKinds) {
    const auto found = kind.seen->find(host.*kind.domain);
    // The first host of a domain has fixed the domain above it.
    if (found == kind.seen->end()) continue;
    const FabricHost& first = hosts_[found->second];
    if (first.*kind.parent != host.*kind.parent) {
      return absl::InvalidArgumentError(absl::StrCat(
          "contradictory labels: ", kind.kind, " ", host.*kind.domain,
          " is in ", kind.above, " \"", host.*kind.parent, "\" for host ",
          host.name, " and in \"", first.*kind.parent, "\" for host ",
          first.name));
    }
  }
  const size_t index = hosts_.size();
  for (const auto& kind : kKinds) {
    if (!(host.*kind.domain).empty()) {
      kind.seen->try_emplace(host.*kind.domain, index);
    }
  }
  by_name_[host.name] = index;
  for (const std::string& address : host.addresses) by_name_[address] = index;
  hosts_.push_back(std::move(host));
  return absl::OkStatus();
}

const FabricHost* Fabric::Find(absl::string_view name) const {
  auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    // IP addresses are left out: their first part names no host.
    const absl::string_view label = name.substr(0, name.find('.'));
    if (label.find_first_not_of("0123456789") == absl::string_view::npos) {
      return nullptr;
    }
    found = by_name_.find(std::string(label));
  }
  return found == by_name_.end() ? nullptr : &hosts_[found->second];
}

Tier Fabric::TierTo(const FabricHost& self, absl::string_view address) const {
  const absl::string_view name = HostOf(address);
  if (IsLoopback(name)) return Tier::kHost;
  const FabricHost* const host = Find(name);
  return host == nullptr ? Tier::kFar : TierBetween(self, *host);
}

}  // namespace refract::placement
