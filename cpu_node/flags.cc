#include "cpu_node/flags.h"

#include <cstdio>
#include <set>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line/command_line_error.h"
#include "base/command_line/program_pages.h"
#include "base/command_line/request_memory_flag.h"
#include "base/number_range.h"
#include "base/tls/node_tls_flags.h"
#include "models/repository/table_shards.h"
#include "placement/binding/daemon_binding.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {
namespace {

// A validator of CLI11 returns an error text; empty: valid.
std::string CheckSource(const std::string& text) {
  return std::string(ParseNodeSource(text).status().message());
}

void AddServing(CLI::App& app, Flags& flags) {
  // The first names are those of refract-gpu-node; the aliases are Triton's, or
  // older.
  app.add_option("--host,--grpc-host,--grpc-address", flags.grpc_host,
                 "Address that gRPC is served on; only this machine can reach "
                 "the default, 0.0.0.0 means all addresses");
  app.add_option("--port,--grpc-port", flags.grpc_port,
                 "Port for KServe v2 over gRPC; 0 = any free one, printed on "
                 "stdout")
      ->check(CLI::Range(0, 65535));
  const auto milliseconds = [&app](const char* name, double& value,
                                   const char* about) {
    app.add_option(name, value, about)
        ->type_name("MILLISECONDS")
        ->check(base::NumberIn(1, 1e9));
  };
  milliseconds(
      "--grpc-keepalive-time", flags.keepalive_ms,
      "Time of silence after which a gRPC connection gets a keepalive ping");
  milliseconds("--grpc-keepalive-timeout", flags.keepalive_timeout_ms,
               "Time for the answer to a keepalive ping; without an answer the "
               "gRPC connection is closed");
  milliseconds("--grpc-max-connection-age", flags.connection_age_ms,
               "Age above which a gRPC connection takes no further calls");
  milliseconds("--grpc-max-connection-age-grace", flags.connection_age_grace_ms,
               "Further time after --grpc-max-connection-age; the gRPC "
               "connection is then closed even during calls");
  app.add_option("--workers", flags.workers,
                 "Threads that run the CPU parts of requests; 0 = one per CPU")
      ->check(CLI::Range(0, 1024));
  app.add_option("--max-queue", flags.max_queue,
                 "Requests that may wait for a worker or for room at a GPU "
                 "node; further requests are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-in-flight", flags.max_in_flight,
                 "Requests in flight at a time, also at GPU nodes; further "
                 "requests are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--default-deadline-ms", flags.default_deadline_ms,
                 "Deadline of requests without a deadline, milliseconds; 0 = "
                 "none")
      ->check(base::NumberIn(0, 86400e3));
  app.add_option("--slow-request-ms", flags.slow_request_ms,
                 "Log requests that take longer, with their ids and stages, "
                 "milliseconds; 0 = none")
      ->check(base::NumberIn(0, 86400e3));
  base::AddRequestMemoryFlag(
      app, flags.request_memory,
      "Memory of requests, for example 4GiB: half of it for messages as they "
      "arrive, half for requests that are decoded and not yet answered; "
      "further requests are refused with RESOURCE_EXHAUSTED");
  metrics::AddFlags(app, flags.metrics, /*default_port=*/8002);
  base::AddLogFlags(app, flags.log);
  app.add_option("--trace-config", flags.trace_config,
                 "Traces of requests, as in Triton; may be repeated: "
                 "triton,file=FILE or opentelemetry,url=URL switches them on; "
                 "level=TIMESTAMPS|OFF, rate=N (one request in N), count=N, "
                 "slow-ms=MS, failed=true|false, mode=triton|opentelemetry "
                 "(docs/how-to/tracing.md)")
      ->type_name("[MODE,]NAME=VALUE")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--allow-trace-settings", flags.allow_trace_settings,
               "Clients may change trace settings: TraceSetting, POST "
               "/v2/trace/setting");
  app.add_option("--lame-duck", flags.lame_duck_s,
                 "After SIGTERM or SIGINT: how long the node says that it is "
                 "not ready and still serves, so that load balancers go "
                 "elsewhere; a second signal ends it")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0, 86400));
  app.add_option(
         "--drain-timeout-s", flags.drain_timeout_s,
         "After --lame-duck: longest wait for requests in flight, seconds")
      ->check(base::NumberIn(0, 86400));
}

