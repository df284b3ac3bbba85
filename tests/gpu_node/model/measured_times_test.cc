#include "gpu_node/model/measured_times.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gpu_node/gpu_node.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/stored_model.h"

namespace refract::gpu_node {
namespace {

using ::testing::HasSubstr;
using testing_models::StoredModels;

constexpr int64_t kMost = 64;

std::unique_ptr<DeviceModel> Load(const StoredModels& stored,
                                  const std::string& name) {
  auto loaded = stored.repository().Load(name);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  auto model = DeviceModel::Create(*std::move(loaded));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(TimesFileTest, KeepsTheTimesOfEachCondition) {
  StoredModels stored;
  stored.Add("m");
  const auto model = Load(stored, "m");
  const TimesFile here(*model, "this machine", kMost);
  EXPECT_EQ(here.Read(), std::nullopt);
  const MeasuredTimes times = {{1, absl::Microseconds(3)},
                               {64, absl::Microseconds(70)}};
  ASSERT_TRUE(here.Write(times).ok());
  EXPECT_EQ(here.Read(), times);
  // Other machines, batches, settings and weights were not measured.
  EXPECT_EQ(TimesFile(*model, "another", kMost).Read(), std::nullopt);
  EXPECT_EQ(TimesFile(*model, "this machine", 2 * kMost).Read(), std::nullopt);
  std::ofstream(stored.File("m/config.pbtxt"), std::ios::app)
      << "parameters { key: 'dense_weights' value { string_value: 'bf16' } }";
  EXPECT_EQ(TimesFile(*Load(stored, "m"), "this machine", kMost).Read(),
            std::nullopt);
  stored.Add("other", /*split=*/true, /*variant=*/1);
  std::filesystem::copy_file(stored.File("m/1/.execution_times.json"),
                             stored.File("other/1/.execution_times.json"));
  EXPECT_EQ(TimesFile(*Load(stored, "other"), "this machine", kMost).Read(),
            std::nullopt);
  // Machines that share the repository keep each other's times, the latest of
  // them where there are many.
  for (size_t i = 1; i < TimesFile::kMostEntries; ++i) {
    const TimesFile there(*model, absl::StrCat("machine ", i), kMost);
    ASSERT_TRUE(there.Write({{1, absl::Microseconds(i)}}).ok());
  }
  EXPECT_EQ(here.Read(), times);
  ASSERT_TRUE(TimesFile(*model, "one more", kMost).Write(times).ok());
  EXPECT_EQ(here.Read(), std::nullopt);
  EXPECT_EQ(TimesFile(*model, "machine 7", kMost).Read(),
            (MeasuredTimes{{1, absl::Microseconds(7)}}));
}

TEST(TimesFileTest, DamagedFilesCountAsNone) {
  StoredModels stored;
  stored.Add("m");
  const auto model = Load(stored, "m");
  const TimesFile file(*model, "this machine", kMost);
  ASSERT_TRUE(file.Write({{1, absl::Microseconds(3)}}).ok());
  const std::string path = stored.File("m/1/.execution_times.json");
  std::string text;
  std::getline(std::ifstream(path), text, '\0');
  for (const char* bad : {"[[0", "[[\"x\"", "[[1,1", "7", "{", "[[1.5"}) {
    std::string damaged = text;
    const size_t at = damaged.find("\"times_ns\": ") + 12;
    damaged.replace(at, std::string::npos, absl::StrCat(bad, ", 5]]}]"));
    std::ofstream(path) << damaged;
    EXPECT_EQ(file.Read(), std::nullopt) << damaged;
  }
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);  // as good as read-only
  EXPECT_EQ(file.Read(), std::nullopt);
  EXPECT_THAT(std::string(file.Write({{1, absl::Microseconds(3)}}).message()),
              HasSubstr(path));
}

// Waits until every model is ready.
void AwaitReady(GpuNode& node) {
  struct {
    absl::Mutex mu;
    std::vector<bool> ready;
  } seen;
  seen.ready.resize(node.served().size());
  node.WatchReadiness([&](size_t model, const absl::Status& status) {
    absl::MutexLock lock(&seen.mu);
    seen.ready[model] = status.ok();
  });
  const auto all = [&] {
    for (const bool ready : seen.ready) {
      if (!ready) return false;
    }
    return true;
  };
  {
    absl::MutexLock lock(&seen.mu);
    EXPECT_TRUE(
        seen.mu.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60)));
  }
  node.WatchReadiness(nullptr);
}

// Admission predicts nothing before an instance has started, and refuses
// nothing until then.
absl::Status AwaitRefusal(GpuNode& node,
                          const transport::RequestDescriptor& request) {
  absl::Status refused = node.OnAnnounced(request);
  while (refused.ok() && base::Clock::Real().Now() < request.deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    refused = node.OnAnnounced(request);
  }
  return refused;
}

TEST(GpuNodeWarmUpTest, MeasuresEachModelOnceForAllStarts) {
  StoredModels stored;
  for (const char* name : {"a", "b", "c", "d", "e"}) stored.Add(name);
  GpuNodeOptions options;
  options.warm_up = absl::Milliseconds(20);
  options.max_batch = kMost;
  options.warm_up_threads = 2;
  options.warm_up_in_background = true;
  {
    const auto node =
        *GpuNode::Create(*DeviceModels::Load(stored.repository()), options);
    AwaitReady(*node);
  }
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    const auto times =
        TimesFile(*Load(stored, name), ThisMachine(), kMost).Read();
    ASSERT_TRUE(times.has_value()) << name;
    EXPECT_EQ(times->front().rows, 1);
    EXPECT_GT(times->front().time, absl::ZeroDuration());
  }
  // The times of an earlier start are believed: an hour for a row.
  ASSERT_TRUE(TimesFile(*Load(stored, "a"), ThisMachine(), kMost)
                  .Write({{1, absl::Hours(1)}})
                  .ok());
  const auto node =
      *GpuNode::Create(*DeviceModels::Load(stored.repository()), options);
  for (size_t i = 0; i < node->served().size(); ++i) {
    EXPECT_TRUE(node->ModelReady(i).ok()) << "without waiting";
  }
  transport::RequestDescriptor request;
  request.model = 0;
  request.deadline = base::Clock::Real().Now() + absl::Seconds(60);
  const absl::Status refused = AwaitRefusal(*node, request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1h to execute"));
  request.model = 1;
  EXPECT_TRUE(node->OnAnnounced(request).ok());
}

