// refract-gpu-node: docs/how-to/serving.md, docs/design/scheduling.md.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log/log_writer.h"
#include "base/process/affinity.h"
#include "base/process/byte_budget.h"
#include "base/process/descriptor_limit.h"
#include "base/process/exit_now.h"
#include "base/process/loopback.h"
#include "base/process/mutex_checks.h"
#include "base/process/service_manager.h"
#include "base/process/shutdown_signal.h"
#include "base/status_macros.h"
#include "base/tls/tls_contexts.h"
#include "glog/logging.h"
#include "gpu_node/admin.h"
#include "gpu_node/device/cuda_library.h"
#include "gpu_node/device/cuda_setup.h"
#include "gpu_node/flags.h"
#include "gpu_node/gpu_node.h"
#include "gpu_node/metrics.h"
#include "gpu_node/model/device_model.h"
#include "metrics/server.h"
#include "models/repository/repository.h"
#include "placement/binding/daemon_binding.h"
#include "runtime/torch/caller.h"
#include "runtime/torch/op_library.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {
namespace {

// Rows of the largest batch that a GPU reserves memory for: its throughput
// hardly grows beyond, and a DLRM's inputs of that many rows are 60 MB.
constexpr int64_t kCudaMaxBatch = 4096;

void LogSummary(const DeviceModels& models, const std::string& repository,
                const std::string& device, const GpuNodeOptions& options) {
  LOG(INFO) << "device " << device << ", " << options.instances
            << " instance(s), queue of " << options.max_queue << ", "
            << models.size() << " model(s)";
  for (size_t i = 0; i < models.size(); ++i) {
    const models::SplitPlan& plan = *models[i].model().plan;
    LOG(INFO) << models[i].label() << ": plan '" << plan.method << "', "
              << plan.up.size() << " tensors in, " << plan.down.size()
              << " out, schema " << models[i].schema().ToHex();
  }
  if (models.size() == 0) {
    LOG(WARNING) << "no model in " << repository
                 << " has a part for this node; every offer will be refused. "
                    "refract list DIR shows the plans";
  }
}

void ControlModels(const base::ModelControlFlags& flags,
                   const models::Repository& repository,
                   GpuNodeOptions& options) {
  if (!flags.poll() && !flags.by_request()) return;
  options.load = [repository](const std::string& name, int64_t version) {
    return LoadPart(repository, name, version);
  };
  if (!flags.poll()) return;
  options.poll_interval = absl::Seconds(flags.poll_s);
  options.wanted = [repository]()
      -> absl::StatusOr<std::vector<std::pair<std::string, int64_t>>> {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             repository.ListModels());
    std::vector<std::pair<std::string, int64_t>> wanted;
    for (const std::string& name : names) {
      const auto versions = repository.ListServedVersions(name);
      if (!versions.ok()) return base::Annotate(versions.status(), name);
      for (const int64_t version : *versions)
        wanted.emplace_back(name, version);
    }
    return wanted;
  };
}

// For --exit-on-error: why a version that should be served is not among
// `models`. A version without an HN part is no error.
absl::Status FirstBroken(const models::Repository& repository,
                         const DeviceModels& models,
                         const base::ModelControlFlags& control) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  for (const std::string& name : names) {
    if (!control.LoadsAtStart(name)) continue;
    const std::string label = absl::StrCat("--exit-on-error: model '", name);
    const auto versions = repository.ListServedVersions(name);
    if (!versions.ok()) {
      return base::Annotate(versions.status(), absl::StrCat(label, "'"));
    }
    for (const int64_t version : *versions) {
      bool loaded = false;
      for (size_t i = 0; i < models.size(); ++i) {
        loaded |= models[i].name() == name && models[i].version() == version;
      }
      if (loaded) continue;
      // DeviceModels keeps reasons only as answers to CPU nodes.
      const absl::Status why = LoadPart(repository, name, version).status();
      if (why.ok() || absl::IsFailedPrecondition(why)) continue;
      return base::Annotate(why, absl::StrCat(label, "' version ", version));
    }
  }
  return absl::OkStatus();
}

