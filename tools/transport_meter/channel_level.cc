#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/transport_meter/control.h"
#include "tools/transport_meter/levels.h"
#include "tools/transport_meter/pattern.h"
#include "transport/links/channel.h"
#include "transport/paths/paths.h"

namespace refract::transport_meter {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(Waiter::kPatienceSeconds);

// When the bytes are checked, a second tensor holds the message's number: the
// channel shows no ids, and pulled messages may overtake each other.
std::vector<base::TensorSpec> Specs(const Work& work, size_t bytes) {
  std::vector<base::TensorSpec> specs = MessageSpecs(bytes);
  if (work.verify && bytes > 0) specs.push_back({base::DType::kInt64, {1}});
  return specs;
}

void Fill(const transport::OutgoingMessage& message, size_t bytes,
          const Work& work, Side from, int64_t i) {
  if (!work.verify || bytes == 0) return;
  FillPattern({message.data(0), bytes}, work.seed, from,
              static_cast<uint64_t>(i));
  std::memcpy(message.data(1), &i, sizeof(i));
}

absl::Status Check(absl::Span<const base::TensorView> tensors, size_t bytes,
                   const Work& work, Side from) {
  const size_t got = tensors.empty() ? 0 : tensors.front().bytes;
  if (got != bytes || tensors.size() != Specs(work, bytes).size()) {
    return absl::DataLossError(
        absl::StrCat("a message has ", got, " B instead of ", bytes));
  }
  if (!work.verify || bytes == 0) return absl::OkStatus();
  int64_t i = 0;
  std::memcpy(&i, tensors[1].data, sizeof(i));
  if (i < 0 || i >= work.iterations) {
    return absl::DataLossError(absl::StrCat("message ", i, " was never sent"));
  }
  return CheckPattern({static_cast<const std::byte*>(tensors[0].data), bytes},
                      work.seed, from, static_cast<uint64_t>(i));
}

size_t ResponseBytes(const Work& work) {
  return work.point.op == Op::kPingPong ? work.point.bytes : 0;
}

// The end of a run: the first call of End() counts, since an error of one
// message is followed by errors of the others. Ended before the first Begin(),
// so that callbacks outside a run change nothing.
class Outcome {
 public:
  void Begin() {
    absl::MutexLock lock(&mu_);
    ended_ = false;
    status_ = absl::OkStatus();
  }
  void End(absl::Status status) {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
  }
  absl::Status Await() {
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&ended_), kPatience)) {
      return absl::DeadlineExceededError("the peer does not answer");
    }
    return status_;
  }

 private:
  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = true;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

class ClientSession : public Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const transport::ClientOptions& options, absl::string_view path) {
    std::unique_ptr<ClientSession> session(new ClientSession());
    REFRACT_ASSIGN_OR_RETURN(session->client_,
                             transport::Client::Create(options, nullptr));
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    transport::ClientState state = session->client_->state();
    // Not part of any measurement, so a check per millisecond is good enough.
    while (!state.connected && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
      state = session->client_->state();
    }
    if (!state.connected) {
      return base::Annotate(state.last_error.ok()
                                ? absl::UnavailableError("no connection")
                                : state.last_error,
                            path);
    }
    if (state.path != path) {
      return absl::FailedPreconditionError(
          absl::StrCat("the channel chose ", state.path, ", not ", path));
    }
    return session;
  }

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    recorder_ = &recorder;
    sent_ = 0;
    answered_ = 0;
    outcome_.Begin();
    // A stream keeps `window` messages under way: each answer sends the next
    // request. Other operations have one, whose answer ends a lap.
    const int window = IsStream(work.point.op)
                           ? std::min(work.outstanding, work.iterations)
                           : 1;
    recorder.Start();
    {
      absl::MutexLock lock(&mu_);
      for (int i = 0; i < window; ++i) SendNext();
    }
    const absl::Status status = outcome_.Await();
    // Running callbacks must not outlive the recorder.
    if (!status.ok()) client_.reset();
    return status;
  }

 private:
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int i = sent_++;
    absl::StatusOr<transport::OutgoingMessage> message =
        client_->Allocate(0, Specs(work_, work_.point.bytes));
    if (!message.ok()) return outcome_.End(message.status());
    Fill(*message, work_.point.bytes, work_, Side::kInitiator, i);
    client_->Send(*std::move(message), absl::InfiniteFuture(),
                  [this](absl::StatusOr<transport::IncomingMessage> answer) {
                    OnAnswer(std::move(answer));
                  });
  }

  void OnAnswer(absl::StatusOr<transport::IncomingMessage> answer) {
    if (!answer.ok()) return outcome_.End(answer.status());
    absl::MutexLock lock(&mu_);
    if (!IsStream(work_.point.op)) recorder_->Lap();
    const absl::Status correct =
        Check(answer->tensors(), ResponseBytes(work_), work_, Side::kResponder);
    if (!correct.ok()) return outcome_.End(correct);
    // Gives the answer's slot back before the next request, as a client does
    // that keeps nothing.
    *answer = transport::IncomingMessage();
    if (++answered_ == work_.iterations) {
      recorder_->Stop();
      return outcome_.End(absl::OkStatus());
    }
    if (sent_ < work_.iterations) SendNext();
  }

  // Only the first window is sent from a thread other than the callbacks'.
  absl::Mutex mu_;
  Work work_;
  Recorder* recorder_ = nullptr;
  int sent_ ABSL_GUARDED_BY(mu_) = 0;
  int answered_ ABSL_GUARDED_BY(mu_) = 0;
  Outcome outcome_;
  // Last, so that it is destroyed first: its thread runs the callbacks.
  std::unique_ptr<transport::Client> client_;
};

