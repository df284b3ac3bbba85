#ifndef REFRACT_TESTS_GPU_NODE_FAKE_SERVER_CALL_H_
#define REFRACT_TESTS_GPU_NODE_FAKE_SERVER_CALL_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

// How each call of a test was answered, by the call's name. Thread-safe.
class Answers {
 public:
  void Record(const std::string& name, absl::Status status) {
    absl::MutexLock lock(&mu_);
    answers_[name].push_back(std::move(status));
  }
  // InternalError unless the call was answered exactly once.
  absl::Status Of(const std::string& name) const {
    absl::MutexLock lock(&mu_);
    const auto found = answers_.find(name);
    if (found == answers_.end()) return absl::InternalError("unanswered");
    if (found->second.size() != 1) return absl::InternalError("answered twice");
    return found->second[0];
  }
  bool Answered(const std::string& name) const {
    absl::MutexLock lock(&mu_);
    return answers_.contains(name);
  }
  size_t size() const {
    absl::MutexLock lock(&mu_);
    return answers_.size();
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::vector<absl::Status>> answers_
      ABSL_GUARDED_BY(mu_);
};

// A call without tensors; its answer goes to `answers`.
class FakeServerCall : public transport::ServerCall {
 public:
  FakeServerCall(std::string name, absl::Time deadline, Answers* answers,
                 bool abandoned = false)
      : name_(std::move(name)),
        deadline_(deadline),
        answers_(answers),
        abandoned_(abandoned) {}

  const std::string& name() const { return name_; }

  size_t model() const override { return 0; }
  absl::Time deadline() const override { return deadline_; }
  absl::Span<const base::TensorView> tensors() const override { return {}; }
  bool settled() const override { return true; }
  bool abandoned() const override { return abandoned_; }
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec>) override {
    return absl::UnimplementedError("a fake has no memory");
  }
  void Reply(transport::OutgoingMessage) override {
    answers_->Record(name_, absl::OkStatus());
  }
  void Fail(const absl::Status& status) override {
    answers_->Record(name_, status);
  }

 private:
  const std::string name_;
  const absl::Time deadline_;
  Answers* const answers_;
  const bool abandoned_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_FAKE_SERVER_CALL_H_
