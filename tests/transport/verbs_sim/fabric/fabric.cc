#include "tests/transport/verbs_sim/fabric/fabric.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/device.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"

namespace refract::transport::sim {
namespace {

Picoseconds SinceStart(absl::Time time) {
  if (time == absl::InfiniteFuture()) return INT64_MAX;
  return ToPicoseconds(time - absl::UnixEpoch());
}

}  // namespace

Fabric::Fabric(const FabricOptions& options)
    : simulation_(std::make_shared<Simulation>(options)) {}

Fabric::~Fabric() = default;

int Fabric::AddHost(const HostOptions& options) {
  absl::MutexLock lock(&simulation_->mu);
  const int number = static_cast<int>(simulation_->hosts.size());
  Host& host = simulation_->hosts.emplace_back();
  host.name =
      options.name.empty() ? absl::StrCat("host", number) : options.name;
  for (const NicOptions& nic : options.nics) {
    simulation_->nics.push_back(std::make_unique<Nic>(
        *simulation_, static_cast<uint32_t>(simulation_->nics.size()), number,
        nic));
    host.nics.push_back(simulation_->nics.back().get());
  }
  libraries_.push_back(std::make_unique<SimLibrary>(simulation_, number));
  return number;
}

verbs::Library& Fabric::library(int host) { return *libraries_[host]; }

base::Clock& Fabric::clock() { return simulation_->clock; }

absl::Time Fabric::Now() const { return simulation_->clock.Now(); }

bool Fabric::Step() {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->Step(INT64_MAX);
}

void Fabric::RunUntil(absl::Time time) {
  absl::MutexLock lock(&simulation_->mu);
  const Picoseconds until = SinceStart(time);
  while (simulation_->Step(until)) {
  }
  if (time != absl::InfiniteFuture()) simulation_->MoveTo(until);
}

bool Fabric::RunUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
  const Picoseconds until = SinceStart(deadline);
  while (!done()) {
    absl::MutexLock lock(&simulation_->mu);
    if (simulation_->Step(until)) continue;
    if (deadline != absl::InfiniteFuture()) simulation_->MoveTo(until);
    return false;
  }
  return true;
}

void Fabric::RunUntilIdle() {
  absl::MutexLock lock(&simulation_->mu);
  while (simulation_->Step(INT64_MAX)) {
  }
}

void Fabric::At(absl::Time time, std::function<void()> action) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->ScheduleScript(SinceStart(time), std::move(action));
}

int Fabric::AddRule(PacketRule rule) {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->faults.Add(std::move(rule));
}

void Fabric::RemoveRule(int rule) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->faults.Remove(rule);
}

void Fabric::SetLink(int host, int device, bool up) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->hosts[host].nics[device]->SetPort(up);
}

void Fabric::Kill(int host) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->hosts[host].dead = true;
}

void Fabric::Pause(int host) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->hosts[host].paused = true;
}

void Fabric::Resume(int host) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->hosts[host].paused = false;
  for (Nic* nic : simulation_->hosts[host].nics) nic->Resume();
}

void Fabric::BreakDevice(int host, int device) {
  absl::MutexLock lock(&simulation_->mu);
  simulation_->hosts[host].nics[device]->Break();
}

void Fabric::SetGid(int host, int device, const verbs::GidEntry& entry) {
  absl::MutexLock lock(&simulation_->mu);
  Nic& nic = *simulation_->hosts[host].nics[device];
  const auto old = std::find_if(
      nic.gids.begin(), nic.gids.end(),
      [&](const verbs::GidEntry& gid) { return gid.index == entry.index; });
  if (old == nic.gids.end()) {
    nic.gids.push_back(entry);
  } else {
    *old = entry;
  }
  nic.RaiseAll({IBV_EVENT_GID_CHANGE, 0, 1});
}

void Fabric::RefuseAddress(int host, int device, int gid_index, int error) {
  absl::MutexLock lock(&simulation_->mu);
  Nic& nic = *simulation_->hosts[host].nics[device];
  nic.refused_gids[gid_index] = error;
}

void Fabric::FailRegistration(int host, int device, int successes,
                              absl::Status failure) {
  absl::MutexLock lock(&simulation_->mu);
  Nic& nic = *simulation_->hosts[host].nics[device];
  nic.registrations_until_failure = successes;
  nic.registration_failure = std::move(failure);
}

std::vector<std::string> Fabric::violations() const {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->violations();
}

PortCounters Fabric::counters(int host, int device) const {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->hosts[host].nics[device]->counters;
}

uint64_t Fabric::trace_hash() const {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->trace();
}

uint64_t Fabric::executed_events() const {
  absl::MutexLock lock(&simulation_->mu);
  return simulation_->executed();
}

}  // namespace refract::transport::sim
