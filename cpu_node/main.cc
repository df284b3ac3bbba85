// refract-cpu-node: loads models and serves them until a signal.

#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log/log_writer.h"
#include "base/process/affinity.h"
#include "base/process/descriptor_limit.h"
#include "base/process/exit_now.h"
#include "base/process/files.h"
#include "base/process/loopback.h"
#include "base/process/mutex_checks.h"
#include "base/process/service_manager.h"
#include "base/process/shutdown_signal.h"
#include "base/status_macros.h"
#include "base/tls/tls_contexts.h"
#include "cpu_node/catalog.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/discovery/node_watch.h"
#include "cpu_node/discovery/resolver.h"
#include "cpu_node/embedding/delta_topic.h"
#include "cpu_node/embedding/delta_watch.h"
#include "cpu_node/embedding/kafka_reader.h"
#include "cpu_node/embedding/table_loading.h"
#include "cpu_node/engine.h"
#include "cpu_node/flags.h"
#include "cpu_node/frontend/server.h"
#include "cpu_node/http/server.h"
#include "cpu_node/metrics.h"
#include "cpu_node/recording/recorder.h"
#include "cpu_node/status.h"
#include "glog/logging.h"
#include "metrics/server.h"
#include "models/repository/repository.h"
#include "models/tables/table_memory.h"
#include "placement/binding/daemon_binding.h"
#include "placement/fabric/fabric_view.h"
#include "runtime/torch/caller.h"
#include "runtime/torch/op_library.h"
#include "tracing/tracer.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {
namespace {

// After the engine has answered all requests: time for gRPC to deliver the
// answers.
constexpr absl::Duration kLastAnswers = absl::Seconds(1);

// Before that: time for clients to learn that they must use another node.
// Longer than a client takes from an answer to its next request, short beside a
// drain.
constexpr absl::Duration kQuiet = absl::Milliseconds(200);
constexpr absl::Duration kLongestWaitForQuiet = absl::Seconds(2);
// A node that needs longer to answer ServerLive counts as hung.
constexpr absl::Duration kLongestToAnswer = absl::Seconds(5);

// For --exit-on-error: the error of a version that should be served and is not.
absl::Status FirstBroken(const Catalog& catalog) {
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (!entry.wanted || entry.status.ok()) continue;
    return base::Annotate(entry.status,
                          absl::StrCat("--exit-on-error: model '", entry.name,
                                       "' version ", entry.version));
  }
  return absl::OkStatus();
}

ServedModelOptions ToModelOptions(const Flags& flags) {
  ServedModelOptions options;
  options.local_fallback = flags.local_fallback;
  options.deltas = flags.deltas;
  options.deltas_folder = flags.deltas_folder;
  options.delta_new_ids = flags.deltas_new_ids;
  options.shadow = flags.shadow_rate > 0;
  options.table_memory = *models::TableMemoryNamed(flags.table_memory);
  options.row_cache_bytes = flags.row_cache_mib << 20;
  if (!flags.shard_peers.empty()) {
    options.shard =
        ShardPlace{.own = flags.shard, .num_shards = flags.shard_peers.size()};
  }
  return options;
}

// `http_body_memory`: the part of --request-memory that bodies over HTTP get.
FrontendOptions ToFrontendOptions(const Flags& flags, size_t http_body_memory) {
  FrontendOptions options;
  options.tls = flags.tls;
  options.deltas_by_request = flags.deltas_by_request;
  options.deltas_folder = flags.deltas_folder;
  options.host = flags.grpc_host;
  options.port = flags.grpc_port;
  options.keepalive_interval = absl::Milliseconds(flags.keepalive_ms);
  options.keepalive_timeout = absl::Milliseconds(flags.keepalive_timeout_ms);
  options.max_age = absl::Milliseconds(flags.connection_age_ms);
  options.age_grace = absl::Milliseconds(flags.connection_age_grace_ms);
  options.request_memory = flags.request_memory;
  options.http_body_memory = http_body_memory;
  return options;
}

