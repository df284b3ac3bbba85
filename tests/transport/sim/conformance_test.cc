// The suite that every data path passes, on the simulator in automatic mode.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/transport/testing/datapath_conformance.h"
#include "tests/transport/sim/paths.h"

namespace refract::transport {
namespace {

using sim::Fabric;
using sim::FabricOptions;
using sim::Process;
using verbs::DeviceContext;

// A fabric and the processes on it outlive the paths of the test that made
// them; this is where they stay, and what broke a rule is found at the end.
class Worlds : public testing::Environment {
 public:
  struct World {
    explicit World(const FabricOptions& options) : fabric(options) {}
    Process& AddProcess(int host) {
      processes.push_back(std::make_unique<Process>(
          fabric, host, DeviceContext::Events::kWatched,
          // With idle probes, which find a dead peer of a path that sleeps.
          verbs::HubOptions()));
      return *processes.back();
    }
    Fabric fabric;
    std::vector<std::unique_ptr<Process>> processes;
  };

  static World& Add() {
    auto& seeds = Seeds();
    FabricOptions options;
    options.automatic = true;
    options.seed = seeds();
    All().push_back(std::make_unique<World>(options));
    return *All().back();
  }

 private:
  static std::vector<std::unique_ptr<World>>& All() {
    static auto* const all = new std::vector<std::unique_ptr<World>>;
    return *all;
  }
  static std::mt19937_64& Seeds() {
    static auto* const seeds = [] {
      // REFRACT_SIM_SEED repeats the seeds, though not what the threads do.
      const char* given = std::getenv("REFRACT_SIM_SEED");
      const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10)
                                             : base::RandomSeed();
      std::printf("REFRACT_SIM_SEED=%" PRIu64 "\n", seed);
      return new std::mt19937_64(seed);
    }();
    return *seeds;
  }

  void TearDown() override {
    for (const auto& world : All()) {
      for (const std::string& violation : world->fabric.violations()) {
        ADD_FAILURE() << violation;
      }
      // The credits' whole purpose, over all that ran.
      EXPECT_EQ(world->fabric.counters(0).out_of_receives, 0u);
      world->processes.clear();
    }
    All().clear();
  }
};
[[maybe_unused]] testing::Environment* const kWorlds =
    testing::AddGlobalTestEnvironment(new Worlds);

// Two hosts with nothing in common but the switch.
PathPair Apart() {
  Worlds::World& world = Worlds::Add();
  const int a = world.fabric.AddHost();
  const int b = world.fabric.AddHost();
  return {world.AddProcess(a).NewPath(), world.AddProcess(b).NewPath()};
}

// All pairs on one fabric, both ends on one set of completion queues, though
// the suite uses them from two threads: each finds the other's completions.
PathPair Together() {
  static Process* const process = [] {
    Worlds::World& world = Worlds::Add();
    return &world.AddProcess(world.fabric.AddHost());
  }();
  auto a = process->NewPath();
  auto b = process->NewPath();
  return {std::move(a), std::move(b)};
}

INSTANTIATE_TEST_SUITE_P(SimApart, DataPathConformance,
                         testing::Values(&Apart));
INSTANTIATE_TEST_SUITE_P(SimTogether, DataPathConformance,
                         testing::Values(&Together));

}  // namespace
}  // namespace refract::transport
