#include "transport/verbs/device/ibv_device.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/fd.h"
#include "transport/verbs/device/ibv_library.h"
#include "transport/verbs/device/port_counters.h"

namespace refract::transport::verbs {
namespace {

absl::Status SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "fcntl of an RDMA event descriptor");
  }
  return absl::OkStatus();
}

// After a failed destroy the device may still use the object's memory. The log
// says so, because no caller can find out.
void CheckDestroyed(int error, const char* what) {
  if (error != 0) {
    LOG(ERROR) << "destroying an RDMA " << what
               << " failed: " << std::strerror(error);
  }
}

class IbvMemoryRegion final : public MemoryRegion {
 public:
  explicit IbvMemoryRegion(ibv_mr* region) : region_(region) {}
  ~IbvMemoryRegion() override {
    CheckDestroyed(ibv_dereg_mr(region_), "memory region");
  }
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t remote_key() const override { return region_->rkey; }

 private:
  ibv_mr* const region_;
};

class IbvCompletionQueue final : public CompletionQueue {
 public:
  explicit IbvCompletionQueue(ibv_cq* queue) : queue_(queue) {
    // IbvCompletionChannel::TakeEvents finds the object of an event by this
    // pointer.
    queue->cq_context = this;
  }
  ~IbvCompletionQueue() override {
    CheckDestroyed(ibv_destroy_cq(queue_), "completion queue");
  }
  int Poll(int count, ibv_wc* out) override {
    return ibv_poll_cq(queue_, count, out);
  }
  int Arm(bool solicited_only) override {
    // The last request for an event still stands: the event will come, or waits
    // in the channel. A further call to the device would change nothing.
    if (armed_ && (solicited_only || !armed_solicited_only_)) return 0;
    const int error = ibv_req_notify_cq(queue_, solicited_only ? 1 : 0);
    armed_ = error == 0;
    armed_solicited_only_ = solicited_only;
    return error;
  }
  void OnEvent() { armed_ = false; }
  ibv_cq* get() const { return queue_; }

 private:
  ibv_cq* const queue_;
  bool armed_ = false;
  bool armed_solicited_only_ = false;
};

class IbvCompletionChannel final : public CompletionChannel {
 public:
  explicit IbvCompletionChannel(ibv_comp_channel* channel)
      : channel_(channel) {}
  ~IbvCompletionChannel() override {
    CheckDestroyed(ibv_destroy_comp_channel(channel_), "completion channel");
  }
  int fd() const override { return channel_->fd; }
  int TakeEvents() override {
    int taken = 0;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(channel_, &queue, &context) == 0) {
      // ibv_destroy_cq() waits for every event to be acknowledged.
      ibv_ack_cq_events(queue, 1);
      static_cast<IbvCompletionQueue*>(context)->OnEvent();
      ++taken;
    }
    return taken;
  }
  ibv_comp_channel* get() const { return channel_; }

 private:
  ibv_comp_channel* const channel_;
};

class IbvSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  explicit IbvSharedReceiveQueue(ibv_srq* queue) : queue_(queue) {}
  ~IbvSharedReceiveQueue() override {
    CheckDestroyed(ibv_destroy_srq(queue_), "shared receive queue");
  }
  int Post(ibv_recv_wr* list, ibv_recv_wr** bad) override {
    return ibv_post_srq_recv(queue_, list, bad);
  }
  ibv_srq* get() const { return queue_; }

 private:
  ibv_srq* const queue_;
};

class IbvQueuePair final : public QueuePair {
 public:
  IbvQueuePair(ibv_qp* pair, uint32_t max_inline)
      : pair_(pair), max_inline_(max_inline) {}
  ~IbvQueuePair() override {
    CheckDestroyed(ibv_destroy_qp(pair_), "queue pair");
  }
  uint32_t number() const override { return pair_->qp_num; }
  uint32_t max_inline() const override { return max_inline_; }
  int Modify(const ibv_qp_attr& attributes, int mask) override {
    // ibv_modify_qp() takes a pointer to non-const.
    ibv_qp_attr copy = attributes;
    return ibv_modify_qp(pair_, &copy, mask);
  }
  int PostSend(ibv_send_wr* list, ibv_send_wr** bad) override {
    return ibv_post_send(pair_, list, bad);
  }

