#include "partitioner/verify/requester.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "partitioner/verify/interrupt.h"
#include "tools/loadgen/targets/grpc_target.h"

namespace refract::partitioner {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(30);
// Time for compiling a large model and mapping large tables.
constexpr absl::Duration kReadyTimeout = absl::Minutes(5);
constexpr absl::Duration kRequestTimeout = absl::Minutes(1);
// Interval of the checks that the nodes live and the user has not interrupted.
constexpr absl::Duration kLook = absl::Milliseconds(200);

constexpr int kTimedPerTurn = 4;

// Waits for the answer of one request. Done() may run on any thread, also
// within Issue(), and takes the time before it waits for the lock.
class OneAnswer : public loadgen::CompletionSink {
 public:
  void Done(size_t, absl::StatusCode code) override {
    const absl::Time now = clock_.Now();
    absl::MutexLock lock(&mu_);
    at_ = now;
    code_ = code;
    done_ = true;
  }
  bool Await(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    return clock_.AwaitWithDeadline(mu_, absl::Condition(&done_), deadline);
  }
  // After Await() returned true.
  absl::Time at() const { return at_; }
  absl::StatusCode code() const { return code_; }

 private:
  base::Clock& clock_ = base::Clock::Real();
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time at_;
  absl::StatusCode code_ = absl::StatusCode::kUnknown;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Requester>> Requester::Connect(NodePair* nodes) {
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<loadgen::Target> target,
      loadgen::ConnectGrpc({.addresses = {nodes->address()},
                            .connections = 1,
                            .connect_timeout = kConnectTimeout},
                           base::Clock::Real()));
  return std::unique_ptr<Requester>(new Requester(nodes, std::move(target)));
}

absl::Status Requester::AwaitModel(const std::string& model) {
  base::Clock& clock = base::Clock::Real();
  const absl::Time deadline = clock.Now() + kReadyTimeout;
  while (true) {
    // Unavailable: the model is not loaded yet, or no HN has it. Any other
    // error is final.
    const absl::Status ready =
        target_->DescribeModel(model, /*version=*/"", kLook).status();
    if (!absl::IsUnavailable(ready)) return ready;
    REFRACT_RETURN_IF_ERROR(InterruptGuard::Check());
    REFRACT_RETURN_IF_ERROR(nodes_.CheckAlive());
    if (clock.Now() > deadline) return ready;
  }
}

size_t Requester::Prepare(const std::string& model, const models::Graph& graph,
                          absl::Span<const base::Tensor> inputs) {
  loadgen::ServedModel served{.name = model};
  for (size_t i = 0; i < inputs.size(); ++i) {
    served.inputs.push_back(
        {graph.value(graph.inputs[i]).name, inputs[i].dtype(), {}});
  }
  target_->Prepare(served, inputs);
  models_.push_back(model);
  return models_.size() - 1;
}

absl::StatusOr<double> Requester::Time(size_t request) {
  REFRACT_RETURN_IF_ERROR(InterruptGuard::Check());
  base::Clock& clock = base::Clock::Real();
  OneAnswer answer;
  const absl::Time begin = clock.Now();
  target_->Issue(queries_++, request, begin + kRequestTimeout, answer);
  // The target uses `answer` until the request ends, at the latest by its own
  // deadline. So an interruption is kept, and returned after that.
  absl::Status interrupted;
  while (!answer.Await(clock.Now() + kLook)) {
    interrupted.Update(InterruptGuard::Check());
  }
  REFRACT_RETURN_IF_ERROR(interrupted);
  if (answer.code() == absl::StatusCode::kOk) {
    return absl::ToDoubleSeconds(answer.at() - begin);
  }
  REFRACT_RETURN_IF_ERROR(nodes_.CheckAlive());
  const auto errors = target_->TakeAnswers().first_errors;
  const auto error = errors.find(answer.code());
  return absl::Status(answer.code(),
                      absl::StrCat("a request of ", models_[request], ": ",
                                   error == errors.end() ? "" : error->second));
}

absl::StatusOr<std::vector<std::vector<double>>> Requester::TimeInRounds(
    absl::Span<const std::vector<size_t>> subjects, int rounds,
    absl::string_view what, const ProgressFn& progress) {
  std::vector<std::vector<double>> times(subjects.size());
  std::vector<size_t> next(subjects.size(), 0);
  for (int round = 0; round < rounds; ++round) {
    progress(absl::StrCat(what, ": round ", round + 1, " of ", rounds));
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      const size_t s = (turn + static_cast<size_t>(round)) % subjects.size();
      for (int i = 0; i < 1 + kTimedPerTurn; ++i) {
        const size_t request = subjects[s][next[s]++ % subjects[s].size()];
        REFRACT_ASSIGN_OR_RETURN(const double seconds, Time(request));
        // The first request of a turn finds caches that another subject has
        // used.
        if (i > 0) times[s].push_back(seconds);
      }
    }
  }
  return times;
}

absl::StatusOr<loadgen::RecordedResponse> Requester::Ask(size_t request) {
  // The target records answers of the requests below this number; 0: none.
  target_->Record(request + 1);
  const absl::Status status = Time(request).status();
  absl::StatusOr<loadgen::RecordedResponse> response =
      status.ok() ? target_->Recorded(request) : status;
  target_->Record(0);
  return response;
}

absl::StatusOr<loadgen::ServerTimes> Requester::Statistics(
    const std::string& model) {
  return target_->Statistics({.name = model});
}

}  // namespace refract::partitioner
