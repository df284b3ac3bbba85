#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "tools/transport_meter/control.h"
#include "tools/transport_meter/levels.h"
#include "tools/transport_meter/pattern.h"
#include "transport/datapath.h"
#include "transport/paths/path_resources.h"
#include "transport/paths/paths.h"

namespace refract::transport_meter {
namespace {

using transport::Access;
using transport::Completion;
using transport::PostResult;
using transport::Region;
using transport::RemoteRegion;

// As large as the message layer's header.
constexpr size_t kDescriptorBytes = 64;

// A path with its regions, and the loops over it. Each region is a ring of
// Work::outstanding slots; message i uses slot i modulo that number on both
// sides, so no addresses are exchanged during a run.
class PathSession : public Session {
 public:
  PathSession(std::unique_ptr<transport::PathResources> resources,
              std::unique_ptr<transport::DataPath> path, Side side)
      : resources_(std::move(resources)), path_(std::move(path)), side_(side) {}

  // Makes, exchanges and imports the regions.
  absl::Status Connect(const Setup& setup) {
    const size_t bytes =
        SlotBytes(setup.work) * static_cast<size_t>(setup.work.outstanding);
    REFRACT_ASSIGN_OR_RETURN(inbox_,
                             path_->CreateRegion(bytes, Access::kRemoteWrite));
    REFRACT_ASSIGN_OR_RETURN(source_,
                             path_->CreateRegion(bytes, Access::kRemoteRead));
    REFRACT_ASSIGN_OR_RETURN(local_,
                             path_->CreateRegion(bytes, Access::kLocal));
    REFRACT_ASSIGN_OR_RETURN(peer_inbox_, Swap(inbox_, *setup.control));
    REFRACT_ASSIGN_OR_RETURN(peer_source_, Swap(source_, *setup.control));
    // Neither side may post before the other has imported.
    return setup.control->Exchange("imported").status();
  }

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    REFRACT_RETURN_IF_ERROR(Begin());
    switch (work.point.op) {
      case Op::kPingPong:
      case Op::kPull:
        REFRACT_RETURN_IF_ERROR(Exchange(recorder));
        break;
      case Op::kGet:
        REFRACT_RETURN_IF_ERROR(Gets(1, recorder));
        break;
      case Op::kGetStream:
        REFRACT_RETURN_IF_ERROR(Gets(
            static_cast<int>(path_->limits().max_outstanding_gets), recorder));
        break;
      case Op::kStream:
        REFRACT_RETURN_IF_ERROR(Stream(recorder));
        break;
      case Op::kFanIn:
        return absl::UnimplementedError("fan-in of one path");
    }
    return AllPutsDone();
  }

 private:
  absl::StatusOr<RemoteRegion> Swap(const Region& own, Control& control) {
    REFRACT_ASSIGN_OR_RETURN(const std::string descriptor, path_->Export(own));
    REFRACT_ASSIGN_OR_RETURN(const std::string peer,
                             control.Exchange(descriptor));
    return path_->Import(peer);
  }

  // Both sides are in their loops, and the peer may get valid bytes.
  absl::Status Begin() {
    puts_posted_ = puts_done_ = gets_posted_ = gets_done_ = notes_ = 0;
    ordered_ = true;
    if (side_ == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(Notes(1));
      notes_ = 0;
      return absl::OkStatus();
    }
    // The initiator gets from this ring without the responder's help, so the
    // bytes are there before its first get.
    for (int i = 0; work_.verify && i < work_.outstanding; ++i) {
      FillPattern({source_.data() + Slot(i), work_.point.bytes}, work_.seed,
                  side_, i);
    }
    REFRACT_RETURN_IF_ERROR(Tell(0));
    return AllPutsDone();
  }

