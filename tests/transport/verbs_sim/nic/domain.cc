// Protection domains: registration of memory, and queue pairs.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/sim_objects.h"

namespace refract::transport::sim {
namespace {

constexpr int kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB;

}  // namespace

SimDomain::SimDomain(std::shared_ptr<Simulation> simulation, Nic& nic,
                     std::shared_ptr<Context> context)
    : SimObject(std::move(simulation), nic, std::move(context)) {
  domain_->number = nic_.next_domain++;
  ++nic_.domains;
}

SimDomain::~SimDomain() {
  absl::MutexLock lock(&simulation_->mu);
  --context_->objects;
  --nic_.domains;
  if (domain_->objects > 0) {
    nic_.AddViolation(absl::StrCat("protection domain destroyed with ",
                                   domain_->objects, " objects"));
  }
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> SimDomain::Register(
    void* data, size_t bytes, int access) {
  // Before the lock, so that a failure destroys it after: it takes the lock.
  std::unique_ptr<SimMemoryRegion> region;
  absl::MutexLock lock(&simulation_->mu);
  region =
      std::make_unique<SimMemoryRegion>(simulation_, nic_, context_, domain_);
  if (nic_.registrations_until_failure >= 0 &&
      nic_.registrations_until_failure-- == 0) {
    return nic_.registration_failure;
  }
  if (data == nullptr || bytes == 0 || bytes > nic_.options.max_region_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a region of ", bytes, " bytes"));
  }
  // Remote write access needs local write access (IBTA 1.4, 10.6.3.1).
  if ((access & ~kKnownAccess) != 0 ||
      ((access & IBV_ACCESS_REMOTE_WRITE) != 0 &&
       (access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("access flags ", access));
  }
  if (nic_.memory.size() >= static_cast<size_t>(nic_.options.max_regions)) {
    return TooMany("memory regions", nic_.options.max_regions);
  }
  if (nic_.broken) return absl::UnavailableError("the device is broken");
  region->Set(nic_.memory.Add(reinterpret_cast<uint64_t>(data),
                              static_cast<std::byte*>(data), bytes, access,
                              domain_->number));
  return region;
}

absl::StatusOr<std::unique_ptr<verbs::QueuePair>> SimDomain::CreateQueuePair(
    const verbs::QueuePairOptions& options) {
  absl::MutexLock lock(&simulation_->mu);
  const NicOptions& limits = nic_.options;
  if (options.send_queue == nullptr || options.receive_queue == nullptr ||
      options.max_send_requests == 0 ||
      options.max_send_requests >
          static_cast<uint32_t>(limits.max_send_requests) ||
      options.max_send_segments == 0 ||
      options.max_send_segments > static_cast<uint32_t>(limits.max_segments)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a queue pair of ", options.max_send_requests, " requests with ",
        options.max_send_segments, " segments; limits ",
        limits.max_send_requests, " and ", limits.max_segments));
  }
  if (nic_.queue_pairs() >= static_cast<size_t>(limits.max_queue_pairs)) {
    return TooMany("queue pairs", limits.max_queue_pairs);
  }
  if (nic_.broken) return absl::UnavailableError("the device is broken");
  const QueuePairState::Limits granted = {
      options.max_send_requests, options.max_send_segments,
      std::min(options.wanted_inline, limits.max_inline)};
  return std::make_unique<SimQueuePair>(
      simulation_, nic_, context_, domain_,
      std::make_shared<QueuePairState>(
          nic_, context_, domain_->number, granted,
          static_cast<SimCompletionQueue*>(options.send_queue)->state(),
          static_cast<SimCompletionQueue*>(options.receive_queue)->state(),
          options.shared_receive_queue == nullptr
              ? nullptr
              : static_cast<SimSharedReceiveQueue*>(
                    options.shared_receive_queue)
                    ->state()));
}

}  // namespace refract::transport::sim
