// Requests that land in the memory of a device, past the host's: which devices
// can, when a flush is needed, and what happens where it is not to be had.
#include "tests/transport/sim/device_memory.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/transport/sim/node_fixture.h"
#include "tests/transport/sim/paths.h"
#include "transport/verbs/device/dmabuf.h"

namespace refract::transport::sim {
namespace {

TEST(DmabufProbeTest, OnlyALookAtTheDescriptorProvesTheCall) {
  EXPECT_TRUE(verbs::DmabufProbeStatus("mlx5_0", EBADF).ok());
  for (const int error : {EOPNOTSUPP, EPROTONOSUPPORT, ENOTTY}) {
    const absl::Status status = verbs::DmabufProbeStatus("mlx5_0", error);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "mlx5_0")) << status;
  }
  for (const int error : {0, EINVAL, ENOMEM, EPERM}) {
    EXPECT_TRUE(absl::IsInternal(verbs::DmabufProbeStatus("mlx5_0", error)))
        << error;
  }
}

TEST(DeviceMemoryRuleTest, FlushesWhereNothingElseOrdersTheWrites) {
  using Ordering = RemoteWriteOrdering;
  struct Case {
    RemoteWrites writes;
    bool needs_flush;
    absl::StatusCode code;
  };
  constexpr auto kOk = absl::StatusCode::kOk;
  const Case cases[] = {
      // As GPUs of compute capability 9.0 and later.
      {{Ordering::kOwner, false, false}, false, kOk},
      {{Ordering::kAllDevices, false, true}, false, kOk},
      // Before it.
      {{Ordering::kNone, false, true}, true, kOk},
      {{Ordering::kNone, false, false},
       true,
       absl::StatusCode::kFailedPrecondition},
      // Data on another way than completions.
      {{Ordering::kOwner, true, true}, true, kOk},
      {{Ordering::kAllDevices, true, false},
       true,
       absl::StatusCode::kFailedPrecondition},
  };
  for (const Case& c : cases) {
    FileDeviceMemory memory(4096);
    memory.writes = c.writes;
    EXPECT_EQ(NeedsFlush(c.writes), c.needs_flush);
    EXPECT_EQ(CheckDeviceMemory(memory).code(), c.code);
  }
  FileDeviceMemory misplaced(4096);
  misplaced.misplaced = 64;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckDeviceMemory(misplaced)));
}

// One path to another, and memory that only devices reach.
class DeviceMemoryPathTest : public testing::Test {
 protected:
  explicit DeviceMemoryPathTest() {
    for (const bool dmabuf : {true, false}) {
      HostOptions host;
      host.nics[0].dmabuf = dmabuf;
      fabric_.AddHost(host);
    }
    for (int host = 0; host < 2; ++host) {
      processes_.push_back(std::make_unique<Process>(fabric_, host));
      paths_.push_back(processes_[host]->NewPath());
    }
  }
  ~DeviceMemoryPathTest() override {
    paths_.clear();
    EXPECT_TRUE(fabric_.violations().empty());
  }

  Fabric fabric_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<DataPath>> paths_;
};

