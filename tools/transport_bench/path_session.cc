#include "tools/transport_bench/path_session.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/transport_bench/pattern.h"

namespace refract::transport_bench {
namespace {

using transport::Access;
using transport::Completion;
using transport::PostResult;

// As large as the message layer's header.
constexpr size_t kDescriptorBytes = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<PathSession>> PathSession::Create(
    std::unique_ptr<transport::PathResources> resources,
    std::unique_ptr<transport::DataPath> path, const Setup& setup) {
  std::unique_ptr<PathSession> session(
      new PathSession(std::move(resources), std::move(path), setup.side));
  transport::DataPath& p = *session->path_;
  const size_t bytes =
      std::max(Stride(setup.work.point.bytes), kDescriptorBytes) *
      static_cast<size_t>(setup.work.outstanding);
  REFRACT_ASSIGN_OR_RETURN(session->inbox_,
                           p.CreateRegion(bytes, Access::kRemoteWrite));
  REFRACT_ASSIGN_OR_RETURN(session->source_,
                           p.CreateRegion(bytes, Access::kRemoteRead));
  REFRACT_ASSIGN_OR_RETURN(session->local_,
                           p.CreateRegion(bytes, Access::kLocal));
  REFRACT_ASSIGN_OR_RETURN(const std::string inbox, p.Export(session->inbox_));
  REFRACT_ASSIGN_OR_RETURN(const std::string source,
                           p.Export(session->source_));
  REFRACT_ASSIGN_OR_RETURN(const std::string peer_inbox,
                           setup.control->Exchange(inbox));
  REFRACT_ASSIGN_OR_RETURN(const std::string peer_source,
                           setup.control->Exchange(source));
  REFRACT_ASSIGN_OR_RETURN(session->peer_inbox_, p.Import(peer_inbox));
  REFRACT_ASSIGN_OR_RETURN(session->peer_source_, p.Import(peer_source));
  // Neither may post before the other has imported.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("imported").status());
  return session;
}

absl::Status PathSession::Run(const Work& work, Recorder& recorder) {
  work_ = work;
  REFRACT_RETURN_IF_ERROR(Begin());
  switch (work.point.op) {
    case Op::kPingPong:
      REFRACT_RETURN_IF_ERROR(PingPong(recorder));
      break;
    case Op::kPull:
      REFRACT_RETURN_IF_ERROR(Pull(recorder));
      break;
    case Op::kGet:
      REFRACT_RETURN_IF_ERROR(Get(recorder));
      break;
    case Op::kStream:
      REFRACT_RETURN_IF_ERROR(Stream(recorder));
      break;
    case Op::kGetStream:
      REFRACT_RETURN_IF_ERROR(GetStream(recorder));
      break;
    case Op::kFanIn:
      return absl::UnimplementedError("fan-in of one path");
  }
  return Until([this] { return puts_done_ == puts_posted_; });
}

absl::Status PathSession::Begin() {
  puts_posted_ = puts_done_ = gets_posted_ = gets_done_ = notes_ = 0;
  ordered_ = true;
  if (side_ == Side::kInitiator) {
    REFRACT_RETURN_IF_ERROR(Until([this] { return notes_ == 1; }));
    notes_ = 0;
    return absl::OkStatus();
  }
  const Op op = work_.point.op;
  if (work_.verify && (op == Op::kGet || op == Op::kGetStream)) {
    for (int i = 0; i < work_.outstanding; ++i) {
      FillPattern({source_.data() + Slot(i), work_.point.bytes}, work_.seed,
                  side_, i);
    }
  }
  REFRACT_RETURN_IF_ERROR(Tell(0));
  return Until([this] { return puts_done_ == puts_posted_; });
}

absl::Status PathSession::PingPong(Recorder& recorder) {
  const size_t bytes = work_.point.bytes;
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    const auto came = [this, i] { return notes_ > i; };
    if (side_ == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(Put(i, bytes));
      REFRACT_RETURN_IF_ERROR(Until(came));
      recorder.Lap();
      REFRACT_RETURN_IF_ERROR(CheckInbox(i));
    } else {
      REFRACT_RETURN_IF_ERROR(Until(came));
      REFRACT_RETURN_IF_ERROR(CheckInbox(i));
      REFRACT_RETURN_IF_ERROR(Put(i, bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status PathSession::Pull(Recorder& recorder) {
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    const auto came = [this, i] { return notes_ > i; };
    if (side_ == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(Put(i, kDescriptorBytes));
      REFRACT_RETURN_IF_ERROR(Until(came));
      recorder.Lap();
    } else {
      REFRACT_RETURN_IF_ERROR(Until(came));
      REFRACT_RETURN_IF_ERROR(PostGet(i));
      REFRACT_RETURN_IF_ERROR(Until([this, i] { return gets_done_ > i; }));
      REFRACT_RETURN_IF_ERROR(CheckGot(i));
      REFRACT_RETURN_IF_ERROR(Tell(static_cast<uint32_t>(i)));
    }
  }
  return absl::OkStatus();
}

absl::Status PathSession::ServeGets() {
  return Until([this] { return notes_ == 1; });
}

absl::Status PathSession::Get(Recorder& recorder) {
  if (side_ == Side::kResponder) return ServeGets();
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    REFRACT_RETURN_IF_ERROR(PostGet(i));
    REFRACT_RETURN_IF_ERROR(Until([this, i] { return gets_done_ > i; }));
    recorder.Lap();
    REFRACT_RETURN_IF_ERROR(CheckGot(i));
  }
  return Tell(0);
}

absl::Status PathSession::GetStream(Recorder& recorder) {
  if (side_ == Side::kResponder) return ServeGets();
  const int window =
      std::min<int>(work_.outstanding,
                    static_cast<int>(path_->limits().max_outstanding_gets));
  int checked = 0;
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    REFRACT_RETURN_IF_ERROR(
        Until([&] { return gets_posted_ - gets_done_ < window; }));
    for (; checked < gets_done_; ++checked) {
      REFRACT_RETURN_IF_ERROR(CheckGot(checked));
    }
    REFRACT_RETURN_IF_ERROR(PostGet(i));
  }
  REFRACT_RETURN_IF_ERROR(Until([this] { return gets_done_ == gets_posted_; }));
  recorder.Stop();
  for (; checked < gets_done_; ++checked) {
    REFRACT_RETURN_IF_ERROR(CheckGot(checked));
  }
  return Tell(0);
}

absl::Status PathSession::Stream(Recorder& recorder) {
  if (side_ == Side::kResponder) return StreamIn();
  recorder.Start();
  REFRACT_RETURN_IF_ERROR(StreamOut());
  recorder.Stop();
  return absl::OkStatus();
}

absl::Status PathSession::StreamOut() {
  last_imm_ = 0;  // messages that the peer has taken
  const auto taken = [this] { return static_cast<int>(last_imm_); };
  for (int i = 0; i < work_.iterations; ++i) {
    REFRACT_RETURN_IF_ERROR(
        Until([&] { return i - taken() < work_.outstanding; }));
    REFRACT_RETURN_IF_ERROR(Put(i, work_.point.bytes));
  }
  return Until([&] { return taken() == work_.iterations; });
}

absl::Status PathSession::StreamIn() {
  const int half = std::max(1, work_.outstanding / 2);
  for (int i = 0; i < work_.iterations; ++i) {
    REFRACT_RETURN_IF_ERROR(Until([this, i] { return notes_ > i; }));
    REFRACT_RETURN_IF_ERROR(CheckInbox(i));
    if ((i + 1) % half == 0 || i + 1 == work_.iterations) {
      REFRACT_RETURN_IF_ERROR(Tell(static_cast<uint32_t>(i) + 1));
    }
  }
  return absl::OkStatus();
}

absl::Status PathSession::Progress() {
  const size_t count = path_->Poll(absl::MakeSpan(completions_));
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = completions_[i];
    switch (completion.kind) {
      case Completion::Kind::kPut:
        ++puts_done_;
        break;
      case Completion::Kind::kGet:
        ++gets_done_;
        break;
      case Completion::Kind::kNotify:
        last_imm_ = completion.imm;
        ordered_ &= completion.imm == static_cast<uint32_t>(notes_);
        ++notes_;
        break;
    }
  }
  if (count > 0) {
    waiter_.Worked();
    return absl::OkStatus();
  }
  if (!path_->status().ok()) return path_->status();
  if (work_.point.mode != Mode::kEvent) return waiter_.Idle();
  if (!path_->Arm()) return absl::OkStatus();
  pollfd fd = {path_->fd(), POLLIN, 0};
  if (poll(&fd, 1, Waiter::kPatienceSeconds * 1000) == 0) {
    return absl::DeadlineExceededError("the peer does not answer");
  }
  return absl::OkStatus();
}

size_t PathSession::Slot(int i) const {
  return std::max(Stride(work_.point.bytes), kDescriptorBytes) *
         static_cast<size_t>(i % work_.outstanding);
}

absl::Status PathSession::Posted(PostResult result) {
  switch (result) {
    case PostResult::kPosted:
      return absl::OkStatus();
    case PostResult::kBroken:
      if (!path_->status().ok()) return path_->status();
      return absl::UnavailableError("the path is broken");
    default:
      return absl::InternalError("the path refused an operation");
  }
}

absl::Status PathSession::Put(int i, size_t bytes) {
  REFRACT_RETURN_IF_ERROR(
      Until([this] { return puts_posted_ - puts_done_ < work_.outstanding; }));
  std::byte* source = source_.data() + Slot(i);
  if (work_.verify) {
    FillPattern({source, work_.point.bytes}, work_.seed, side_, i);
  }
  PostResult result;
  while ((result = path_->PutNotify(peer_inbox_, Slot(i), {source, bytes},
                                    static_cast<uint32_t>(i), 0)) ==
         PostResult::kFull) {
    REFRACT_RETURN_IF_ERROR(Progress());
  }
  ++puts_posted_;
  return Posted(result);
}

absl::Status PathSession::Tell(uint32_t imm) {
  PostResult result;
  while ((result = path_->PutNotify(peer_inbox_, 0, {}, imm, 0)) ==
         PostResult::kFull) {
    REFRACT_RETURN_IF_ERROR(Progress());
  }
  ++puts_posted_;
  return Posted(result);
}

absl::Status PathSession::PostGet(int i) {
  std::byte* place = local_.data() + Slot(i);
  if (work_.verify) std::memset(place, 0, work_.point.bytes);
  PostResult result;
  while ((result = path_->Get(peer_source_, Slot(i), {place, work_.point.bytes},
                              0)) == PostResult::kFull) {
    REFRACT_RETURN_IF_ERROR(Progress());
  }
  ++gets_posted_;
  return Posted(result);
}

absl::Status PathSession::CheckInbox(int i) {
  if (!ordered_) {
    return absl::DataLossError("a notification came with another immediate");
  }
  if (!work_.verify) return absl::OkStatus();
  return CheckPattern({inbox_.data() + Slot(i), work_.point.bytes}, work_.seed,
                      peer_, i);
}

absl::Status PathSession::CheckGot(int i) {
  if (!work_.verify) return absl::OkStatus();
  // A pulled message is written anew; what gets read stays as it was.
  const int sequence = work_.point.op == Op::kPull ? i : i % work_.outstanding;
  return CheckPattern({local_.data() + Slot(i), work_.point.bytes}, work_.seed,
                      peer_, sequence);
}

}  // namespace refract::transport_bench