 private:
  ibv_qp* const pair_;
  const uint32_t max_inline_;
};

GidType ToGidType(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kInfiniband;
  }
}

bool InterfaceUp(const std::string& name) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  name.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  return fd.valid() && ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0 &&
         (request.ifr_flags & IFF_UP) != 0 &&
         (request.ifr_flags & IFF_RUNNING) != 0;
}

}  // namespace

IbvDevice::IbvDevice(ibv_context* context)
    : context_(context), name_(ibv_get_device_name(context->device)) {}

absl::Status IbvDevice::ErrorOf(absl::string_view call) const {
  return ErrnoStatus(errno, absl::StrCat(call, " on ", name_));
}

absl::StatusOr<std::unique_ptr<Device>> IbvDevice::Create(
    ibv_context* context) {
  std::unique_ptr<IbvDevice> device(new IbvDevice(context));
  // TakeAsyncEvent() reads until no event is left.
  REFRACT_RETURN_IF_ERROR(SetNonBlocking(context->async_fd));
  if (const int error = ibv_query_device(context, &device->attributes_);
      error != 0) {
    errno = error;
    return device->ErrorOf("ibv_query_device");
  }
  // For shared receive queues alone: their requests are empty, so no memory is
  // registered here. Each path has a domain of its own (CreateDomain).
  device->domain_.reset(ibv_alloc_pd(context));
  if (device->domain_ == nullptr) return device->ErrorOf("ibv_alloc_pd");
  return device;
}

absl::StatusOr<std::vector<PortInfo>> IbvDevice::Ports() const {
  std::vector<PortInfo> ports;
  size_t max_gids = 0;
  for (uint8_t number = 1; number <= attributes_.phys_port_cnt; ++number) {
    PortInfo port;
    port.number = number;
    if (const int error =
            ibv_query_port(context_.get(), number, &port.attributes);
        error != 0) {
      errno = error;
      return ErrorOf(absl::StrCat("ibv_query_port ", number));
    }
    max_gids += static_cast<size_t>(port.attributes.gid_tbl_len);
    ports.push_back(std::move(port));
  }
  // One call for the tables of all ports; empty entries are left out of it.
  std::vector<ibv_gid_entry> entries(max_gids);
  const ssize_t count =
      ibv_query_gid_table(context_.get(), entries.data(), entries.size(), 0);
  if (count < 0) {
    errno = static_cast<int>(-count);
    return ErrorOf("ibv_query_gid_table");
  }
  entries.resize(static_cast<size_t>(count));
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num < 1 || entry.port_num > ports.size()) continue;
    GidEntry gid;
    gid.index = static_cast<int>(entry.gid_index);
    gid.gid = entry.gid;
    gid.type = ToGidType(entry.gid_type);
    std::array<char, IF_NAMESIZE> interface = {};
    if (entry.ndev_ifindex != 0 &&
        if_indextoname(entry.ndev_ifindex, interface.data()) != nullptr) {
      gid.network_device = interface.data();
      gid.network_device_up = InterfaceUp(gid.network_device);
    }
    ports[entry.port_num - 1].gids.push_back(std::move(gid));
  }
  return ports;
}

absl::StatusOr<std::unique_ptr<ProtectionDomain>> IbvDevice::CreateDomain() {
  ibv_pd* domain = ibv_alloc_pd(context_.get());
  if (domain == nullptr) return ErrorOf("ibv_alloc_pd");
  return std::make_unique<IbvDomain>(domain, name_);
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> IbvDomain::Register(void* data,
                                                                  size_t bytes,
                                                                  int access) {
  ibv_mr* region = ibv_reg_mr(domain_.get(), data, bytes, access);
  if (region == nullptr) {
    const int error = errno;
    // Both codes mean that the limit of locked memory is too low.
    const std::string advice =
        error == ENOMEM || error == EPERM ? MemlockAdvice(bytes) : "";
    return absl::Status(error == ENOMEM || error == EPERM
                            ? absl::StatusCode::kResourceExhausted
                            : absl::StatusCode::kInternal,
                        absl::StrCat("registering ", bytes, " B with ", name_,
                                     ": ", std::strerror(error), advice));
  }
  return std::make_unique<IbvMemoryRegion>(region);
}

absl::StatusOr<std::unique_ptr<CompletionChannel>> IbvDevice::CreateChannel() {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_.get());
  if (channel == nullptr) return ErrorOf("ibv_create_comp_channel");
  auto owner = std::make_unique<IbvCompletionChannel>(channel);
  REFRACT_RETURN_IF_ERROR(SetNonBlocking(channel->fd));
  return owner;
}