// A version that a CPU node offers while the node serves is ready with times:
// those of the version before it, else measured.
TEST(GpuNodeWarmUpTest, VersionsThatComeLaterHaveTimesBeforeTheyAreReady) {
  StoredModels stored;
  stored.Add("old");
  ASSERT_TRUE(TimesFile(*Load(stored, "old"), ThisMachine(), kMost)
                  .Write({{1, absl::Hours(1)}})
                  .ok());
  GpuNodeOptions options;
  options.warm_up = absl::Milliseconds(20);
  options.max_batch = kMost;
  options.load = [&stored](const std::string& name, int64_t) {
    return absl::StatusOr<std::unique_ptr<DeviceModel>>(Load(stored, name));
  };
  const auto node =
      *GpuNode::Create(*DeviceModels::Load(stored.repository()), options);
  for (const char* name : {"old", "new"}) {
    stored.Add(name, /*split=*/true, /*variant=*/2);
    const auto model = *stored.repository().Load(name);
    const auto number = node->OnOffer({.name = name,
                                       .version = model->version,
                                       .model = model->digest,
                                       .schema = Load(stored, name)->schema()});
    ASSERT_TRUE(number.ok()) << number.status();
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while (!node->ModelReady(*number).ok() && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_TRUE(node->ModelReady(*number).ok());
  }
  EXPECT_EQ(TimesFile(*Load(stored, "old"), ThisMachine(), kMost).Read(),
            std::nullopt);
  EXPECT_NE(TimesFile(*Load(stored, "new"), ThisMachine(), kMost).Read(),
            std::nullopt);
  for (const GpuNode::Served& served : node->served()) {
    transport::RequestDescriptor request;
    request.model = served.number;
    request.deadline = base::Clock::Real().Now() + absl::Seconds(60);
    if (served.model->name() == "new") {
      EXPECT_TRUE(node->OnAnnounced(request).ok());
      continue;
    }
    EXPECT_THAT(std::string(AwaitRefusal(*node, request).message()),
                HasSubstr("1h to execute"))
        << served.model->version();
  }
}

// Otherwise requests without a version would go to an older one for a moment.
TEST(GpuNodeWarmUpTest, OlderVersionsAreReadyAfterTheNewest) {
  for (const int threads : {1, 3}) {
    StoredModels stored;
    for (int version = 1; version <= 3; ++version) {
      for (const char* name : {"a", "b"}) stored.Add(name);
    }
    GpuNodeOptions options;
    options.max_batch = int64_t{1} << 16;
    options.warm_up_threads = threads;
    options.warm_up_in_background = true;
    const auto node =
        *GpuNode::Create(*DeviceModels::Load(stored.repository()), options);
    // Told in the order of versions, so that a newer one is looked at later.
    absl::Mutex mu;
    std::map<std::string, bool> older_ready;
    size_t ready = 0;
    node->WatchReadiness([&](size_t model, const absl::Status& status) {
      const std::vector<GpuNode::Served> served = node->served();
      const DeviceModel& each =
          *std::find_if(served.begin(), served.end(), [&](const auto& s) {
             return s.number == model;
           })->model;
      absl::MutexLock lock(&mu);
      if (model == 0) {
        ready = 0;
        older_ready.clear();
      }
      ready += status.ok();
      if (each.version() < 3) {
        older_ready[each.name()] |= status.ok();
      } else if (older_ready[each.name()]) {
        EXPECT_TRUE(status.ok()) << each.name();
      }
    });
    const auto all = [&] { return ready == 6; };
    {
      absl::MutexLock lock(&mu);
      EXPECT_TRUE(
          mu.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60)));
    }
    node->WatchReadiness(nullptr);
  }
}

TEST(GpuNodeWarmUpTest, EndsWithTheNode) {
  StoredModels stored;
  for (int i = 0; i < 20; ++i) stored.Add(absl::StrCat("m", i));
  GpuNodeOptions options;
  options.warm_up = absl::Seconds(5);
  options.max_batch = int64_t{1} << 20;
  options.warm_up_threads = 1;
  options.warm_up_in_background = true;
  const absl::Time begin = absl::Now();
  GpuNode::Create(*DeviceModels::Load(stored.repository()), options)->reset();
  // The warm-up of all models would take 100 s.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50));
}

TEST(GpuNodeWarmUpTest, LeavesOutAModelThatNeedsLargerBatches) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({.min_batch = 4}));
  std::vector<std::unique_ptr<DeviceModel>> models;
  models.push_back(*DeviceModel::Create(model));
  GpuNodeOptions options;
  options.max_batch = 3;
  const auto node = *GpuNode::Create(DeviceModels(std::move(models)), options);
  const transport::ModelOffer offer = {.name = "small", .version = 1};
  const absl::Status status = node->OnOffer(offer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("batches of 4 rows or more, but executions have at most 3"));
}

}  // namespace
}  // namespace refract::gpu_node
