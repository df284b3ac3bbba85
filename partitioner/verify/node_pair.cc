#include "partitioner/verify/node_pair.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "proto/node_status.grpc.pb.h"
#include "transport/links/channel.h"

namespace refract::partitioner {
namespace {

namespace fs = std::filesystem;

// Long enough for models of many GB on a slow disk. AwaitAddress() returns at
// once when a node ends.
constexpr absl::Duration kStartTimeout = absl::Minutes(5);
constexpr std::chrono::seconds kCallTimeout(30);

// Counters lag a request by at most one round of the CN's poller, so they are
// read until two readings are equal.
constexpr int kMaxLooks = 50;

absl::StatusOr<std::string> FindProgram(const fs::path& folder,
                                        const char* name) {
  const fs::path path = folder / name;
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(path.string(),
                     ": no such program; --node-programs says where the "
                     "nodes' programs are"));
  }
  return path.string();
}

absl::StatusOr<LinkCounts> CountOnce(proto::NodeStatus::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  proto::GpuNodesResponse response;
  const grpc::Status status =
      stub.GpuNodes(&context, proto::GpuNodesRequest(), &response);
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("NodeStatus of the CN: ", status.error_message()));
  }
  LinkCounts counts;
  for (const proto::GpuNodeLink& link : response.nodes()) {
    counts.path = link.path();
    counts.requests += link.requests_sent();
    counts.bytes_up += link.bytes_sent();
    counts.bytes_down += link.bytes_received();
  }
  return counts;
}

// Adds the log of a node that did not start to the message, because no NodePair
// exists that could be asked for it.
absl::Status WithLog(const absl::Status& status, const ChildProcess& node) {
  if (absl::IsCancelled(status)) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), "; the node's log: ", node.Log()));
}

}  // namespace

absl::Status CheckTransport(absl::string_view transport) {
  const std::vector<std::string> names = transport::PathPreferenceNames();
  if (std::find(names.begin(), names.end(), transport) != names.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--transport ", transport,
                                                 ": unknown; use ",
                                                 absl::StrJoin(names, ", ")));
}

absl::StatusOr<NodePrograms> FindNodePrograms(const NodeOptions& options) {
  fs::path folder = options.programs;
  if (options.programs.empty()) {
    std::error_code error;
    folder = fs::read_symlink("/proc/self/exe", error).parent_path();
    if (error) {
      return absl::InternalError(
          absl::StrCat("/proc/self/exe: ", error.message()));
    }
  }
  NodePrograms programs;
  REFRACT_ASSIGN_OR_RETURN(programs.cpu_node,
                           FindProgram(folder, "refract-cpu-node"));
  REFRACT_ASSIGN_OR_RETURN(programs.gpu_node,
                           FindProgram(folder, "refract-gpu-node"));
  return programs;
}

absl::Status NodePair::CheckAlive() {
  REFRACT_RETURN_IF_ERROR(gpu_node_->CheckAlive());
  return cpu_node_->CheckAlive();
}

absl::StatusOr<LinkCounts> NodePair::Counts() {
  const auto stub = proto::NodeStatus::NewStub(
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  REFRACT_ASSIGN_OR_RETURN(LinkCounts last, CountOnce(*stub));
  for (int look = 0; look < kMaxLooks; ++look) {
    REFRACT_ASSIGN_OR_RETURN(LinkCounts now, CountOnce(*stub));
    if (now.bytes_up == last.bytes_up && now.bytes_down == last.bytes_down) {
      return now;
    }
    last = std::move(now);
  }
  return absl::InternalError(
      "the CN's counters change although no request is in flight");
}

std::string NodePair::Logs() const {
  return absl::StrCat("--- log of refract-gpu-node\n", gpu_node_->Log(),
                      "--- log of refract-cpu-node\n", cpu_node_->Log());
}

absl::StatusOr<std::unique_ptr<NodePair>> NodePair::Start(
    const NodeOptions& options, const std::string& repository,
    const std::string& folder) {
  // The GPU node first: the CPU node needs its address. Both take a free port
  // and print it.
  REFRACT_ASSIGN_OR_RETURN(const NodePrograms programs,
                           FindNodePrograms(options));
  const auto start = [&](const std::string& program,
                         std::vector<std::string> arguments, const char* log) {
    arguments.insert(arguments.begin(),
                     {program, "--model-repository", repository, "--transport",
                      options.transport, "--metrics-port", "off"});
    for (const std::string& library : options.op_libraries) {
      arguments.insert(arguments.end(), {"--op-library", library});
    }
    return ChildProcess::Start(arguments, absl::StrCat(folder, "/", log));
  };
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<ChildProcess> gpu_node,
      start(programs.gpu_node,
            // Each plan is priced alone. Here all plans are models of one HN,
            // and the quotas of isolation would delay their requests.
            {"--device", "cpu", "--host", "127.0.0.1", "--port", "0",
             "--no-isolation"},
            "gpu_node.log"));
  const absl::StatusOr<std::string> hn = gpu_node->AwaitAddress(kStartTimeout);
  if (!hn.ok()) return WithLog(hn.status(), *gpu_node);
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> cpu_node,
                           start(programs.cpu_node,
                                 {"--gpu-nodes", *hn, "--grpc-host",
                                  "127.0.0.1", "--grpc-port", "0"},
                                 "cpu_node.log"));
  const absl::StatusOr<std::string> cn = cpu_node->AwaitAddress(kStartTimeout);
  if (!cn.ok()) return WithLog(cn.status(), *cpu_node);
  return std::unique_ptr<NodePair>(
      new NodePair(std::move(gpu_node), std::move(cpu_node), *cn));
}

}  // namespace refract::partitioner