void AddHttp(CLI::App& app, Flags& flags) {
  const auto seconds = base::NumberIn(0.001, 86400);
  // Triton's name is an alias.
  app.add_option("--http-host,--http-address", flags.http_host,
                 "Address that HTTP is served on; only this machine can reach "
                 "the default");
  base::AddPortOrOff(app, "--http-port", flags.http_port, 8000,
                     "Port for KServe v2 over HTTP");
  app.add_option("--http-thread-count", flags.http_threads,
                 "Threads that read, decode and write HTTP")
      ->check(CLI::Range(1, 256));
  app.add_option("--http-max-input-size", flags.http_max_input_size,
                 "Longest body of an HTTP request, also once decompressed, for "
                 "example 64MiB; longer bodies get status 413")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(size_t{1}, size_t{1} << 40))
      ->type_name("SIZE")
      ->default_str("64MiB");
  app.add_option(
         "--http-max-connections", flags.http_max_connections,
         "HTTP connections at a time; further connections get status 503")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--http-idle-timeout", flags.http_idle_timeout_s,
                 "Close an HTTP connection after this time without a request")
      ->type_name("SECONDS")
      ->check(seconds);
  app.add_option("--http-stall-timeout", flags.http_stall_timeout_s,
                 "Longest time for the header of an HTTP request, and longest "
                 "pause in its body and in the reading of its answer")
      ->type_name("SECONDS")
      ->check(seconds);
}

void AddSecurity(CLI::App& app, Flags& flags) {
  // Triton's names for gRPC are aliases.
  CLI::Option* const certificate =
      app.add_option("--tls-cert,--grpc-server-cert", flags.tls.certificate,
                     "gRPC and HTTP speak TLS with this certificate, PEM, with "
                     "the chain to its root; a changed file is read again "
                     "(docs/how-to/security.md)")
          ->type_name("FILE");
  CLI::Option* const key =
      app.add_option("--tls-key,--grpc-server-key", flags.tls.key,
                     "Private key of --tls-cert, PEM")
          ->needs(certificate)
          ->type_name("FILE");
  certificate->needs(key);
  app.add_option("--tls-client-ca,--grpc-root-cert", flags.tls.roots,
                 "Clients must have a certificate that these roots vouch for, "
                 "PEM")
      ->needs(certificate)
      ->type_name("FILE");
  app.add_option("--client-tokens", flags.access.client_tokens,
                 "Clients must send one of these bearer tokens, one a line, "
                 "which may end in a quota (name=shop in-flight=32 rate=500); "
                 "health needs none")
      ->type_name("FILE");
  app.add_option("--control-tokens", flags.access.control_tokens,
                 "Changes of models and of trace settings need one of these "
                 "bearer tokens, one a line")
      ->type_name("FILE");
}

void AddNodeTls(CLI::App& app, Flags& flags) {
  base::AddNodeTlsFlags(app, flags.node_tls, "GPU nodes and shards");
  app.add_option("--node-tls-name", flags.node_tls_name,
                 "Name or address that certificates of GPU nodes and shards "
                 "must have, if it is not the host that this node dials")
      ->needs("--node-tls-cert")
      ->type_name("NAME");
}

void AddReadiness(CLI::App& app, Flags& flags) {
  app.add_option("--ready-when", flags.ready_when,
                 "When this node reports itself ready: all (each model is "
                 "ready), listed (each model of --ready-models is) or any (at "
                 "least one model is)")
      ->check(CLI::IsMember({"all", "listed", "any"}));
  app.add_option("--ready-models", flags.ready_models,
                 "Models for --ready-when listed, separated by commas")
      ->delimiter(',')
      ->type_name("NAME")
      ->default_str("");
  app.add_flag("--strict-readiness", flags.strict_readiness,
               "Not ready either while a version that should be served could "
               "not be loaded; without this flag such a version is logged, and "
               "the others are served");
}

void AddControl(CLI::App& app, Flags& flags) {
  base::AddModelControlFlags(app, flags.control,
                             "the models of --load-model and the models that "
                             "clients load by RepositoryModelLoad");
  app.add_option("--keep-versions", flags.keep_versions,
                 "With poll or explicit: versions of each model that stay in "
                 "memory after others replace them, so that the model can "
                 "return to them at once")
      ->check(CLI::Range(0, 100));
  app.add_option("--model-load-timeout", flags.load_timeout_s,
                 "How long a new version may take to become ready at a GPU "
                 "node; then its load has failed")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0.1, 86400));
}

