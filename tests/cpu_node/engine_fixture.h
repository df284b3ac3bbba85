#ifndef REFRACT_TESTS_CPU_NODE_ENGINE_FIXTURE_H_
#define REFRACT_TESTS_CPU_NODE_ENGINE_FIXTURE_H_

// Engines with small models, and calls that a GPU node holds.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cpu_node/engine.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {

inline std::unique_ptr<Engine> MakeEngine(
    const ModelList& models, std::vector<std::string> addresses,
    EngineOptions options = {}, ServedModelOptions model_options = {}) {
  options.workers = 2;
  options.nodes.addresses = std::move(addresses);
  auto engine =
      Engine::Create(MakeCatalog(models, model_options), std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

inline std::shared_ptr<const models::LoadedModel> Split() {
  return testing_models::MakeSmallModel({.name = "split"});
}

// Holds calls until the test lets go of them.
class Holder {
 public:
  TestGpuNode::OnRequestFunction function() {
    return [this](std::unique_ptr<transport::ServerCall> call) {
      absl::MutexLock lock(&mu_);
      calls_.push_back(std::move(call));
    };
  }
  void Await(size_t count) {
    absl::MutexLock lock(&mu_);
    wanted_ = count;
    EXPECT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(
                                 +[](Holder* h) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                   return h->calls_.size() >= h->wanted_;
                                 },
                                 this),
                             kPatience));
  }
  std::vector<std::unique_ptr<transport::ServerCall>> Take() {
    absl::MutexLock lock(&mu_);
    return std::move(calls_);
  }

 private:
  absl::Mutex mu_;
  size_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<transport::ServerCall>> calls_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_TESTS_CPU_NODE_ENGINE_FIXTURE_H_