EngineOptions ToEngineOptions(const Flags& flags) {
  EngineOptions options;
  options.workers = flags.workers > 0 ? flags.workers : base::NumUsableCpus();
  options.max_queue = flags.max_queue;
  options.max_in_flight = flags.max_in_flight;
  if (flags.default_deadline_ms > 0) {
    options.default_timeout = absl::Milliseconds(flags.default_deadline_ms);
  }
  if (flags.slow_request_ms > 0) {
    options.slow_after = absl::Milliseconds(flags.slow_request_ms);
  }
  if (flags.hedge_after_ms > 0) {
    options.hedge.after = absl::Milliseconds(flags.hedge_after_ms);
  }
  options.hedge.quantile = flags.hedge_quantile;
  options.readiness.models = flags.ready_models;
  options.readiness.strict = flags.strict_readiness;
  if (flags.ready_when == "listed") {
    options.readiness.when = ReadinessRule::When::kListed;
  } else if (flags.ready_when == "any") {
    options.readiness.when = ReadinessRule::When::kAny;
  }
  for (const NodeSource& source : flags.gpu_nodes) {
    // Sources other than addresses name their nodes later, so there is room for
    // the most that the pool allows.
    if (source.kind == NodeSource::Kind::kFixed) {
      options.nodes.addresses.push_back(source.name);
    } else {
      options.nodes.max_nodes = kMaxFoundNodes;
    }
  }
  options.nodes.path = transport::PathPreferenceNamed(flags.transport);
  options.nodes.rdma_device = flags.rdma_device;
  options.shards.addresses = flags.shard_peers;
  options.shards.own = flags.shard;
  options.shards.threads = options.workers;
  options.shards.path = options.nodes.path;
  options.shards.rdma_device = flags.rdma_device;
  return options;
}

// Sets the options that follow from --node-tls-cert and its relatives.
absl::Status SetNodeTls(const Flags& flags, EngineOptions* options) {
  if (!flags.node_tls.on()) return absl::OkStatus();
  const auto contexts = [&](base::TlsUse use) {
    return base::TlsContexts::Create(flags.node_tls, use, base::Clock::Real());
  };
  options->nodes.tls.name = flags.node_tls_name;
  REFRACT_ASSIGN_OR_RETURN(options->nodes.tls.contexts,
                           contexts(base::TlsUse::kDialNodes));
  options->shards.dial_tls = options->nodes.tls;
  REFRACT_ASSIGN_OR_RETURN(options->shards.accept_tls,
                           contexts(base::TlsUse::kAcceptNodes));
  return absl::OkStatus();
}

// Sets the options that follow from --topology and --fabric.
absl::Status Locate(const Flags& flags, NodePoolOptions* nodes) {
  REFRACT_ASSIGN_OR_RETURN(
      nodes->locality,
      placement::BindDaemon(
          {.topology = flags.topology, .rdma_device = flags.rdma_device}));
  if (flags.fabric.empty()) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(
      const auto view,
      placement::FabricView::Load(flags.fabric, flags.fabric_host));
  nodes->tier_of = [view](absl::string_view address) {
    const placement::Tier tier = view.TierTo(address);
    LOG(INFO) << "fabric: GPU node " << address << " is at tier " << Name(tier)
              << " from host " << view.self().name;
    return static_cast<int>(tier);
  };
  nodes->spill_ratio = flags.fabric_load_ratio;
  return absl::OkStatus();
}

void LogSummary(const Catalog& catalog, const EngineOptions& options) {
  LOG(INFO) << options.workers << " worker(s), queue of " << options.max_queue
            << ", " << options.nodes.addresses.size()
            << (options.nodes.max_nodes > 0 ? " fixed" : "") << " GPU node(s), "
            << catalog.entries().size() << " model version(s)";
  bool split = false;
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (entry.model == nullptr) continue;  // logged when it failed to load
    const models::LoadedModel& model = entry.model->model();
    split = split || entry.model->split();
    LOG(INFO) << "model '" << model.name << "' version " << model.version
              << ": "
              << (model.plan.has_value() ? "plan '" + model.plan->method + "'"
                                         : std::string("no split plan"))
              << (entry.model->split() ? ", split" : ", whole on this node")
              << (entry.model->sharded() == nullptr ? "" : ", tables divided");
  }
  if (split && options.nodes.addresses.empty() &&
      options.nodes.max_nodes == 0) {
    LOG(WARNING) << "there are split models, but --gpu-nodes is not given: "
                    "they are not ready; give --gpu-nodes HOST:PORT, or "
                    "--local-fallback to run them here as a whole";
  }
}