void AddShadow(CLI::App& app, Flags& flags) {
  app.add_option("--shadow-rate", flags.shadow_rate,
                 "Share of the answered requests, 0 to 1, that is scored once "
                 "more with LibTorch's operators, in idle CPU time, and "
                 "compared; the difference is a metric "
                 "(docs/how-to/monitoring.md)")
      ->type_name("SHARE")
      ->check(base::NumberIn(0, 1));
}

void AddTables(CLI::App& app, Flags& flags) {
  app.add_option("--table-memory", flags.table_memory,
                 "Where embedding tables lie: map (files are mapped, and the "
                 "page cache holds what was read of them), load (read at "
                 "the start into memory of this process, with huge pages "
                 "where the system has them) or disk (rows are read from the "
                 "files for each request that needs them; "
                 "docs/how-to/sizing.md)")
      ->check(CLI::IsMember({"map", "load", "disk"}));
  app.add_option("--row-cache-mib", flags.row_cache_mib,
                 "With --table-memory disk: memory for rows, of each model "
                 "version")
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
}

void AddRecording(CLI::App& app, Flags& flags) {
  CLI::Option* record =
      app.add_option("--record", flags.record,
                     "Write a sample of the valid requests with their contents "
                     "to this file, for \"refract bench serving --arrivals "
                     "trace:FILE\" (docs/how-to/benchmarks.md); an existing "
                     "file is replaced")
          ->type_name("FILE");
  app.add_option("--record-rate", flags.record_rate,
                 "Share of the requests, 0 to 1, that --record writes")
      ->type_name("SHARE")
      ->check(base::NumberIn(0, 1))
      ->needs(record);
  app.add_option("--record-size", flags.record_size,
                 "--record ends when its file would have more bytes")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(false))
      ->needs(record);
  app.add_option(
         "--record-redact-key", flags.record_redact_key,
         "--record replaces ids by a hash with the secret in this file: "
         "the same id always by the same other id")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->needs(record);
}

// Splits BROKERS/TOPIC; returns what is wrong, or "".
std::string ParseTopic(const std::string& text, Flags& flags) {
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos || slash == 0) {
    return absl::StrCat("'", text, "': wanted HOST:PORT[,HOST:PORT…]/TOPIC");
  }
  flags.deltas_kafka_brokers = text.substr(0, slash);
  flags.deltas_kafka_topic = text.substr(slash + 1);
  const std::string& topic = flags.deltas_kafka_topic;
  // Kafka's own rule.
  const bool is_name = !topic.empty() && topic.size() <= 249 &&
                       std::all_of(topic.begin(), topic.end(), [](char c) {
                         return absl::ascii_isalnum(c) || c == '.' ||
                                c == '_' || c == '-';
                       });
  return is_name ? "" : absl::StrCat("'", topic, "' is no name of a topic");
}

void AddDeltas(CLI::App& app, Flags& flags) {
  CLI::Option* const off = app.add_flag(
      "!--no-deltas", flags.deltas,
      "Do not follow deltas of embedding tables (docs/how-to/deltas.md)");
  app.add_option("--deltas-folder", flags.deltas_folder,
                 "Deltas are in DIR/MODEL/VERSION; without this flag in the "
                 "folder \"deltas\" of each version in the repository")
      ->type_name("DIR");
  app.add_flag("--deltas-by-request", flags.deltas_by_request,
               "Take deltas over gRPC and write them into the folder; clients "
               "need a control token where there are tokens");
  CLI::Option* const kafka =
      app.add_option_function<std::string>(
             "--deltas-kafka",
             [&flags](const std::string& text) {
               const std::string wrong = ParseTopic(text, flags);
               if (!wrong.empty()) {
                 throw CLI::ValidationError("--deltas-kafka", wrong);
               }
             },
             "Read deltas from a topic of Kafka and write them into the "
             "folder; brokers are separated by commas")
          ->type_name("HOST:PORT/TOPIC")
          ->excludes(off);
  app.add_option("--deltas-kafka-config", flags.deltas_kafka_config,
                 "Lines PROPERTY=VALUE of librdkafka's configuration, such as "
                 "security.protocol, for --deltas-kafka")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->needs(kafka);
  app.add_option("--deltas-poll", flags.deltas_poll_s,
                 "How often the folders of deltas are read")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0.001, 86400));
  app.add_option("--deltas-cpu-percent", flags.deltas_cpu_percent,
                 "Largest share of a CPU that applying deltas takes")
      ->check(base::NumberIn(0.1, 100));
  app.add_option("--deltas-p99-ms", flags.deltas_p99_ms,
                 "While the p99 of a model is above this many milliseconds, "
                 "applying deltas takes less of a CPU, down to a sixteenth of "
                 "its share; 0: no limit")
      ->check(base::NumberIn(0, 1e6));
  app.add_option("--deltas-new-ids", flags.deltas_new_ids,
                 "Number of ids that deltas may add to each table whose rows "
                 "have ids. Memory is taken as ids come")
      ->check(base::NumberIn(0, 1e9));
}

