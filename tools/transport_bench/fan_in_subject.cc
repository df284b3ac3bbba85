#include "tools/transport_bench/fan_in_subject.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/transport_bench/message_flow.h"
#include "tools/transport_bench/message_limits.h"
#include "tools/transport_bench/waiter.h"

namespace refract::transport_bench {
namespace {

class FanInSession : public Session {
 public:
  FanInSession(std::vector<std::unique_ptr<MessageFlow>> flows, Side side)
      : flows_(std::move(flows)), side_(side) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    for (const auto& flow : flows_) flow->Begin(work);
    if (side_ == Side::kResponder) {
      REFRACT_RETURN_IF_ERROR(
          Until([this] { return received() == work_.iterations; }));
    } else {
      REFRACT_RETURN_IF_ERROR(Initiate(recorder));
    }
    REFRACT_RETURN_IF_ERROR(Until([this] {
      return std::all_of(flows_.begin(), flows_.end(),
                         [](const auto& flow) { return flow->all_sent(); });
    }));
    for (const auto& flow : flows_) {
      REFRACT_RETURN_IF_ERROR(flow->LastCredits());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Initiate(Recorder& recorder) {
    const auto count = static_cast<int>(flows_.size());
    const int window = std::max(1, work_.outstanding / count);
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      MessageFlow& flow = *flows_[static_cast<size_t>(i % count)];
      // Of this flow before message i.
      const int earlier = i / count;
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return earlier - flow.received() < window; }));
      REFRACT_RETURN_IF_ERROR(flow.SendRequest(i));
    }
    REFRACT_RETURN_IF_ERROR(
        Until([this] { return received() == work_.iterations; }));
    recorder.Stop();
    return absl::OkStatus();
  }

  int received() const {
    int sum = 0;
    for (const auto& flow : flows_) sum += flow->received();
    return sum;
  }

  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) {
      int worked = 0;
      for (const auto& flow : flows_) {
        REFRACT_RETURN_IF_ERROR(flow->Step(&worked));
      }
      if (worked > 0) {
        waiter_.Worked();
      } else {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      }
    }
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<MessageFlow>> flows_;
  const Side side_;
  Work work_;
  Waiter waiter_;
};

class FanIn : public Subject {
 public:
  FanIn(proto::TransportPath path, std::string rdma_device, size_t eager_bytes,
        int flows)
      : path_(path),
        rdma_device_(std::move(rdma_device)),
        eager_bytes_(eager_bytes),
        flows_(flows) {}

  bool Supports(const Point& point) const override {
    return point.op == Op::kFanIn && point.mode == Mode::kBusy;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    Work each = setup.work;
    each.outstanding = std::max(1, each.outstanding / flows_);
    std::vector<std::unique_ptr<MessageFlow>> flows;
    std::shared_ptr<transport::PathResources> resources;
    for (int i = 0; i < flows_; ++i) {
      REFRACT_ASSIGN_OR_RETURN(
          std::unique_ptr<MessageFlow> flow,
          MessageFlow::Open(path_, rdma_device_, eager_bytes_, setup, each,
                            resources));
      resources = flow->resources();
      flows.push_back(std::move(flow));
    }
    return std::make_unique<FanInSession>(std::move(flows), setup.side);
  }

 private:
  const proto::TransportPath path_;
  const std::string rdma_device_;
  const size_t eager_bytes_;
  const int flows_;
};

}  // namespace

std::unique_ptr<Subject> FanInSubject(proto::TransportPath path,
                                      const std::string& rdma_device,
                                      size_t eager_bytes, int flows) {
  return std::make_unique<FanIn>(path, rdma_device, eager_bytes, flows);
}

}  // namespace refract::transport_bench