// The tables that the node's look-ups read, version by version.
std::vector<TableReadAhead::Version> TablesOf(const Catalog& catalog) {
  std::vector<TableReadAhead::Version> versions;
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (entry.model == nullptr) continue;
    const models::LoadedModel& model = entry.model->model();
    std::set<std::string> tables =
        models::TablesOf(model.graph, model.plan ? &*model.plan : nullptr,
                         entry.model->can_run_whole());
    if (tables.empty()) continue;
    versions.push_back({entry.model->shared_model(), std::move(tables)});
  }
  return versions;
}

void LogCounts(const Engine& engine) {
  const std::shared_ptr<const Catalog> catalog = engine.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr) continue;
    const ModelStatistics::Snapshot sums = entry.model->statistics().snapshot();
    LOG(INFO) << "model '" << entry.name << "' version " << entry.version
              << ": " << sums.success.count << " requests succeeded, "
              << sums.fail.count << " failed, " << sums.replaced_ids
              << " ids replaced, " << sums.non_finite
              << " answers with NaN or infinity";
  }
}

// Null if HTTP is off, or if its default port is taken: several nodes of a
// machine serve gRPC all the same.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeHttp(
    const Flags& flags, size_t body_memory, Engine* engine,
    ModelControl* control, base::TlsContexts* tls, const AccessControl* access,
    base::ByteBudget* memory) {
  const std::optional<int> port = flags.http_port.number();
  if (!port.has_value()) return nullptr;
  HttpServerOptions options;
  options.host = flags.http_host;
  options.port = *port;
  options.threads = flags.http_threads;
  options.max_body_bytes = flags.http_max_input_size;
  options.body_memory = body_memory;
  options.control = control;
  options.tls = tls;
  options.access = access;
  options.max_connections = flags.http_max_connections;
  options.max_idle = absl::Seconds(flags.http_idle_timeout_s);
  options.max_stall = absl::Seconds(flags.http_stall_timeout_s);
  absl::StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Create(options, engine, memory);
  if (server.ok()) {
    LOG(INFO) << (tls == nullptr ? "HTTP on " : "HTTP with TLS on ")
              << base::AddressText(options.host, (*server)->port())
              << base::WhoReaches(options.host, "--http-host");
    return server;
  }
  if (!absl::IsUnavailable(server.status())) {
    return base::Annotate(server.status(), "HTTP");
  }
  if (flags.http_port.given) {
    return absl::UnavailableError(
        absl::StrCat("HTTP: ", server.status().message(),
                     "; --http-port chooses another port"));
  }
  LOG(WARNING) << server.status().message()
               << "; no HTTP is served, --http-port chooses another port";
  return nullptr;
}

// Null without --deltas-kafka.
absl::StatusOr<std::unique_ptr<KafkaReader>> MakeReader(const Flags& flags) {
  if (flags.deltas_kafka_topic.empty()) return nullptr;
  KafkaOptions options;
  options.brokers = flags.deltas_kafka_brokers;
  options.topic = flags.deltas_kafka_topic;
  if (!flags.deltas_kafka_config.empty()) {
    REFRACT_ASSIGN_OR_RETURN(options.properties,
                             base::ReadText(flags.deltas_kafka_config));
  }
  auto reader = MakeKafkaReader(options);
  if (reader.ok()) return reader;
  const bool of_file = absl::IsInvalidArgument(reader.status()) &&
                       !flags.deltas_kafka_config.empty();
  return base::Annotate(reader.status(), of_file
                                             ? "--deltas-kafka-config"
                                             : "--deltas-kafka");
}