void AddShards(CLI::App& app, Flags& flags) {
  CLI::Option* const shard =
      app.add_option(
             "--shard", flags.shard,
             "Number of this node in its shard group, from 0: the node owns "
             "some rows of tables that refract partition --shards has "
             "divided (docs/how-to/shards.md)")
          ->type_name("K")
          ->check(CLI::Range(size_t{0}, models::kMaxShards - 1))
          ->default_str("");
  CLI::Option* const peers =
      app.add_option("--shard-peers", flags.shard_peers,
                     "Addresses of all nodes of the shard group in the order "
                     "of --shard, separated by commas; this node listens at "
                     "its own address, for the other shards alone")
          ->delimiter(',')
          ->type_name("HOST:PORT")
          ->needs(shard)
          ->default_str("");
  shard->needs(peers);
}

// Returns what is wrong with the flags of the shard group; empty: nothing.
std::string CheckShards(const Flags& flags) {
  if (flags.shard_peers.empty()) return "";
  if (flags.shard_peers.size() < 2 ||
      flags.shard_peers.size() > models::kMaxShards) {
    return absl::StrCat("--shard-peers: lists ", flags.shard_peers.size(),
                        " nodes; 2 to ", models::kMaxShards, " form a group");
  }
  if (flags.shard >= flags.shard_peers.size()) {
    return absl::StrCat("--shard ", flags.shard, ": --shard-peers lists ",
                        flags.shard_peers.size(), " nodes, the last is shard ",
                        flags.shard_peers.size() - 1);
  }
  const std::set<std::string> distinct(flags.shard_peers.begin(),
                                       flags.shard_peers.end());
  if (distinct.size() < flags.shard_peers.size()) {
    return "--shard-peers: lists a node twice";
  }
  return "";
}

