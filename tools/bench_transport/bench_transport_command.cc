#include <memory>

#include "CLI/CLI.hpp"
#include "tools/bench_transport/bench_transport.h"
#include "tools/command.h"

namespace refract::tools {
namespace {

void AddWhatOptions(CLI::App& command, TransportOptions& options) {
  command.add_option("--paths", options.paths, "data paths: shm, tcp, verbs");
  command.add_option("--levels", options.levels,
                     "path: put_notify and get alone; message: headers, slots "
                     "and credits over the path; channel: client and server "
                     "with their threads");
  command.add_option("--ops", options.ops,
                     "pingpong: N bytes each way; pull: a descriptor, the "
                     "peer's get and an answer; get: N bytes of the peer's "
                     "memory; stream, get-stream: throughput; fan-in: 16 "
                     "streams to one thread (incast)");
  command.add_option("--modes", options.modes,
                     "busy: both sides spin; event: both sleep until something "
                     "comes; the channel chooses between the two itself");
  command.add_option("--sizes", options.sizes,
                     "payload bytes per message, K and M for 2^10 and 2^20");
  command.add_flag("--no-yardsticks", options.no_yardsticks,
                   "leave out the baselines: one flow, raw sockets, raw shared "
                   "memory and perftest");
}

void AddHowOptions(CLI::App& command, TransportOptions& options) {
  command.add_option("--rounds", options.rounds,
                     "measurements of each row; all rows of a size take turns");
  command.add_option("--time-ms", options.time_ms,
                     "about how long a measurement takes, ms");
  command.add_option("--iterations", options.max_iterations,
                     "most operations of one measurement");
  command.add_option("--window", options.window_bytes,
                     "queue depth of streams in bytes, but 2 to 128 messages");
  command.add_option("--eager-bytes", options.eager_bytes,
                     "payloads above this are pulled at the levels message and "
                     "channel");
  command
      .add_option("--rdma-device", options.rdma_device,
                  "for verbs; default the best one")
      ->type_name("DEVICE[:PORT[:GID]]")
      ->default_str("");
  command
      .add_option("--cpus", options.cpus,
                  "processors of the two sides; default the first two usable")
      ->type_name("A,B")
      ->default_str("");
  command.add_option("--seed", options.seed, "decides the payloads checked");
}

}  // namespace

void AddBenchTransportCommand(CLI::App& bench, Context& context) {
  auto options = std::make_shared<TransportOptions>();
  CLI::App* command = bench.add_subcommand(
      "transport",
      "Latency and throughput of the transport between two processes of this "
      "machine, beside raw sockets, raw shared memory and perftest in the "
      "same rounds");
  AddWhatOptions(*command, *options);
  AddHowOptions(*command, *options);
  options->json.AddTo(*command, context, "every round");
  AddOutputFile(*command, "--csv", options->csv,
                "also write one line per row to this file, for plots");
  SetAction(*command, context, [&context, options] {
    return RunTransport(*options, context.out);
  });
}

}  // namespace refract::tools