absl::Status Serve(const Flags& flags, base::ShutdownSignal& shutdown,
                   base::LogWriter& log) {
  auto starting = std::make_unique<base::EndsAtSignal>(shutdown, &log);
  runtime::aten::UseOneThread();
  for (const std::string& library : flags.op_libraries) {
    const absl::Status status = runtime::aten::LoadOpLibrary(library);
    if (!status.ok()) {
      return base::Annotate(status, "--op-library");
    }
  }

  // TLS files first: their errors appear before models take their time.
  std::shared_ptr<base::TlsContexts> tls;
  if (flags.node_tls.on()) {
    REFRACT_ASSIGN_OR_RETURN(
        tls,
        base::TlsContexts::Create(flags.node_tls, base::TlsUse::kAcceptNodes,
                                  base::Clock::Real()));
  }
  const models::Repository repository(flags.model_repository);
  const auto at_start = [&flags](absl::string_view name) {
    return flags.control.LoadsAtStart(name);
  };
  absl::StatusOr<DeviceModels> models =
      DeviceModels::Load(repository, at_start);
  if (!models.ok()) return models.status();
  if (flags.control.exit_on_error) {
    REFRACT_RETURN_IF_ERROR(FirstBroken(repository, *models, flags.control));
  }

  GpuNodeOptions options;
  ControlModels(flags.control, repository, options);
  options.instances = flags.instances > 0 ? flags.instances : 1;
  options.max_queue = flags.max_queue;
  options.isolation = !flags.no_isolation;
  if (flags.slow_request_ms > 0) {
    options.slow_after = absl::Milliseconds(flags.slow_request_ms);
  }
  if (flags.batching_window_us.has_value()) {
    options.batching_window = absl::Microseconds(*flags.batching_window_us);
  }
  options.max_batch = flags.max_batch;
  // The node listens before its models are measured; each model becomes ready
  // by itself.
  options.warm_up_in_background = true;
  options.weight_memory =
      static_cast<size_t>(flags.weight_memory_mib * (size_t{1} << 20));
  std::string device = "cpu";
  GpuNode::MakeDevice make_device;
  const int index = CudaIndexOf(flags.device).value_or(0);
  absl::StatusOr<std::unique_ptr<runtime::cuda::DeviceApi>> gpu =
      absl::UnavailableError("--device cpu was given");
  if (flags.device != "cpu") gpu = OpenCudaDevice(index);
  // Binds to CPUs before the node allocates memory and starts threads.
  REFRACT_ASSIGN_OR_RETURN(
      transport::Locality locality,
      placement::BindDaemon({.topology = flags.topology,
                             .rdma_device = flags.rdma_device,
                             .gpu = gpu.ok() ? CudaPciAddress(index) : ""}));
  if (flags.device != "cpu") {
    // auto: the CPU where no GPU works, with a line in the log.
    if (!gpu.ok() && flags.device != "auto") {
      return base::Annotate(gpu.status(),
                            absl::StrCat("--device ", flags.device));
    }
    if (gpu.ok()) {
      device = absl::StrCat("cuda:", index);
      if (!flags.max_batch_given) options.max_batch = kCudaMaxBatch;
      CudaDevice::Options cuda;
      cuda.name = device;
      cuda.instances = options.instances;
      cuda.max_rows = options.max_batch;
      cuda.max_size = flags.max_size;
      cuda.weight_memory = options.weight_memory;
      cuda.foreign = AtenOperatorsOn(index);
      CudaSetup setup = SetUpCuda(*std::move(gpu), cuda, *models);
      options.facts = std::move(setup.facts);
      make_device = std::move(setup.make_device);
    } else {
      LOG(INFO) << "no GPU: " << gpu.status().message();
    }
  }
  if (device == "cpu" && flags.instances == 0) {
    options.instances = base::NumUsableCpus();
  }
  LogSummary(*models, flags.model_repository, device, options);
  base::ByteBudget request_memory(flags.request_memory,
                                  base::kRequestMemoryFlag);
  absl::StatusOr<std::unique_ptr<GpuNode>> node =
      GpuNode::Create(*std::move(models), options, make_device);
  if (!node.ok()) return node.status();

  // From here on requests may come.
  starting.reset();
  transport::ServerOptions server_options;
  server_options.host = flags.host;
  server_options.port = flags.port;
  server_options.path = transport::PathPreferenceNamed(flags.transport);
  server_options.rdma_device = flags.rdma_device;
  server_options.pollers = flags.pollers;
  server_options.request_memory = &request_memory;
  server_options.tls = tls;
  server_options.locality = std::move(locality);
  absl::StatusOr<std::unique_ptr<transport::Server>> server =
      transport::Server::Create(server_options, node->get());
  if (!server.ok()) {
    return absl::IsUnavailable(server.status())
               ? absl::UnavailableError(
                     absl::StrCat(server.status().message(),
                                  "; --port chooses another port"))
               : server.status();
  }
  // CNs must not send requests that cannot be executed.
  (*node)->WatchReadiness([&server](size_t model, const absl::Status& ready) {
    (*server)->SetModelStatus(model, ready);
  });
  AdminEndpoint admin(node->get(), server->get(), &request_memory, device);
  absl::StatusOr<std::unique_ptr<metrics::Server>> metrics = metrics::Serve(
      flags.metrics,
      [&](metrics::Exposition& exposition) {
        CollectMetrics(**node, **server, request_memory, device, exposition);
      },
      admin.routes(flags.remote_drain));
  if (!metrics.ok()) {
    // The listener uses the server, which ends next. The server ends before the
    // node, which is its handler.
    (*node)->WatchReadiness(nullptr);
    return metrics.status();
  }
  LOG(INFO) << (tls == nullptr ? "CPU nodes on " : "CPU nodes with TLS on ")
            << base::AddressText(flags.host, (*server)->port())
            << base::WhoReaches(flags.host, "--host");
  std::printf("refract-gpu-node listening on %s\n",
              base::AddressText(flags.host, (*server)->port()).c_str());
  std::fflush(stdout);
  metrics::PrintAddress("refract-gpu-node", flags.metrics, metrics->get());

  const auto manager = base::ServiceManager::FromEnvironment();
  manager.Ready();
  // A node that never releases the scheduler's locks counts as hung.
  const int signal_number = manager.WaitForSignal(shutdown, [&] {
    (*node)->stats();
    return true;
  });
  manager.Stopping(absl::Seconds(flags.lame_duck_s + flags.drain_timeout_s) +
                   absl::Seconds(5));
  LOG(INFO)
      << "signal " << signal_number
      << ": CPU nodes are told to send no more requests; this node stops in "
      << flags.lame_duck_s << " s";
  // Two stages. First the node announces its end and still serves: CPU nodes
  // may learn of it late. Then it refuses requests, and answers the requests
  // that it has.
  admin.OnStop();
  (*server)->AnnounceStop();
  shutdown.WaitFor(absl::Seconds(flags.lame_duck_s));
  LOG(INFO) << "stopping";
  (*server)->StopAdmitting();
  if (!(*node)->Drain(absl::Seconds(flags.drain_timeout_s))) {
    LOG(WARNING) << "requests were still in flight after "
                 << flags.drain_timeout_s << " s; they are given up";
  }
  (*node)->WatchReadiness(nullptr);
  const transport::ServerStats link = (*server)->stats();
  metrics->reset();  // it reads from the server
  server->reset();
  const GpuNode::Stats stats = (*node)->stats();
  LOG(INFO) << "stopped: " << stats.succeeded << " requests succeeded, "
            << stats.failed << " failed, " << stats.expired
            << " expired in the queue, " << stats.abandoned
            << " given up by their clients, " << stats.refused << " refused, "
            << stats.unavailable << " unavailable; " << link.accepted
            << " connections accepted, " << link.refused << " refused";
  for (const auto& [number, model] : (*node)->served()) {
    LOG(INFO) << model->label() << ": " << Summary((*node)->stats(number));
  }
  return absl::OkStatus();
}

int Run(const Flags& flags) {
  // First, so that every later thread blocks the signals that Wait() handles.
  base::ShutdownSignal shutdown;
  base::LogWriter log(flags.log.Format());
  return log.Exit("refract-gpu-node", Serve(flags, shutdown, log));
}

}  // namespace
}  // namespace refract::gpu_node

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  refract::base::StopMutexDeadlockChecks();
  refract::base::RaiseDescriptorLimit();
  const auto flags = refract::gpu_node::ParseFlags(argc, argv);
  if (const int* status = std::get_if<int>(&flags)) return *status;
  refract::base::ExitNow(
      refract::gpu_node::Run(std::get<refract::gpu_node::Flags>(flags)));
}