// Null without --record.
absl::StatusOr<std::unique_ptr<Recorder>> MakeRecorder(const Flags& flags,
                                                       base::Clock* clock) {
  if (flags.record.empty()) return nullptr;
  RecorderOptions options{.path = flags.record,
                          .rate = flags.record_rate,
                          .max_bytes = flags.record_size,
                          .clock = clock};
  if (!flags.record_redact_key.empty()) {
    REFRACT_ASSIGN_OR_RETURN(options.key,
                             base::ReadText(flags.record_redact_key));
    if (options.key.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--record-redact-key: ", flags.record_redact_key, ": is empty"));
    }
  }
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<Recorder> recorder,
                           Recorder::Create(options));
  LOG(INFO) << "a share of " << flags.record_rate
            << " of the requests is recorded in " << flags.record
            << (options.key.empty() ? "" : ", ids redacted");
  return recorder;
}

// Reads mapped tables ahead of requests, for minutes. Versions that are loaded
// later are read before they serve (PlaceTables()). Null where the tables are
// not mapped, or the thread cannot start, which is logged.
std::unique_ptr<TableReadAhead> StartReadAhead(
    const Catalog& catalog, const ServedModelOptions& options) {
  if (options.table_memory != models::TableMemory::kMap) return nullptr;
  std::optional<size_t> shard;
  if (options.shard.has_value()) shard = options.shard->own;
  auto started = TableReadAhead::Start(
      TablesOf(catalog),
      [shard](const auto& model, const auto& tables, const auto& go_on) {
        ReadTablesAhead(model, tables, shard, go_on);
      });
  if (started.ok()) return *std::move(started);
  LOG(WARNING) << "tables are not read ahead of requests: "
               << started.status().message();
  return nullptr;
}

