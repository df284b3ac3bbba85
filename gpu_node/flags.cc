#include "gpu_node/flags.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/command_line/command_line_error.h"
#include "base/command_line/program_pages.h"
#include "base/command_line/request_memory_flag.h"
#include "base/number_range.h"
#include "base/tls/node_tls_flags.h"
#include "placement/binding/daemon_binding.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

std::optional<int> CudaIndexOf(const std::string& device) {
  absl::string_view number = device;
  int index = 0;
  // At most three digits: no machine has more GPUs.
  if (!absl::ConsumePrefix(&number, "cuda:") || number.size() > 3 ||
      !absl::SimpleAtoi(number, &index) || index < 0 || number[0] == '+') {
    return std::nullopt;
  }
  return index;
}

std::variant<Flags, int> ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("Executes the GPU part of split models for CPU nodes.",
               "refract-gpu-node");
  app.option_defaults()->always_capture_default();
  base::AddProgramPages(app, REFRACT_VERSION);
  app.add_option("--model-repository", flags.model_repository,
                 "Folder with the models; each version's split plan says what "
                 "runs here")
      ->required()
      ->type_name("DIR");
  base::AddModelControlFlags(app, flags.control,
                             "the models of --load-model, and the versions "
                             "that CPU nodes offer");
  app.add_option("--op-library", flags.op_libraries,
                 "Shared library of operators to load first, as given to "
                 "refract import; may be repeated")
      ->type_name("FILE.so")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--device", flags.device,
                 "Where to execute: auto (GPU 0, or the CPU where there is "
                 "none), cpu, or cuda:N")
      ->type_name("auto|cpu|cuda:N")
      ->check(CLI::Validator(
          [](const std::string& device) -> std::string {
            if (device == "auto" || device == "cpu") return "";
            if (CudaIndexOf(device).has_value()) return "";
            return device + " is none of auto, cpu, cuda:N";
          },
          ""));
  app.add_option(
         "--host", flags.host,
         "Address at which CPU nodes reach this node; only this machine "
         "can reach the default, 0.0.0.0 means all addresses")
      // An unset variable of a script must not open the node to everybody.
      ->check(CLI::Validator(
          [](const std::string& host) -> std::string {
            return host.empty() ? "the address is empty" : "";
          },
          ""));
  app.add_option("--port", flags.port,
                 "Port for CPU nodes; 0 = any free one, printed on stdout")
      ->check(CLI::Range(0, 65535));
  app.add_option("--transport", flags.transport,
                 "Ways that are offered to CPU nodes: auto (all that this "
                 "machine has), shm, tcp or verbs")
      ->check(CLI::IsMember(transport::PathPreferenceNames()));
  app.add_option("--rdma-device", flags.rdma_device,
                 "RDMA device for verbs, with port and GID index if wanted; "
                 "without this flag the best for each connection")
      ->type_name("DEVICE[:PORT[:GID]]");
  app.add_option("--topology", flags.topology, placement::kTopologyHelp)
      ->type_name("auto|off|FILE");
  app.add_option("--instances", flags.instances,
                 "Requests executed at once: on a CPU a thread each, on a "
                 "GPU intermediates of every model each; 0 = one per CPU, on "
                 "a GPU one")
      ->check(CLI::Range(0, 1024));
  app.add_option("--max-queue", flags.max_queue,
                 "Requests that may wait for an instance; more are refused "
                 "with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--batching-window-us", flags.batching_window_us,
                 "Execute requests of all CPU nodes together, and let a "
                 "request wait this long for others where that pays, "
                 "microseconds; 0 = only with waiting requests. Models with "
                 "dynamic_batching in their config.pbtxt follow that instead; "
                 "without either, requests are executed alone")
      ->check(CLI::Range(0, 60'000'000));
  CLI::Option* const max_batch =
      app.add_option(
             "--max-batch", flags.max_batch,
             "Rows of one execution; a request with more is executed in "
             "several steps, or refused if its rows depend on each other. "
             "On a GPU memory is reserved for this many rows, and the "
             "default there is 4096")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option(
         "--max-size", flags.max_size,
         "On a GPU: the largest value of sizes besides the batch (steps "
         "of a history, ids in bags per row) that memory is reserved for, "
         "where the model declares none; requests beyond it are refused")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--weight-memory-mib", flags.weight_memory_mib,
                 "Weights that may be in the device's memory at once (on a GPU "
                 "all memory of a model), MiB; the least recently used models "
                 "make room for others. 0 = all weights")
      ->check(base::NumberIn(0, 1e9));
  app.add_flag("--no-isolation", flags.no_isolation,
               "Do not bound the length of executions on a node of several "
               "models (docs/design/scheduling.md): for "
               "measurements of models that get requests in turns");
  app.add_option("--pollers", flags.pollers,
                 "Threads that run the connections of CPU nodes; one drives a "
                 "NIC")
      ->check(CLI::Range(1, 64));
  base::AddNodeTlsFlags(app, flags.node_tls, "CPU nodes");
  base::AddRequestMemoryFlag(
      app, flags.request_memory,
      "Memory of long requests (above 64 KiB) from their announcement to their "
      "answer, for example 4GiB; more are refused with RESOURCE_EXHAUSTED");
  metrics::AddFlags(app, flags.metrics, /*default_port=*/8102);
  base::AddLogFlags(app, flags.log);
  app.add_option("--slow-request-ms", flags.slow_request_ms,
                 "Log requests that take longer, with their ids and stages, "
                 "milliseconds; 0 = none")
      ->check(base::NumberIn(0, 86400e3));
  app.add_flag("--remote-drain", flags.remote_drain,
               "Take POST /drain and /undrain on the port of metrics from "
               "other machines, too");
  app.add_option("--lame-duck", flags.lame_duck_s,
                 "After SIGTERM or SIGINT: how long the node tells CPU nodes "
                 "to send no more requests and serves requests that still "
                 "arrive; a second signal ends this time")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0, 86400));
  app.add_option("--drain-timeout-s", flags.drain_timeout_s,
                 "After that: longest wait for requests in flight, seconds")
      ->check(base::NumberIn(0, 86400));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "refract-gpu-node: %s (see --help)\n",
                 base::CommandLineError(app, error).c_str());
    return 2;
  }
  if (const std::string wrong = base::CheckModelControlFlags(flags.control);
      !wrong.empty()) {
    std::fprintf(stderr, "refract-gpu-node: %s (see --help)\n", wrong.c_str());
    return 2;
  }
  flags.max_batch_given = max_batch->count() > 0;
  return flags;
}

}  // namespace refract::gpu_node