TEST_F(DeviceMemoryPathTest, GetsEndInItAndPutsDoNotStartThere) {
  constexpr size_t kBytes = 300'000;
  // In the middle of a buffer and of a page.
  const auto memory = std::make_shared<FileDeviceMemory>(kBytes, 3 * 4096 + 64);
  const auto mapping = *Mapping::OfDevice(memory);
  const auto own = paths_[0]->AddRegion(mapping, Access::kLocal);
  ASSERT_TRUE(own.ok()) << own.status();
  const Region inbox = *paths_[0]->CreateRegion(4096, Access::kRemoteWrite);
  const Region source = *paths_[1]->CreateRegion(kBytes, Access::kRemoteRead);
  const Region other = *paths_[1]->CreateRegion(4096, Access::kRemoteWrite);
  for (size_t i = 0; i < kBytes; ++i) {
    source.data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  const RemoteRegion from = *paths_[0]->Import(*paths_[1]->Export(source));
  const RemoteRegion to = *paths_[0]->Import(*paths_[1]->Export(other));
  ASSERT_TRUE(paths_[1]->Import(*paths_[0]->Export(inbox)).ok());
  ASSERT_EQ(paths_[0]->Get(from, 0, {own->data(), kBytes}, 5),
            PostResult::kPosted);
  std::vector<Completion> out(4);
  ASSERT_TRUE(fabric_.RunUntil(
      [&] { return paths_[0]->Poll(absl::MakeSpan(out)) == 1; },
      fabric_.Now() + absl::Seconds(1)));
  EXPECT_EQ(out[0].kind, Completion::Kind::kGet);
  EXPECT_EQ(memory->Read(own->data(), kBytes),
            std::string(reinterpret_cast<const char*>(source.data()), kBytes));
  // A short one would be copied by the processor.
  EXPECT_EQ(paths_[0]->Put(to, 0, {own->data(), 16}, 6), PostResult::kInvalid);
  EXPECT_EQ(paths_[0]->Put(to, 0, {inbox.data(), 16}, 6), PostResult::kPosted);
}

TEST_F(DeviceMemoryPathTest, DevicesThatCannotSaySo) {
  const auto mapping =
      *Mapping::OfDevice(std::make_shared<FileDeviceMemory>(4096));
  const absl::Status status =
      paths_[1]->AddRegion(mapping, Access::kLocal).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_TRUE(paths_[1]->CreateRegion(4096, Access::kLocal).ok());
}

// A node whose requests land there.
class DeviceLandingTest : public SimNodeTest {
 protected:
  static constexpr size_t kBytes = 200'000;

  class LandingHandler final : public Handler {
   public:
    absl::StatusOr<size_t> OnOffer(const ModelOffer&) override { return 0u; }
    void OnDescriptor(const RequestDescriptor& request,
                      Landing* landing) override {
      if (area == nullptr) return;
      landing->tensors = {area->bytes().first(request.tensors[0].bytes)};
    }
    void OnRequest(std::unique_ptr<ServerCall> call) override {
      absl::MutexLock lock(&mu);
      calls.push_back(std::move(call));
    }
    std::shared_ptr<LandingArea> area;
    absl::Mutex mu;
    std::vector<std::unique_ptr<ServerCall>> calls ABSL_GUARDED_BY(mu);
  };

  DeviceLandingTest() : SimNodeTest(/*dmabuf=*/true) {}
  ~DeviceLandingTest() override {
    client_.reset();
    handler_of_landings_.calls.clear();
    server_.reset();
  }
  void Start(proto::TransportPath path) {
    ASSERT_NO_FATAL_FAILURE(StartServer(0, &handler_of_landings_));
    ASSERT_NO_FATAL_FAILURE(StartClient({path}, "sim0"));
    ASSERT_TRUE(Eventually([&] { return client_->state().connected; }));
  }
  void Send(Call& call) {
    auto request = client_->Allocate(0, specs_);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, contents_);
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  std::unique_ptr<ServerCall> Await() {
    std::unique_ptr<ServerCall> call;
    EXPECT_TRUE(Eventually([&] {
      absl::MutexLock lock(&handler_of_landings_.mu);
      if (handler_of_landings_.calls.empty()) return false;
      call = std::move(handler_of_landings_.calls.front());
      handler_of_landings_.calls.clear();
      return true;
    }));
    return call;
  }

  const std::vector<base::TensorSpec> specs_ = {
      {base::DType::kUInt8, {static_cast<int64_t>(kBytes)}}};
  const std::vector<std::string> contents_ = Contents(11, specs_);
  const std::shared_ptr<FileDeviceMemory> memory_ =
      std::make_shared<FileDeviceMemory>(kBytes);
  LandingHandler handler_of_landings_;
};

TEST_F(DeviceLandingTest, RequestsArriveInDeviceMemoryAndAreFlushed) {
  memory_->writes = {.ordering = RemoteWriteOrdering::kNone, .can_flush = true};
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_VERBS));
  auto area = server_->AddLandingArea(memory_);
  ASSERT_TRUE(area.ok()) << area.status();
  handler_of_landings_.area = *area;
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  const auto served = Await();
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(served->tensors()[0].data, memory_->data());
  EXPECT_EQ(memory_->Read(memory_->data(), kBytes), contents_[0]);
  EXPECT_EQ(memory_->flushes, 1);
  served->Fail(absl::NotFoundError("seen"));
  EXPECT_TRUE(absl::IsNotFound(call.Await().status()));
}

TEST_F(DeviceLandingTest, AFlushThatFailsFailsTheRequestOnly) {
  memory_->writes = {.ordering = RemoteWriteOrdering::kNone, .can_flush = true};
  memory_->flush_status = absl::InternalError("flush: no");
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_VERBS));
  handler_of_landings_.area = *server_->AddLandingArea(memory_);
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  EXPECT_TRUE(absl::IsInternal(call.Await().status())) << call.Await().status();
  EXPECT_TRUE(absl::StrContains(call.Await().status().message(), "flush: no"));
  EXPECT_TRUE(client_->state().connected);
}

TEST_F(DeviceLandingTest, OrderedMemoryIsNotFlushed) {
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_VERBS));
  handler_of_landings_.area = *server_->AddLandingArea(memory_);
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  const auto served = Await();
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(memory_->Read(memory_->data(), kBytes), contents_[0]);
  EXPECT_EQ(memory_->flushes, 0);
  served->Fail(absl::NotFoundError("seen"));
  call.Await().IgnoreError();
}

// The same handler, and a path that only the processor drives.
TEST_F(DeviceLandingTest, OverTcpTheBytesStayInHostMemory) {
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_TCP));
  handler_of_landings_.area = *server_->AddLandingArea(memory_);
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  const auto served = Await();
  ASSERT_NE(served, nullptr);
  ExpectTensors(served->tensors(), specs_, contents_);
  served->Fail(absl::NotFoundError("seen"));
  call.Await().IgnoreError();
}

TEST_F(DeviceLandingTest, MemoryThatCannotBeUsedIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_VERBS));
  memory_->writes = {};
  EXPECT_TRUE(
      absl::IsFailedPrecondition(server_->AddLandingArea(memory_).status()));
}

// Areas that come while connections are at work: what takes long is done by
// whoever adds them, and not when the first request arrives.
TEST_F(DeviceLandingTest, LateAreasNeedNoRegistrationByConnections) {
  ASSERT_NO_FATAL_FAILURE(Start(proto::TRANSPORT_PATH_VERBS));
  handler_of_landings_.area = *server_->CreateLandingArea(kBytes);
  fabric_->FailRegistration(0, kServerDevice, 0,
                            absl::InternalError("registered again"));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  const auto served = Await();
  ASSERT_NE(served, nullptr);
  ExpectTensors(served->tensors(), specs_, contents_);
  EXPECT_EQ(served->tensors()[0].data,
            handler_of_landings_.area->bytes().data());
  served->Fail(absl::NotFoundError("seen"));
  call.Await().IgnoreError();
  // What is still armed fails the one that adds the next area.
  const absl::Status status = server_->CreateLandingArea(kBytes).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "registered again"))
      << status;
}

}  // namespace
}  // namespace refract::transport::sim