class ServerSession : public Session, public transport::Handler {
 public:
  static absl::StatusOr<std::unique_ptr<ServerSession>> Create(
      const transport::ServerOptions& options) {
    std::unique_ptr<ServerSession> session(new ServerSession());
    REFRACT_ASSIGN_OR_RETURN(session->server_,
                             transport::Server::Create(options, session.get()));
    return session;
  }
  int port() const { return server_->port(); }

  absl::StatusOr<size_t> OnOffer(const transport::ModelOffer&) override {
    return size_t{0};
  }

  void OnRequest(std::unique_ptr<transport::ServerCall> call) override {
    const absl::Status status = Answer(*call);
    if (!status.ok()) {
      outcome_.End(status);
      call->Fail(status);
    }
  }

  absl::Status Prepare(const Work& work) override {
    outcome_.Begin();
    absl::MutexLock lock(&mu_);
    work_ = work;
    // Before the initiator is told to begin (Session::Prepare): requests may
    // come at once.
    received_ = 0;
    return absl::OkStatus();
  }
  absl::Status Run(const Work&, Recorder&) override { return outcome_.Await(); }

 private:
  absl::Status Answer(transport::ServerCall& call) {
    // One connection, one thread: never contended.
    absl::MutexLock lock(&mu_);
    REFRACT_RETURN_IF_ERROR(
        Check(call.tensors(), work_.point.bytes, work_, Side::kInitiator));
    const size_t bytes = ResponseBytes(work_);
    REFRACT_ASSIGN_OR_RETURN(transport::OutgoingMessage reply,
                             call.AllocateReply(Specs(work_, bytes)));
    Fill(reply, bytes, work_, Side::kResponder, received_);
    call.Reply(std::move(reply));
    if (++received_ == work_.iterations) outcome_.End(absl::OkStatus());
    return absl::OkStatus();
  }

  absl::Mutex mu_;
  Work work_ ABSL_GUARDED_BY(mu_);
  int received_ ABSL_GUARDED_BY(mu_) = 0;
  Outcome outcome_;
  std::unique_ptr<transport::Server> server_;
};

class ChannelSubject : public Subject {
 public:
  explicit ChannelSubject(const PathSpec& spec) : spec_(spec) {}

  bool Supports(const Point& point) const override {
    return point.mode == Mode::kAdaptive &&
           (point.op == Op::kPingPong || point.op == Op::kPull ||
            point.op == Op::kStream);
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    if (setup.side == Side::kResponder) {
      auto options = Options<transport::ServerOptions>(setup.work);
      options.host = "127.0.0.1";
      REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<ServerSession> session,
                               ServerSession::Create(options));
      REFRACT_RETURN_IF_ERROR(
          setup.control->Send(absl::StrCat(session->port())));
      return session;
    }
    REFRACT_ASSIGN_OR_RETURN(const std::string port, setup.control->Receive());
    auto options = Options<transport::ClientOptions>(setup.work);
    options.address = absl::StrCat("127.0.0.1:", port);
    options.models.push_back({"bench", 1, {}, {}});
    return ClientSession::Create(options, transport::PathName(spec_.path));
  }

 private:
  // The options of both sides.
  template <typename T>
  T Options(const Work& work) const {
    T options;
    options.path =
        transport::PathPreferenceNamed(transport::PathName(spec_.path));
    options.rdma_device = spec_.rdma_device;
    options.limits = LimitsFor(work, spec_.eager_bytes);
    options.liveness_timeout = kPatience;
    return options;
  }

  const PathSpec spec_;
};

}  // namespace

std::unique_ptr<Subject> ChannelLevel(const PathSpec& spec) {
  return std::make_unique<ChannelSubject>(spec);
}

}  // namespace refract::transport_meter