void AddGpuNodes(CLI::App& app, Flags& flags) {
  app.add_option_function<std::vector<std::string>>(
         "--gpu-nodes",
         [&flags](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             flags.gpu_nodes.push_back(*ParseNodeSource(text));
           }
         },
         "GPU nodes, separated by commas: addresses; dns:NAME:PORT, all "
         "addresses of a name; srv:NAME, its SRV records; or file:PATH, an "
         "address per line. Names and files are read again, and nodes come "
         "and go with them (docs/how-to/discovery.md). Without GPU nodes, only "
         "models that need no GPU node are ready")
      ->delimiter(',')
      ->type_name("HOST:PORT|dns:NAME:PORT|srv:NAME|file:PATH")
      ->check(CheckSource);
  app.add_option("--gpu-nodes-refresh", flags.gpu_nodes_refresh_s,
                 "How often DNS names of --gpu-nodes are resolved again; files "
                 "are read every second, or at this interval if it is shorter")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0.05, 86400));
  app.add_option("--dns-servers", flags.dns_servers,
                 "DNS servers for --gpu-nodes, separated by commas; without "
                 "this flag those of /etc/resolv.conf")
      ->type_name("IP[:PORT]");
  app.add_option("--transport", flags.transport,
                 "Way to the GPU nodes: auto (shared memory on the same host, "
                 "else verbs where both have an RDMA device, else tcp), shm, "
                 "tcp or verbs")
      ->check(CLI::IsMember(transport::PathPreferenceNames()));
  app.add_option("--rdma-device", flags.rdma_device,
                 "RDMA device for verbs, with port and GID index if wanted; "
                 "without this flag the best for each connection")
      ->type_name("DEVICE[:PORT[:GID]]");
  app.add_option("--topology", flags.topology, placement::kTopologyHelp)
      ->type_name("auto|off|FILE");
  CLI::Option* const fabric =
      app.add_option("--fabric", flags.fabric,
                     "Where hosts stand in the network (kubectl get nodes -o "
                     "json, Slurm's topology.conf, or a text file: "
                     "docs/how-to/topology.md); near GPU nodes are preferred")
          ->type_name("FILE");
  app.add_option("--fabric-host", flags.fabric_host,
                 "Name or address of this host in that file; without this flag "
                 "its host name")
      ->needs(fabric)
      ->type_name("NAME");
  app.add_option("--fabric-load-ratio", flags.fabric_load_ratio,
                 "Use a farther GPU node when the near node is this many times "
                 "as loaded, by latency x (requests in flight + 1)")
      ->needs(fabric)
      ->check(base::NumberIn(1, 1e6));
  CLI::Option* const hedge_after =
      app.add_option("--hedge-after-ms", flags.hedge_after_ms,
                     "Send a request to a second GPU node too when the first "
                     "has not answered after this many milliseconds, at most a "
                     "tenth of the requests; the first answer wins "
                     "(docs/how-to/discovery.md)")
          ->type_name("MILLISECONDS")
          ->check(base::NumberIn(0.01, 86400e3))
          ->default_str("");
  app.add_option("--hedge-quantile", flags.hedge_quantile,
                 "As --hedge-after-ms, after the time within which this share "
                 "of the model's latest requests came back from GPU nodes, for "
                 "example 0.95")
      ->type_name("SHARE")
      ->check(base::NumberIn(0.5, 0.999))
      ->excludes(hedge_after)
      ->default_str("");
  app.add_flag("--local-fallback", flags.local_fallback,
               "Run a split model here as a whole while no GPU node serves it "
               "(off by default: the dense part is slow on a CPU)");
}

}  // namespace

std::variant<Flags, int> ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Serves models over KServe v2: the CPU part here, the GPU part "
      "on GPU nodes.",
      "refract-cpu-node");
  app.option_defaults()->always_capture_default();
  base::AddProgramPages(app, REFRACT_VERSION);
  app.add_option("--model-repository", flags.model_repository,
                 "Folder with the models")
      ->required()
      ->type_name("DIR");
  app.add_option("--op-library", flags.op_libraries,
                 "Shared library of operators to load first, as given to "
                 "refract import; may be repeated")
      ->type_name("FILE.so")
      ->allow_extra_args(false)
      ->default_str("");
  AddGpuNodes(app, flags);
  AddServing(app, flags);
  AddHttp(app, flags);
  AddSecurity(app, flags);
  AddNodeTls(app, flags);
  AddReadiness(app, flags);
  AddControl(app, flags);
  AddTables(app, flags);
  AddDeltas(app, flags);
  AddShadow(app, flags);
  AddRecording(app, flags);
  AddShards(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "refract-cpu-node: %s (see --help)\n",
                 base::CommandLineError(app, error).c_str());
    return 2;
  }
  if (!flags.ready_models.empty() != (flags.ready_when == "listed")) {
    std::fprintf(stderr,
                 "refract-cpu-node: --ready-when listed and --ready-models "
                 "need each other (see --help)\n");
    return 2;
  }
  if (flags.slow_request_ms > 0) {
    flags.tracing.slow_after = absl::Milliseconds(flags.slow_request_ms);
  }
  if (const absl::Status status =
          tracing::ParseTraceConfig(flags.trace_config, flags.tracing);
      !status.ok()) {
    std::fprintf(stderr, "refract-cpu-node: %s (see --help)\n",
                 std::string(status.message()).c_str());
    return 2;
  }
  if (const std::string wrong = base::CheckModelControlFlags(flags.control);
      !wrong.empty()) {
    std::fprintf(stderr, "refract-cpu-node: %s (see --help)\n", wrong.c_str());
    return 2;
  }
  if (const std::string wrong = CheckShards(flags); !wrong.empty()) {
    std::fprintf(stderr, "refract-cpu-node: %s (see --help)\n", wrong.c_str());
    return 2;
  }
  return flags;
}

}  // namespace refract::cpu_node
