#include "tools/transport_bench/message_subject.h"

#include <poll.h>

#include <utility>

#include "base/status_macros.h"
#include "tools/transport_bench/message_flow.h"
#include "tools/transport_bench/waiter.h"

namespace refract::transport_bench {
namespace {

class MessageSession : public Session {
 public:
  MessageSession(std::unique_ptr<MessageFlow> flow, Side side)
      : flow_(std::move(flow)), side_(side) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    flow_->Begin(work);
    if (side_ == Side::kResponder) {
      REFRACT_RETURN_IF_ERROR(
          Until([this] { return flow_->received() == work_.iterations; }));
    } else {
      REFRACT_RETURN_IF_ERROR(Initiate(recorder));
    }
    REFRACT_RETURN_IF_ERROR(Until([this] { return flow_->all_sent(); }));
    return flow_->LastCredits();
  }

 private:
  absl::Status Initiate(Recorder& recorder) {
    const bool stream = work_.point.op == Op::kStream;
    const int window = stream ? work_.outstanding : 1;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(flow_->SendRequest(i));
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return i + 1 - flow_->received() < window; }));
      if (!stream) recorder.Lap();
    }
    REFRACT_RETURN_IF_ERROR(
        Until([this] { return flow_->received() == work_.iterations; }));
    recorder.Stop();
    return absl::OkStatus();
  }

  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) {
      int worked = 0;
      REFRACT_RETURN_IF_ERROR(flow_->Step(&worked));
      if (worked > 0) {
        waiter_.Worked();
        continue;
      }
      if (work_.point.mode != Mode::kEvent) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
        continue;
      }
      if (!flow_->path().Arm()) continue;
      pollfd fd = {flow_->path().fd(), POLLIN, 0};
      if (poll(&fd, 1, Waiter::kPatienceSeconds * 1000) == 0) {
        return absl::DeadlineExceededError("the peer does not answer");
      }
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<MessageFlow> flow_;
  const Side side_;
  Work work_;
  Waiter waiter_;
};

class MessageLevel : public Subject {
 public:
  MessageLevel(proto::TransportPath path, std::string rdma_device,
               size_t eager_bytes)
      : path_(path),
        rdma_device_(std::move(rdma_device)),
        eager_bytes_(eager_bytes) {}

  bool Supports(const Point& point) const override {
    return point.mode != Mode::kAdaptive && point.op != Op::kGet &&
           point.op != Op::kGetStream && point.op != Op::kFanIn;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<MessageFlow> flow,
        MessageFlow::Open(path_, rdma_device_, eager_bytes_, setup, setup.work,
                          nullptr));
    return std::make_unique<MessageSession>(std::move(flow), setup.side);
  }

 private:
  const proto::TransportPath path_;
  const std::string rdma_device_;
  const size_t eager_bytes_;
};

}  // namespace

std::unique_ptr<Subject> MessageSubject(proto::TransportPath path,
                                        const std::string& rdma_device,
                                        size_t eager_bytes) {
  return std::make_unique<MessageLevel>(path, rdma_device, eager_bytes);
}

}  // namespace refract::transport_bench
