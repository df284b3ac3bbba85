#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/bench_serving/bench_serving.h"
#include "tools/command.h"

namespace refract::tools {
namespace {

void AddTargetOptions(CLI::App& command, ServingOptions& options) {
  command
      .add_option("--target", options.targets,
                  "server of the model; repeated: queries take the servers in "
                  "turn")
      ->type_name("HOST:PORT")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  command
      .add_option("--protocol", options.protocol,
                  "grpc, or http with the binary tensor extension where the "
                  "server has it")
      ->check(CLI::IsMember({"grpc", "http"}));
  const auto file = [&command](const char* name, std::string& path,
                               const char* what) {
    command.add_option(name, path, what)
        ->type_name("FILE")
        ->check(CLI::ExistingFile);
  };
  command.add_flag("--tls", options.tls,
                   "TLS, with the root certificates of this machine");
  file("--tls-ca", options.tls_ca, "TLS, with these root certificates (PEM)");
  file("--tls-cert", options.tls_cert,
       "the client's certificate (PEM), for mTLS");
  file("--tls-key", options.tls_key, "private key of --tls-cert (PEM)");
  file("--token-file", options.token_file,
       "a bearer token, sent with every request");
}

void AddLoadOptions(CLI::App& command, ServingOptions& options) {
  command.add_option("--qps", options.qps,
                     "queries per second on average; with --find-max where "
                     "the search begins; a trace has a rate of its own");
  command.add_option(
      "--arrivals", options.arrivals,
      "arrival times of queries: poisson, constant (equal gaps), "
      "bursts:TIMES,ON,PERIOD (TIMES the mean rate for ON of "
      "every PERIOD seconds), diurnal[:TROUGH] (a day within "
      "--duration, from TROUGH times the peak and back), "
      "curve:FILE (a relative rate per line, spread over "
      "--duration), or trace:FILE (requests that were recorded; "
      "--qps stretches its times)");
  command.add_option("--duration", options.duration_s,
                     "seconds measured; 10 unless given, or all of a trace");
  command.add_option("--warmup", options.warmup_s,
                     "seconds of load before --duration, not counted");
  command.add_option("--slo-ms", options.slo_ms,
                     "latency bound in ms for goodput and --find-max; 0: none");
  command.add_flag("--find-max", options.find_max,
                   "find the highest rate with p99 within --slo-ms and no "
                   "failures; every try takes --warmup + --duration");
  command.add_option("--seed", options.seed,
                     "decides arrivals, sizes and values");
  command.add_option(
      "--connections", options.connections,
      "connections to each server from each process, taken in turn; over http "
      "further connections are opened while all are busy");
  command.add_option("--processes", options.processes,
                     "processes that share the load; their results are put "
                     "together query by query");
  command.add_option("--max-in-flight", options.max_in_flight,
                     "queries without an answer at one time; further queries "
                     "are dropped and count as failed");
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
                     "which rows are looked up: uniform, zipf:ALPHA, or meta "
                     "(the skew of Meta's embedding traces of 2022)");
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
      .add_option("--table-ids", options.table_ids,
                  "draw ids of 64 bits for tables whose rows have ids: a file "
                  "with tensors TABLE.ids, as given to refract import; may be "
                  "repeated")
      ->type_name("FILE.safetensors")
      ->check(CLI::ExistingFile)
      ->allow_extra_args(false);
  command
      .add_option("--criteo", options.criteo,
                  "take the rows from this file in Criteo's text format "
                  "instead of drawing them; for models with 13 dense features "
                  "and 26 columns of ids")
      ->type_name("FILE");
  CLI::Option* const requests =
      command
          .add_option("--requests", options.requests,
                      "send the requests of these files in turn, one in each, "
                      "instead of drawing requests; may be repeated")
          ->type_name("FILE.safetensors")
          ->check(CLI::ExistingFile);
  for (const char* drawn : {"--query-sizes", "--ids", "--bag-sizes", "--length",
                            "--rows", "--table-ids", "--criteo"}) {
    requests->excludes(drawn);
  }
  command.add_option("--memory-mib", options.memory_mib,
                     "memory for prepared requests; a run that needs more "
                     "repeats requests, and the report says so");
}

void AddOutputOptions(CLI::App& command, Context& context,
                      ServingOptions& options) {
  options.json.AddTo(command, context, "the report");
  AddOutputFile(command, "--csv", options.csv,
                "write a line per query to this file");
  AddOutputFile(command, "--hlog", options.hlog,
                "write latencies by second to this file as a log of "
                "HdrHistogram, for its plotter and libraries");
  AddOutputFile(command, "--report", options.report,
                "write an HTML page with plots to this file; it needs no other "
                "file");
}

void AddCompareCommand(CLI::App& bench, Context& context) {
  CLI::App* command = bench.add_subcommand(
      "compare", "Makes an HTML page of one run, or of two side by side");
  struct Files {
    std::vector<std::string> reports;
    std::string page;
  };
  auto files = std::make_shared<Files>();
  command
      ->add_option("reports", files->reports,
                   "reports of refract bench serving --json")
      ->type_name("REPORT.json")
      ->expected(1, 2)
      ->required();
  AddOutputFile(*command, "--report", files->page, "the page to write")
      ->required();
  SetAction(*command, context,
            [files] { return CompareServing(files->reports, files->page); });
}

}  // namespace

void AddBenchCommand(CLI::App& app, Context& context) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Measures a running system, or the transport");
  bench->require_subcommand(0, 1);
  AddBenchTransportCommand(*bench, context);
  AddCompareCommand(*bench, context);
  auto options = std::make_shared<ServingOptions>();
  CLI::App* command = bench->add_subcommand(
      "serving",
      "Open-loop load over KServe v2; latency counts from the time at which a "
      "query was due");
  AddTargetOptions(*command, *options);
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
                      "number of requests that --record keeps");
  AddOutputOptions(*command, context, *options);
  SetAction(*command, context,
            [&context, options] { return RunServing(*options, context.out); });
}

}  // namespace refract::tools
