#include <memory>

#include "CLI/CLI.hpp"
#include "tools/bench_serving/bench_serving.h"
#include "tools/command.h"
#include "base/process/files.h"

namespace refract::tools {
namespace {

void AddLoadOptions(CLI::App& command, ServingOptions& options) {
  command
      .add_option("--qps", options.qps,
                  "queries per second, sent as a Poisson process; with "
                  "--find-max where the search begins")
      ->required();
  command.add_option("--duration", options.duration_s, "seconds measured");
  command.add_option("--warmup", options.warmup_s,
                     "seconds of load before those, not counted");
  command.add_option("--slo-ms", options.slo_ms,
                     "latency bound in ms for goodput and --find-max; 0: none");
  command.add_flag("--find-max", options.find_max,
                   "find the highest rate with p99 within --slo-ms and no "
                   "failures; every try takes --warmup + --duration");
  command.add_option("--seed", options.seed,
                     "decides arrivals, sizes and values");
  command.add_option("--connections", options.connections,
                     "connections, taken in turn");
  command.add_option("--max-in-flight", options.max_in_flight,
                     "queries without an answer at one time; those beyond are "
                     "dropped and count as failed");
  command.add_option("--timeout", options.timeout_s,
                     "seconds from the scheduled time until a query is given "
                     "up; travels to the server as its deadline");
  command.add_option("--wait", options.wait_s,
                     "seconds to wait for the server and the model");
}

void AddContentOptions(CLI::App& command, ServingOptions& options) {
  command.add_option("--query-sizes", options.query_sizes,
                     "items per query: mlperf (100 to 700, mean 270), fixed:N, "
                     "or file:PATH with one number per line, equally likely");
  command.add_option("--ids", options.ids,
                     "which rows are looked up: uniform or zipf:ALPHA");
  command.add_option("--bag-sizes", options.bag_sizes,
                     "ids per item and bag: fixed:N, mean:N (0 to 2 N), "
                     "list:N,N,... per bag input, or mlperf (DLRM-DCNv2's)");
  command.add_option("--length", options.length,
                     "every other open size, such as steps of a sequence, and "
                     "the largest value of integers that are no ids");
  command
      .add_option("--rows", options.rows,
                  "INPUT=N or INPUT=N,N,... per column: ids of this input are "
                  "below N, whatever the server says; may be repeated")
      ->type_name("INPUT=N")
      ->allow_extra_args(false);
  command
      .add_option("--criteo", options.criteo,
                  "take the rows from this file in Criteo's text format "
                  "instead of drawing them; for models with 13 dense features "
                  "and 26 columns of ids")
      ->type_name("FILE");
  command.add_option("--memory-mib", options.memory_mib,
                     "room for prepared requests; when a run needs more, "
                     "requests come again and the report says so");
}

}  // namespace

void AddBenchCommand(CLI::App& app, Context& context) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Measures a running system, or the transport");
  bench->require_subcommand(0, 1);
  AddBenchTransportCommand(*bench, context);
  auto options = std::make_shared<ServingOptions>();
  CLI::App* command = bench->add_subcommand(
      "serving",
      "Open-loop load over KServe v2 (gRPC); latency counts from the time at "
      "which a query was due");
  command->add_option("--target", options->target, "server of the model")
      ->type_name("HOST:PORT")
      ->required();
  command->add_option("--model", options->model, "name of the model")
      ->required();
  command->add_option("--version", options->version, "0: the newest");
  AddLoadOptions(*command, *options);
  AddContentOptions(*command, *options);
  command
      ->add_option("--record", options->record,
                   "write the first requests and their answers into this "
                   "folder as request_N and response_N.safetensors")
      ->type_name("DIR");
  command->add_option("--record-count", options->record_count,
                      "how many of them");
  command
      ->add_option("--json", options->json,
                   "also write the report to this file as JSON")
      ->type_name("FILE")
      ->check(base::CheckOutputFile);
  command->callback([&context, options] {
    context.action = [&context, options] {
      return RunServing(*options, context.out);
    };
  });
}

}  // namespace refract::tools