  // Ping-pongs and pulls.
  absl::Status Exchange(Recorder& recorder) {
    // Ping-pong: put there, put back. Pull: put of a descriptor, get by the
    // responder, empty note back. The initiator's lap ends with the note of its
    // message.
    const bool pull = work_.point.op == Op::kPull;
    const size_t bytes = pull ? kDescriptorBytes : work_.point.bytes;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      if (side_ == Side::kInitiator) REFRACT_RETURN_IF_ERROR(Put(i, bytes));
      REFRACT_RETURN_IF_ERROR(Notes(i + 1));
      if (side_ == Side::kInitiator) recorder.Lap();
      if (!pull) REFRACT_RETURN_IF_ERROR(CheckInbox(i));
      if (side_ == Side::kInitiator) continue;
      if (!pull) {
        REFRACT_RETURN_IF_ERROR(Put(i, bytes));
        continue;
      }
      REFRACT_RETURN_IF_ERROR(PostGet(i));
      REFRACT_RETURN_IF_ERROR(Until([&] { return gets_done_ > i; }));
      // The initiator writes each pulled message anew.
      REFRACT_RETURN_IF_ERROR(CheckGot(i, i));
      REFRACT_RETURN_IF_ERROR(Tell(static_cast<uint32_t>(i)));
    }
    return absl::OkStatus();
  }

