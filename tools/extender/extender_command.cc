#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/process/loopback.h"
#include "base/process/shutdown_signal.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "metrics/client.h"
#include "metrics/server.h"
#include "nlohmann/json.hpp"
#include "placement/extender/extender.h"
#include "tools/command.h"
#include "tools/place/placement_options.h"

namespace refract::tools {
namespace {

// Timeout of an HTTP request to the API server.
constexpr absl::Duration kApiTimeout = absl::Seconds(10);
// Objects per page; kubectl asks for as many.
constexpr int kPage = 500;
// Pages before the API server is taken for broken: 5 million objects.
constexpr int kMostPages = 10'000;
// Nodes have about 10 kB each; kube-scheduler sends a sample of large clusters
// (percentageOfNodesToScore).
constexpr uint64_t kMostRequestBytes = uint64_t{64} << 20;

struct ExtenderCommand {
  std::string host = "127.0.0.1";
  int port = 8888;
  std::string api_server;
  std::string nodes_file;
  std::string pods_file;
  double refresh_s = 5;
  RuleOptions rules;
};

absl::Status Refused(const std::string& address, absl::string_view target,
                     const metrics::Reply& reply) {
  return absl::UnavailableError(
      absl::StrCat(address, target, ": ", reply.status, ", ",
                   base::Shorten(absl::StripAsciiWhitespace(reply.body))));
}

// Reads every page of a list of the API server with `read`.
template <typename Page, typename Object>
absl::StatusOr<std::vector<Object>> ReadList(
    const std::string& address, absl::string_view list,
    absl::StatusOr<Page> (*read)(absl::string_view),
    std::vector<Object> Page::*objects) {
  std::vector<Object> all;
  std::string next;
  for (int i = 0; i < kMostPages; ++i) {
    const std::string target =
        absl::StrCat("/api/v1/", list, "?limit=", kPage,
                     next.empty() ? "" : "&continue=", next);
    REFRACT_ASSIGN_OR_RETURN(
        const metrics::Reply reply,
        metrics::Request(address, /*changes=*/false, target, kApiTimeout));
    if (reply.status != 200) return Refused(address, target, reply);
    absl::StatusOr<Page> page = read(reply.body);
    if (!page.ok()) {
      return base::Annotate(page.status(), absl::StrCat(address, target));
    }
    for (Object& object : (*page).*objects) all.push_back(std::move(object));
    if (page->next.empty()) return all;
    // The token is Base64, whose signs must be escaped in a query.
    next = absl::StrReplaceAll(
        page->next, {{"+", "%2B"}, {"/", "%2F"}, {"=", "%3D"}, {"&", "%26"}});
  }
  return absl::UnavailableError(absl::StrCat(
      address, "/api/v1/", list,
      ": the list has more pages than any cluster; is this an API server?"));
}

template <typename Page, typename Object>
absl::StatusOr<std::vector<Object>> ReadFile(
    const std::string& path, absl::StatusOr<Page> (*read)(absl::string_view),
    std::vector<Object> Page::*objects) {
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  absl::StatusOr<Page> page = read(text);
  if (!page.ok()) return base::Annotate(page.status(), path);
  return std::move((*page).*objects);
}

absl::Status BindPod(const std::string& address, const std::string& name_space,
                     const std::string& pod, const std::string& uid,
                     const std::string& node) {
  nlohmann::ordered_json binding = {
      {"apiVersion", "v1"},
      {"kind", "Binding"},
      {"metadata", {{"name", pod}, {"namespace", name_space}}},
      {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}}}};
  // With the UID, the API server refuses a later pod of the same name.
  if (!uid.empty()) binding["metadata"]["uid"] = uid;
  const std::string target = absl::StrCat("/api/v1/namespaces/", name_space,
                                          "/pods/", pod, "/binding");
  REFRACT_ASSIGN_OR_RETURN(
      const metrics::Reply reply,
      metrics::Post(address, target, "application/json",
                    base::FormatJson(binding), kApiTimeout));
  if (reply.status / 100 != 2) return Refused(address, target, reply);
  return absl::OkStatus();
}

