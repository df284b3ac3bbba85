#include "tests/transport/verbs_sim/nic/device.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/completion_queue.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"
#include "tests/transport/verbs_sim/nic/receive_queue.h"
#include "tests/transport/verbs_sim/nic/sim_objects.h"
#include "transport/loop/fd.h"

namespace refract::transport::sim {
namespace {

ibv_mtu MtuCode(uint32_t bytes) {
  ibv_mtu code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (128u << (code + 1)) <= bytes) {
    code = static_cast<ibv_mtu>(code + 1);
  }
  return code;
}

// The way to write a rate: lanes times rate of one (IBTA 1.4 table 155).
struct Rate {
  uint64_t gigabits;
  uint8_t width;  // code; 2 is four lanes
  uint8_t speed;
};
constexpr Rate kRates[] = {{10, 2, 1},   {20, 2, 2},   {25, 1, 32},
                           {40, 2, 4},   {56, 2, 16},  {100, 2, 32},
                           {200, 2, 64}, {400, 2, 128}};

class SimDevice final : public verbs::Device {
 public:
  SimDevice(std::shared_ptr<Simulation> simulation, Nic& nic, UniqueFd event_fd)
      : simulation_(std::move(simulation)),
        nic_(nic),
        name_(nic.options.device) {
    context_->event_fd = std::move(event_fd);
    const NicOptions& limits = nic.options;
    attributes_.max_mr_size = limits.max_region_bytes;
    attributes_.max_mr = limits.max_regions;
    attributes_.max_qp = limits.max_queue_pairs;
    attributes_.max_qp_wr = limits.max_send_requests;
    attributes_.max_sge = limits.max_segments;
    attributes_.max_sge_rd = limits.max_segments;
    attributes_.max_cq = limits.max_completion_queues;
    attributes_.max_cqe = limits.max_completion_entries;
    attributes_.max_srq = limits.max_shared_queues;
    attributes_.max_srq_wr = limits.max_shared_entries;
    attributes_.max_pd = limits.max_domains;
    attributes_.max_qp_rd_atom = limits.max_reads;
    attributes_.max_qp_init_rd_atom = limits.max_started_reads;
    attributes_.page_size_cap = 4096;
    attributes_.phys_port_cnt = 1;
    absl::MutexLock lock(&simulation_->mu);
    static_assert(sizeof(attributes_.node_guid) == sizeof(uint64_t));
    attributes_.node_guid = nic.id + 1;
    nic_.contexts.push_back(context_.get());
  }
  ~SimDevice() override {
    absl::MutexLock lock(&simulation_->mu);
    auto& all = nic_.contexts;
    all.erase(std::find(all.begin(), all.end(), context_.get()));
    if (context_->objects > 0) {
      nic_.AddViolation(
          absl::StrCat("closed with ", context_->objects, " objects left"));
    }
  }

  absl::string_view name() const override { return name_; }
  const ibv_device_attr& attributes() const override { return attributes_; }

  absl::StatusOr<std::vector<verbs::PortInfo>> Ports() const override {
    absl::MutexLock lock(&simulation_->mu);
    if (nic_.broken) return absl::UnavailableError("the device is broken");
    verbs::PortInfo port;
    port.number = 1;
    ibv_port_attr& attributes = port.attributes;
    attributes.state = nic_.port_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    // LinkUp and Disabled (IBTA 1.4 table 155).
    attributes.phys_state = nic_.port_up ? 5 : 3;
    attributes.max_mtu = IBV_MTU_4096;
    attributes.active_mtu = MtuCode(nic_.options.mtu);
    attributes.gid_tbl_len = static_cast<int>(nic_.gids.size());
    attributes.pkey_tbl_len = 1;
    attributes.max_msg_sz =
        static_cast<uint32_t>(nic_.options.max_message_bytes);
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
    for (const Rate& rate : kRates) {
      if (rate.gigabits * 1'000'000'000 <= nic_.options.bits_per_second) {
        attributes.active_width = rate.width;
        attributes.active_speed = rate.speed;
      }
    }
    port.gids = nic_.gids;
    return std::vector<verbs::PortInfo>{port};
  }