  // Gets with at most `depth` of them open; with a depth of 1 each is a lap.
  absl::Status Gets(int depth, Recorder& recorder) {
    // The responder serves gets until the initiator reports that it is done.
    if (side_ == Side::kResponder) return Notes(1);
    depth = std::min(depth, work_.outstanding);
    int checked = 0;
    const auto check = [&] {
      for (; checked < gets_done_; ++checked) {
        REFRACT_RETURN_IF_ERROR(CheckGot(checked, checked % work_.outstanding));
      }
      return absl::OkStatus();
    };
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return gets_posted_ - gets_done_ < depth; }));
      REFRACT_RETURN_IF_ERROR(check());
      REFRACT_RETURN_IF_ERROR(PostGet(i));
      if (work_.point.op != Op::kGet) continue;
      REFRACT_RETURN_IF_ERROR(Until([&] { return gets_done_ > i; }));
      recorder.Lap();
    }
    REFRACT_RETURN_IF_ERROR(Until([&] { return gets_done_ == gets_posted_; }));
    recorder.Stop();
    REFRACT_RETURN_IF_ERROR(check());
    return Tell(0);
  }

  absl::Status Stream(Recorder& recorder) {
    if (side_ == Side::kResponder) return StreamIn();
    // The immediate of a note says how many messages the peer has taken.
    const auto taken = [this] { return static_cast<int>(last_imm_); };
    last_imm_ = 0;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return i - taken() < work_.outstanding; }));
      REFRACT_RETURN_IF_ERROR(Put(i, work_.point.bytes));
    }
    REFRACT_RETURN_IF_ERROR(Until([&] { return taken() == work_.iterations; }));
    recorder.Stop();
    return absl::OkStatus();
  }

  absl::Status StreamIn() {
    // A note for half a ring at a time: a note per message would cost as much as
    // the message, and a note per ring would let the sender run dry.
    const int half = std::max(1, work_.outstanding / 2);
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(Notes(i + 1));
      REFRACT_RETURN_IF_ERROR(CheckInbox(i));
      if ((i + 1) % half == 0 || i + 1 == work_.iterations) {
        REFRACT_RETURN_IF_ERROR(Tell(static_cast<uint32_t>(i) + 1));
      }
    }
    return absl::OkStatus();
  }

  // One round of completions; waits in the work's way if there were none.
  absl::Status Progress() {
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
    return path_->Arm() ? Waiter::Sleep(path_->fd()) : absl::OkStatus();
  }
  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) REFRACT_RETURN_IF_ERROR(Progress());
    return absl::OkStatus();
  }
  absl::Status Notes(int count) {
    return Until([&] { return notes_ >= count; });
  }
  absl::Status AllPutsDone() {
    return Until([&] { return puts_done_ == puts_posted_; });
  }

  // Calls `post` until the path has room for it.
  template <typename Call>
  absl::Status Post(Call post, int* posted) {
    PostResult result;
    // A full path gets room by completions, so they must be taken here.
    while ((result = post()) == PostResult::kFull) {
      REFRACT_RETURN_IF_ERROR(Progress());
    }
    ++*posted;
    if (result == PostResult::kPosted) return absl::OkStatus();
    if (!path_->status().ok()) return path_->status();
    return absl::InternalError("the path refused an operation");
  }
  // Message i of this side, from its slot of the source ring to the same slot
  // of the peer's inbox. Waits for the slot's last put to be done.
  absl::Status Put(int i, size_t bytes) {
    REFRACT_RETURN_IF_ERROR(
        Until([&] { return puts_posted_ - puts_done_ < work_.outstanding; }));
    std::byte* const source = source_.data() + Slot(i);
    if (work_.verify) {
      FillPattern({source, work_.point.bytes}, work_.seed, side_, i);
    }
    return Post(
        [&] {
          return path_->PutNotify(peer_inbox_, Slot(i), {source, bytes},
                                  static_cast<uint32_t>(i), 0);
        },
        &puts_posted_);
  }
  // An empty put_notify.
  absl::Status Tell(uint32_t imm) {
    return Post([&] { return path_->PutNotify(peer_inbox_, 0, {}, imm, 0); },
                &puts_posted_);
  }
  absl::Status PostGet(int i) {
    const size_t bytes = work_.point.bytes;
    std::byte* const place = local_.data() + Slot(i);
    if (work_.verify) std::memset(place, 0, bytes);
    return Post(
        [&] {
          return path_->Get(peer_source_, Slot(i), {place, bytes}, 0);
        },
        &gets_posted_);
  }

  absl::Status CheckInbox(int i) {
    if (!ordered_) {
      return absl::DataLossError("a notification came with another immediate");
    }
    return Check(inbox_, i, i);
  }
  absl::Status CheckGot(int i, int sequence) {
    return Check(local_, i, sequence);
  }
  absl::Status Check(const Region& region, int i, int sequence) {
    if (!work_.verify) return absl::OkStatus();
    return CheckPattern({region.data() + Slot(i), work_.point.bytes},
                        work_.seed, OtherSide(side_), sequence);
  }

  static size_t SlotBytes(const Work& work) {
    return std::max(Stride(work.point.bytes), kDescriptorBytes);
  }
  size_t Slot(int i) const {
    return SlotBytes(work_) * static_cast<size_t>(i % work_.outstanding);
  }

  const std::unique_ptr<transport::PathResources> resources_;
  const std::unique_ptr<transport::DataPath> path_;
  const Side side_;
  Region inbox_;   // the peer's puts arrive here
  Region source_;  // source of puts and of the peer's gets
  Region local_;   // destination of own gets
  RemoteRegion peer_inbox_;
  RemoteRegion peer_source_;

  Work work_;
  Waiter waiter_;
  // Counts of this run.
  int puts_posted_ = 0;
  int puts_done_ = 0;
  int gets_posted_ = 0;
  int gets_done_ = 0;
  int notes_ = 0;
  uint32_t last_imm_ = 0;
  bool ordered_ = true;  // notes so far carried 0, 1, 2, …
  std::array<Completion, 64> completions_;
};

class PathSubject : public Subject {
 public:
  explicit PathSubject(const PathSpec& spec) : spec_(spec) {}

  bool Supports(const Point& point) const override {
    return point.mode != Mode::kAdaptive && point.op != Op::kFanIn;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(Connection connection,
                             ConnectPath(setup, spec_.path, spec_.rdma_device));
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<transport::DataPath> path,
        transport::MakePath(spec_.path, std::move(connection.socket),
                            /*peer=*/"", connection.resources.get()));
    auto session = std::make_unique<PathSession>(
        std::move(connection.resources), std::move(path), setup.side);
    REFRACT_RETURN_IF_ERROR(session->Connect(setup));
    return session;
  }

 private:
  const PathSpec spec_;
};

}  // namespace

std::unique_ptr<Subject> PathLevel(const PathSpec& spec) {
  return std::make_unique<PathSubject>(spec);
}

}  // namespace refract::transport_meter