absl::StatusOr<placement::Extender::Cluster> ClusterOf(
    const ExtenderCommand& options) {
  const bool files = !options.nodes_file.empty() && !options.pods_file.empty();
  // Exactly one source: the API server, or both files.
  if (options.api_server.empty() != files ||
      options.nodes_file.empty() != options.pods_file.empty()) {
    return absl::InvalidArgumentError(
        "give either --api-server, or --nodes-file and --pods-file");
  }
  placement::Extender::Cluster cluster;
  if (files) {
    cluster.nodes = [path = options.nodes_file] {
      return ReadFile(path, placement::NodesFromText,
                      &placement::NodePage::nodes);
    };
    cluster.pods = [path = options.pods_file] {
      return ReadFile(path, placement::PodsFromText, &placement::PodPage::pods);
    };
    // Reads both files now, so that errors appear at the start and not with
    // every pod.
    REFRACT_RETURN_IF_ERROR(cluster.nodes().status());
    REFRACT_RETURN_IF_ERROR(cluster.pods().status());
    return cluster;
  }
  const std::string& address = options.api_server;
  if (absl::StrContains(address, "/")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-server ", address,
        ": is not HOST:PORT; kubectl proxy speaks plain HTTP there"));
  }
  cluster.nodes = [address] {
    return ReadList(address, "nodes", placement::NodesFromText,
                    &placement::NodePage::nodes);
  };
  cluster.pods = [address] {
    return ReadList(address, "pods", placement::PodsFromText,
                    &placement::PodPage::pods);
  };
  cluster.bind = [address](const auto&... names) {
    return BindPod(address, names...);
  };
  return cluster;
}

absl::Status RunExtender(const ExtenderCommand& options, std::ostream& out) {
  using Answer = metrics::Route::Answer;
  REFRACT_ASSIGN_OR_RETURN(placement::Extender::Cluster cluster,
                           ClusterOf(options));
  // Threads that are started later inherit the signal mask.
  base::ShutdownSignal shutdown;
  placement::Extender extender(
      std::move(cluster),
      {.placer = PlacerOptionsOf(placement::Policy::kCombined, options.rules),
       .refresh = absl::Seconds(options.refresh_s)},
      base::Clock::Real());
  const auto route = [&](const char* target, auto verb) {
    return metrics::Route{
        .target = target,
        .changes = true,
        .answer_body =
            [&extender, verb](const std::string& request) {
              const absl::StatusOr<std::string> answer =
                  (extender.*verb)(request);
              if (answer.ok()) return Answer{.body = *answer};
              // 400: not a call of kube-scheduler. 503: the cluster cannot be
              // read now; kube-scheduler tries again.
              return Answer{
                  .status =
                      absl::IsInvalidArgument(answer.status()) ? 400 : 503,
                  .type = "text/plain",
                  .body = absl::StrCat(answer.status().message(), "\n")};
            },
        .most_body_bytes = kMostRequestBytes};
  };
  metrics::Routes routes{
      .routes = {route("/filter", &placement::Extender::Filter),
                 route("/prioritize", &placement::Extender::Prioritize),
                 route("/bind", &placement::Extender::Bind),
                 {.target = "/healthz",
                  .answer =
                      [] {
                        return Answer{.type = "text/plain", .body = "ok\n"};
                      }}},
      // --host decides which machines reach the server.
      .remote_changes = true};
  absl::StatusOr<std::unique_ptr<metrics::Server>> server =
      metrics::Server::Create(
          options.host, options.port, [](metrics::Exposition&) {},
          std::move(routes));
  if (!server.ok()) return base::Annotate(server.status(), "--host, --port");
  out << "refract extender: on "
      << base::AddressText(options.host, (*server)->port()) << std::endl;
  shutdown.Wait();
  return absl::OkStatus();
}

}  // namespace

void AddExtenderCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExtenderCommand>();
  CLI::App* command = app.add_subcommand(
      "extender",
      "A scheduler extender for Kubernetes: filter, prioritize and bind over "
      "HTTP by the rules of `refract place` (docs/how-to/kubernetes.md)");
  command->add_option("--host", options->host, "address to listen on")
      ->type_name("HOST");
  command
      ->add_option("--port", options->port,
                   "port to listen on; 0 = any free port")
      ->type_name("PORT")
      ->check(base::NumberIn(0, 65535));
  command
      ->add_option("--api-server", options->api_server,
                   "where nodes and pods are read and pods are bound, plain "
                   "HTTP: `kubectl proxy` beside the extender")
      ->type_name("HOST:PORT");
  command
      ->add_option("--nodes-file", options->nodes_file,
                   "in place of --api-server: `kubectl get nodes -o json`")
      ->type_name("FILE");
  command
      ->add_option("--pods-file", options->pods_file,
                   "in place of --api-server: `kubectl get pods -A -o json`")
      ->type_name("FILE");
  command
      ->add_option("--refresh", options->refresh_s,
                   "age at which nodes and pods are read again, seconds")
      ->type_name("S")
      ->check(base::NumberIn(0, 3600));
  command->add_flag("--ignore-pods", options->rules.ignore_pods,
                    "let instances of an app run in several fabric pods");
  command
      ->add_option("--leaf-slack", options->rules.leaf_slack,
                   "how much worse a node may fit (0 to 1) to be under a leaf "
                   "switch of the app; -1 = leaves do not count")
      ->type_name("S")
      ->check(base::NumberIn(-1, 1));
  SetAction(*command, context,
            [&context, options] { return RunExtender(*options, context.out); });
}

}  // namespace refract::tools
