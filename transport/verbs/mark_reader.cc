#include "transport/verbs/mark_reader.h"

#include <glog/logging.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/process/thread.h"

namespace refract::transport::verbs {
namespace {

// Counters of this port as the receiver, DCQCN's notification point: mlx5,
// irdma, bnxt_re.
constexpr absl::string_view kNames[] = {"np_cnp_sent", "cnpSent",
                                        "tx_cnp_pkts"};

}  // namespace

MarkReader::~MarkReader() {
  if (!running_) return;
  stopping_ = true;
  waker_->Wake();
  thread_.join();
}

void MarkReader::Add(const std::shared_ptr<DeviceContext>& device) {
  std::vector<Counter> found;
  for (int port = 1; port <= device->device().attributes().phys_port_cnt;
       ++port) {
    const auto number = static_cast<uint8_t>(port);
    for (const absl::string_view name : kNames) {
      const std::optional<uint64_t> value =
          device->device().HardwareCounter(number, name);
      if (!value.has_value()) continue;
      // A port has one of these counters: its driver's.
      found.push_back({device, number, std::string(name), *value});
      break;
    }
  }
  absl::MutexLock lock(&mu_);
  std::erase_if(counters_, [](const Counter& counter) {
    return counter.device.expired();
  });
  for (const Counter& counter : counters_) {
    if (counter.device.lock() == device) return;
  }
  if (found.empty()) return;
  std::move(found.begin(), found.end(), std::back_inserter(counters_));
  if (running_) return;
  absl::StatusOr<std::shared_ptr<ThreadWaker>> waker = ThreadWaker::Create();
  if (!waker.ok()) {
    LOG(WARNING) << "congestion notifications are not read: " << waker.status();
    return;
  }
  waker_ = *std::move(waker);
  absl::StatusOr<std::thread> thread = base::StartThread([this] { Run(); });
  if (!thread.ok()) {
    LOG(WARNING) << "congestion notifications are not read: "
                 << thread.status();
    return;
  }
  thread_ = *std::move(thread);
  running_ = true;
}

std::optional<uint64_t> MarkReader::Take() {
  if (!running_) return std::nullopt;
  std::optional<uint64_t> marks;
  // In this order: a read that ends in between counts for the next call.
  if (read_.exchange(false)) marks = marks_.exchange(0);
  // Starts the next read, on the reader's thread: reading a counter may take
  // the driver a while.
  waker_->Wake();
  return marks;
}

void MarkReader::Run() {
  while (!stopping_) {
    if (waker_->Arm()) {
      pollfd fd = {waker_->fd(), POLLIN, 0};
      poll(&fd, 1, -1);
      waker_->Disarm();
    }
    if (!stopping_) Read();
  }
}

void MarkReader::Read() {
  uint64_t marks = 0;
  {
    absl::MutexLock lock(&mu_);
    for (Counter& counter : counters_) {
      const std::shared_ptr<DeviceContext> device = counter.device.lock();
      if (device == nullptr) continue;
      const std::optional<uint64_t> value =
          device->device().HardwareCounter(counter.port, counter.name);
      if (!value.has_value()) continue;
      // A lower counter than before was reset.
      if (*value > counter.last) marks += *value - counter.last;
      counter.last = *value;
    }
  }
  marks_ += marks;
  read_ = true;
}

}  // namespace refract::transport::verbs