absl::StatusOr<std::unique_ptr<CompletionQueue>>
IbvDevice::CreateCompletionQueue(int entries, CompletionChannel* channel) {
  ibv_cq* queue = ibv_create_cq(
      context_.get(), entries, nullptr,
      channel == nullptr ? nullptr
                         : static_cast<IbvCompletionChannel*>(channel)->get(),
      0);
  if (queue == nullptr) {
    return ErrorOf(absl::StrCat("ibv_create_cq of ", entries));
  }
  return std::make_unique<IbvCompletionQueue>(queue);
}

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>>
IbvDevice::CreateSharedReceiveQueue(uint32_t entries) {
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = entries;
  attributes.attr.max_sge = 1;
  ibv_srq* queue = ibv_create_srq(domain_.get(), &attributes);
  if (queue == nullptr) {
    return ErrorOf(absl::StrCat("ibv_create_srq of ", entries));
  }
  return std::make_unique<IbvSharedReceiveQueue>(queue);
}

absl::StatusOr<std::unique_ptr<QueuePair>> IbvDomain::CreateQueuePair(
    const QueuePairOptions& options) {
  ibv_qp_init_attr attributes = {};
  attributes.send_cq =
      static_cast<IbvCompletionQueue*>(options.send_queue)->get();
  attributes.recv_cq =
      static_cast<IbvCompletionQueue*>(options.receive_queue)->get();
  attributes.srq =
      static_cast<IbvSharedReceiveQueue*>(options.shared_receive_queue)->get();
  attributes.cap.max_send_wr = options.max_send_requests;
  attributes.cap.max_send_sge = options.max_send_segments;
  attributes.cap.max_inline_data = options.wanted_inline;
  // Reliable connected; sq_sig_all stays 0, so only requests that ask for it
  // make a completion (SendLane::Ring).
  attributes.qp_type = IBV_QPT_RC;
  ibv_qp* pair = ibv_create_qp(domain_.get(), &attributes);
  while (pair == nullptr && errno == EINVAL && options.wanted_inline > 0 &&
         attributes.cap.max_inline_data > 0) {
    // The device allows less inline data. No attribute tells how much, so half
    // of it is tried until a size is accepted.
    attributes.cap.max_send_wr = options.max_send_requests;
    attributes.cap.max_inline_data /= 2;
    pair = ibv_create_qp(domain_.get(), &attributes);
  }
  if (pair == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("ibv_create_qp on ", name_));
  }
  return std::make_unique<IbvQueuePair>(pair, attributes.cap.max_inline_data);
}

std::optional<AsyncEvent> IbvDevice::TakeAsyncEvent() {
  ibv_async_event event;
  if (ibv_get_async_event(context_.get(), &event) != 0) return std::nullopt;
  // The event names its object by a pointer that is valid until it is
  // acknowledged: its number is copied.
  AsyncEvent taken;
  taken.type = event.event_type;
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      taken.queue_pair = event.element.qp->qp_num;
      break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      taken.port = static_cast<uint8_t>(event.element.port_num);
      break;
    default:
      break;
  }
  ibv_ack_async_event(&event);
  return taken;
}

std::optional<uint64_t> IbvDevice::HardwareCounter(
    uint8_t port, absl::string_view name) const {
  return ReadPortCounter(context_->device->ibdev_path, port, name);
}

}  // namespace refract::transport::verbs
