#include "bench/gather/cores.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <thread>

#include "base/status_macros.h"
#include "bench/gather/engine.h"
#include "bench/runtime/timing.h"

namespace refract::bench {
namespace {

// Rows of each table that a core reads in a turn, about.
constexpr int64_t kRowsOfTurn = 20'000;

}  // namespace

absl::StatusOr<std::vector<double>> RateOfTwoCores(const Tables& tables,
                                                   int64_t batch,
                                                   int64_t look_ups, int rounds,
                                                   bool skewed, uint64_t seed) {
  struct Side {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<RowSource> source;
    std::vector<Request> requests;
  };
  const auto runs = static_cast<size_t>(
      std::clamp<int64_t>(kRowsOfTurn / (batch * look_ups), 2, 2000));
  std::array<Side, 2> sides;
  for (Side& side : sides) {
    REFRACT_ASSIGN_OR_RETURN(side.engine, Engine::Create(tables, true));
    side.source = std::make_unique<RowSource>(tables.rows, skewed, ++seed);
    for (size_t r = 0; r < runs; ++r) {
      side.requests.push_back(MakeRequest(tables, batch, look_ups));
    }
  }
  const auto draw = [](Side& side) {
    for (Request& request : side.requests) {
      DrawIds(*side.source, false, request);
    }
  };
  const auto run = [](Side& side) {
    for (const Request& request : side.requests) side.engine->Run(request);
  };
  // Both threads wait at a round's begin and end.
  std::barrier meet(2);
  std::thread other([&] {
    for (int round = -1; round < rounds; ++round) {
      draw(sides[1]);
      meet.arrive_and_wait();
      run(sides[1]);
      meet.arrive_and_wait();
    }
  });
  std::vector<double> ratios;
  for (int round = -1; round < rounds; ++round) {
    draw(sides[0]);
    meet.arrive_and_wait();
    const double begin = ClockSeconds();
    run(sides[0]);
    meet.arrive_and_wait();
    const double both = ClockSeconds() - begin;
    // The other thread draws meanwhile and then sleeps.
    draw(sides[0]);
    const double alone_begin = ClockSeconds();
    run(sides[0]);
    const double alone = ClockSeconds() - alone_begin;
    if (round >= 0) ratios.push_back(2 * alone / both);
  }
  other.join();
  return ratios;
}

}  // namespace refract::bench