absl::Status Serve(const Flags& flags, base::ShutdownSignal& shutdown,
                   base::LogWriter& log) {
  auto starting = std::make_unique<base::EndsAtSignal>(shutdown, &log);
  runtime::aten::UseOneThread();
  for (const std::string& library : flags.op_libraries) {
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(runtime::aten::LoadOpLibrary(library), "--op-library"));
  }

  const ServedModelOptions model_options = ToModelOptions(flags);
  // TLS files first: their errors appear before models take their time.
  std::unique_ptr<base::TlsContexts> tls;
  if (flags.tls.on()) {
    REFRACT_ASSIGN_OR_RETURN(
        tls, base::TlsContexts::Create(flags.tls, base::TlsUse::kServeClients,
                                       base::Clock::Real()));
  }
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<KafkaReader> topic_reader,
                           MakeReader(flags));
  EngineOptions options = ToEngineOptions(flags);
  REFRACT_RETURN_IF_ERROR(SetNodeTls(flags, &options));
  std::unique_ptr<AccessControl> access;
  if (!flags.access.client_tokens.empty() ||
      !flags.access.control_tokens.empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        access, AccessControl::Create(flags.access, base::Clock::Real()));
  }
  const models::Repository repository(flags.model_repository);
  REFRACT_ASSIGN_OR_RETURN(
      Catalog catalog,
      Catalog::Load(repository, model_options, [&](absl::string_view name) {
        return flags.control.LoadsAtStart(name);
      }));
  if (flags.control.exit_on_error) {
    REFRACT_RETURN_IF_ERROR(FirstBroken(catalog));
  }
  const bool controlled = flags.control.poll() || flags.control.by_request();
  options.nodes.offers_may_come = controlled;
  options.loads_by_request = flags.control.by_request();
  REFRACT_RETURN_IF_ERROR(Locate(flags, &options.nodes));
  options.shards.locality = options.nodes.locality;
  LogSummary(catalog, options);
  // Must outlive the engine.
  std::unique_ptr<tracing::Tracer> tracer;
  options.trace_settings_by_request = flags.allow_trace_settings;
  if (flags.tracing.otlp || !flags.tracing.file.empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        tracer, tracing::Tracer::Create(flags.tracing, *options.clock));
    options.tracer = tracer.get();
    LOG(INFO) << "traces go to "
              << (flags.tracing.otlp ? flags.tracing.url : flags.tracing.file)
              << (flags.tracing.on ? "" : " once trace_level is TIMESTAMPS");
  }

  // Must outlive the engine.
  std::unique_ptr<Shadow> shadow;
  if (flags.shadow_rate > 0) {
    shadow = std::make_unique<Shadow>(
        ShadowOptions{.rate = flags.shadow_rate, .clock = options.clock});
    options.shadow = shadow.get();
  }

  // Must outlive the engine.
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<Recorder> recorder,
                           MakeRecorder(flags, options.clock));
  options.recorder = recorder.get();

  absl::StatusOr<std::unique_ptr<Resolver>> resolver =
      MakeDnsResolver(flags.dns_servers);
  if (!resolver.ok()) return base::Annotate(resolver.status(), "--dns-servers");
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::Create(std::move(catalog), options));
  // Destroyed before the engine and its nodes.
  std::unique_ptr<NodeWatch> watch;
  if (options.nodes.max_nodes > 0) {
    REFRACT_ASSIGN_OR_RETURN(
        watch, NodeWatch::Start(flags.gpu_nodes,
                                absl::Seconds(flags.gpu_nodes_refresh_s),
                                *std::move(resolver), &engine->nodes()));
  }
  // Model control, deltas and topic hold the engine, so they come after it and
  // end before it.
  std::unique_ptr<ModelControl> control;
  if (controlled) {
    ModelControlOptions control_options;
    control_options.by_request = flags.control.by_request();
    control_options.poll = flags.control.poll();
    control_options.poll_interval = absl::Seconds(flags.control.poll_s);
    control_options.keep_versions = flags.keep_versions;
    control_options.ready_timeout = absl::Seconds(flags.load_timeout_s);
    control_options.served = model_options;
    control = std::make_unique<ModelControl>(repository, engine.get(),
                                             control_options);
  }
  // Destroyed before the engine.
  std::unique_ptr<DeltaWatch> deltas;
  if (flags.deltas) {
    DeltaWatchOptions delta_options;
    delta_options.interval = absl::Seconds(flags.deltas_poll_s);
    delta_options.cpu_share = flags.deltas_cpu_percent / 100;
    delta_options.p99_limit = absl::Milliseconds(flags.deltas_p99_ms);
    REFRACT_ASSIGN_OR_RETURN(deltas,
                             DeltaWatch::Start(engine.get(), delta_options));
  }
  std::unique_ptr<DeltaTopic> topic;
  if (topic_reader != nullptr) {
    REFRACT_ASSIGN_OR_RETURN(
        topic,
        DeltaTopic::Start(std::move(topic_reader),
                          [engine = engine.get()] { return engine->catalog(); },
                          {.topic = flags.deltas_kafka_topic,
                           .deltas_folder = flags.deltas_folder}));
  }
  // From here on requests may come.
  starting.reset();
  const size_t http_body_memory =
      flags.http_port.on() ? flags.request_memory / 4 : 0;
  FrontendOptions frontend_options = ToFrontendOptions(flags, http_body_memory);
  frontend_options.control = control.get();
  frontend_options.access = access.get();
  absl::StatusOr<std::unique_ptr<Frontend>> frontend =
      Frontend::Create(frontend_options, engine.get());
  if (!frontend.ok()) {
    return absl::IsUnavailable(frontend.status())
               ? absl::UnavailableError(
                     absl::StrCat("gRPC: ", frontend.status().message(),
                                  "; --port chooses another port"))
               : base::Annotate(frontend.status(), "gRPC");
  }
  const absl::StatusOr<std::unique_ptr<HttpServer>> http =
      ServeHttp(flags, http_body_memory, engine.get(), control.get(), tls.get(),
                access.get(), (*frontend)->memory());
  if (!http.ok()) {
    engine->Stop();
    return http.status();
  }
  // Destroyed first, while its sources exist.
  absl::StatusOr<std::unique_ptr<metrics::Server>> metrics = metrics::Serve(
      flags.metrics,
      [&](metrics::Exposition& exposition) {
        CollectMetrics(*engine, **frontend, exposition);
        if (*http != nullptr) CollectMetrics(**http, exposition);
        if (access != nullptr) CollectMetrics(*access, exposition);
        if (watch != nullptr) watch->Collect(exposition);
        if (tracer != nullptr) tracer->Collect(exposition);
        if (recorder != nullptr) recorder->Collect(exposition);
        if (topic != nullptr) topic->Collect(exposition);
        CollectChanges(
            control != nullptr ? control->counts() : ModelControl::Counts(),
            exposition);
      },
      StatusRoutes(engine.get(), (*frontend)->memory()));
  if (!metrics.ok()) {
    engine->Stop();
    return metrics.status();
  }
  LOG(INFO) << (tls == nullptr ? "gRPC on " : "gRPC with TLS on ")
            << base::AddressText(flags.grpc_host, (*frontend)->port())
            << base::WhoReaches(flags.grpc_host, "--host");
  std::printf("refract-cpu-node listening on %s\n",
              base::AddressText(flags.grpc_host, (*frontend)->port()).c_str());
  std::fflush(stdout);
  if (*http != nullptr) {
    std::printf("refract-cpu-node: HTTP on %s\n",
                base::AddressText(flags.http_host, (*http)->port()).c_str());
    std::fflush(stdout);
  }
  metrics::PrintAddress("refract-cpu-node", flags.metrics, metrics->get());
  // Begins when clients can come, because it may take minutes. The thread ends
  // last: on a busy machine it gets no processor for seconds, and readiness
  // must not wait for it.
  const std::unique_ptr<TableReadAhead> read_ahead =
      StartReadAhead(*engine->catalog(), model_options);

  const auto manager = base::ServiceManager::FromEnvironment();
  manager.Ready();
  const int signal_number = manager.WaitForSignal(
      shutdown, [&] { return (*frontend)->AnswersLive(kLongestToAnswer); });
  manager.Stopping(absl::Seconds(flags.lame_duck_s + flags.drain_timeout_s) +
                   kLongestWaitForQuiet + 2 * kLastAnswers);
  LOG(INFO) << "signal " << signal_number << ": not ready, stopping in "
            << flags.lame_duck_s << " s";
  // Four stages: the node is not ready, but serves (lame duck); it refuses new
  // requests; it waits for the last answer; it waits until clients send nothing
  // more, because each of them has learnt from an error to use another node.
  engine->AnnounceStop();
  shutdown.WaitFor(absl::Seconds(flags.lame_duck_s));
  LOG(INFO) << "stopping";
  engine->StopAdmitting();
  if (!engine->Drain(absl::Seconds(flags.drain_timeout_s))) {
    LOG(WARNING) << "requests were still in flight after "
                 << flags.drain_timeout_s << " s; the node gives them up";
  }
  (*frontend)->AwaitQuiet(kQuiet, kLongestWaitForQuiet, [&] {
    return *http != nullptr ? (*http)->infer_calls() : 0;
  });
  engine->Stop();
  metrics->reset();  // it reads from the control
  if (control != nullptr) control->Stop();
  if (*http != nullptr) (*http)->Shutdown(kLastAnswers);
  (*frontend)->Shutdown(kLastAnswers);
  LogCounts(*engine);
  LOG(INFO) << "stopped";
  return absl::OkStatus();
}

int Run(const Flags& flags) {
  // First, so that every later thread blocks the signals that Wait() handles.
  base::ShutdownSignal shutdown;
  base::LogWriter log(flags.log.Format());
  return log.Exit("refract-cpu-node", Serve(flags, shutdown, log));
}

}  // namespace
}  // namespace refract::cpu_node

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  refract::base::StopMutexDeadlockChecks();
  refract::base::RaiseDescriptorLimit();
  const auto flags = refract::cpu_node::ParseFlags(argc, argv);
  if (const int* status = std::get_if<int>(&flags)) return *status;
  refract::base::ExitNow(
      refract::cpu_node::Run(std::get<refract::cpu_node::Flags>(flags)));
}