  absl::StatusOr<std::unique_ptr<verbs::ProtectionDomain>> CreateDomain()
      override {
    absl::MutexLock lock(&simulation_->mu);
    if (nic_.domains >= nic_.options.max_domains) {
      return TooMany("protection domains", nic_.options.max_domains);
    }
    if (nic_.broken) return absl::UnavailableError("the device is broken");
    return std::make_unique<SimDomain>(simulation_, nic_, context_);
  }

  absl::StatusOr<std::unique_ptr<verbs::CompletionChannel>> CreateChannel()
      override {
    UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, "eventfd");
    absl::MutexLock lock(&simulation_->mu);
    return std::make_unique<SimChannel>(simulation_, nic_, context_,
                                        std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      int entries, verbs::CompletionChannel* channel) override {
    absl::MutexLock lock(&simulation_->mu);
    const NicOptions& limits = nic_.options;
    if (entries <= 0 || entries > limits.max_completion_entries) {
      return absl::InvalidArgumentError(
          absl::StrCat("a completion queue of ", entries, " entries; max_cqe ",
                       limits.max_completion_entries));
    }
    if (nic_.completion_queues() >=
        static_cast<size_t>(limits.max_completion_queues)) {
      return TooMany("completion queues", limits.max_completion_queues);
    }
    // Exactly as many as asked for: devices round up, and code that relies on
    // it must fail here.
    auto state = std::make_shared<CompletionQueueState>(
        nic_, context_, entries,
        channel == nullptr ? nullptr
                           : static_cast<SimChannel*>(channel)->state());
    return std::make_unique<SimCompletionQueue>(simulation_, nic_, context_,
                                                std::move(state));
  }

  absl::StatusOr<std::unique_ptr<verbs::SharedReceiveQueue>>
  CreateSharedReceiveQueue(uint32_t entries) override {
    absl::MutexLock lock(&simulation_->mu);
    const NicOptions& limits = nic_.options;
    if (entries == 0 ||
        entries > static_cast<uint32_t>(limits.max_shared_entries)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a shared receive queue of ", entries,
                       " entries; max_srq_wr ", limits.max_shared_entries));
    }
    if (nic_.shared_queues >= limits.max_shared_queues) {
      return TooMany("shared receive queues", limits.max_shared_queues);
    }
    return std::make_unique<SimSharedReceiveQueue>(
        simulation_, nic_, context_,
        std::make_shared<ReceiveQueueState>(nic_, entries));
  }

  int async_fd() const override { return context_->event_fd.get(); }
  std::optional<verbs::AsyncEvent> TakeAsyncEvent() override {
    absl::MutexLock lock(&simulation_->mu);
    if (context_->events.empty()) return std::nullopt;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got =
        read(context_->event_fd.get(), &count, sizeof(count));
    const verbs::AsyncEvent event = context_->events.front();
    context_->events.pop_front();
    return event;
  }

  std::optional<uint64_t> HardwareCounter(
      uint8_t port, absl::string_view name) const override {
    absl::MutexLock lock(&simulation_->mu);
    if (port != 1) return std::nullopt;
    return CounterByName(nic_.counters, name);
  }

 private:
  const std::shared_ptr<Simulation> simulation_;
  Nic& nic_;
  const std::string name_;
  ibv_device_attr attributes_ = {};
  const std::shared_ptr<Context> context_ = std::make_shared<Context>();
};

}  // namespace

absl::StatusOr<std::vector<std::string>> SimLibrary::DeviceNames() const {
  absl::MutexLock lock(&simulation_->mu);
  std::vector<std::string> names;
  for (const Nic* nic : simulation_->hosts[host_].nics) {
    names.push_back(nic->options.device);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<verbs::Device>> SimLibrary::Open(
    absl::string_view name) const {
  Nic* found = nullptr;
  {
    absl::MutexLock lock(&simulation_->mu);
    for (Nic* nic : simulation_->hosts[host_].nics) {
      if (nic->options.device == name) found = nic;
    }
  }
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("no RDMA device ", name));
  }
  UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!fd.valid()) return ErrnoStatus(errno, "eventfd");
  return std::make_unique<SimDevice>(simulation_, *found, std::move(fd));
}

}  // namespace refract::transport::sim
