#include "tools/plan/manifest_options.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process/files.h"
#include "base/status_macros.h"

namespace refract::tools {

void AddManifestFlags(CLI::App& command, ManifestFlags& flags) {
  CLI::Option* const folder =
      command
          .add_option("--manifests", flags.folder,
                      "write Kubernetes objects into this folder "
                      "(docs/how-to/kubernetes.md)")
          ->type_name("DIR");
  const auto add = [&](const char* name, std::string& value, const char* what,
                       const char* type) {
    return command.add_option(name, value, what)
        ->needs(folder)
        ->type_name(type);
  };
  placement::ManifestOptions& options = flags.options;
  add("--flavour", flags.flavour,
      "whose objects: plain (generally available fields alone), kueue, kai or "
      "grove",
      "NAME")
      ->check(CLI::IsMember({"plain", "kueue", "kai", "grove"}));
  add("--image", flags.image, "container image; replaces the spec's", "IMAGE");
  add("--namespace", options.name_space, "namespace of the objects", "NAME");
  add("--fabric-labels", flags.fabric_labels,
      "node labels of the fabric: topograph, topograph-legacy, or keys from "
      "the leaf up, separated by commas; replaces the spec's",
      "LABELS");
  add("--gpu-class", options.gpu_class, "DeviceClass of GPUs", "NAME");
  add("--mig-class", options.mig_class, "DeviceClass of MIG slices", "NAME");
  add("--nic-class", options.nic_class, "DeviceClass of RDMA NICs", "NAME");
  add("--cpu-class", options.cpu_class,
      "DeviceClass of CPUs, where a driver publishes them", "NAME");
  add("--queue", options.queue, "queue of flavours kueue, kai and grove",
      "NAME");
  add("--topology-name", options.topology,
      "Topology or ClusterTopologyBinding of those flavours", "NAME");
  add("--monitoring-namespace", options.monitoring_namespace,
      "namespace of Prometheus, which may read metrics", "NAME");
  CLI::Option* const secret =
      add("--node-tls-secret", options.node_tls_secret,
          "TLS between CPU nodes and GPU nodes: Secret with tls.crt, tls.key "
          "and ca.crt, which their pods mount",
          "NAME");
  add("--node-tls-name", options.node_tls_name,
      "name in the certificates of GPU nodes, which CPU nodes compare", "NAME")
      ->needs(secret);
}

absl::StatusOr<std::vector<placement::ManifestFile>> ManifestFiles(
    const ManifestFlags& flags, placement::Deployment deployment) {
  placement::ManifestOptions options = flags.options;
  options.flavour = placement::FlavourFromName(flags.flavour)
                        .value_or(placement::Flavour::kPlain);
  if (!flags.image.empty()) deployment.image = flags.image;
  if (!flags.fabric_labels.empty()) {
    const auto known = placement::TierKeysOf(flags.fabric_labels);
    deployment.tier_keys =
        known.has_value()
            ? *known
            : std::vector<std::string>(absl::StrSplit(flags.fabric_labels, ',',
                                                      absl::SkipWhitespace()));
  }
  return WriteManifests(deployment, options);
}

absl::Status WriteManifestFiles(const ManifestFlags& flags,
                                const placement::Deployment& deployment) {
  REFRACT_ASSIGN_OR_RETURN(const auto files, ManifestFiles(flags, deployment));
  const std::filesystem::path folder(flags.folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // Files of an earlier run that this run does not write would stay and be
  // applied. Only files that begin with the mark are removed; others are the
  // user's.
  std::vector<std::filesystem::path> stale;
  for (auto at = std::filesystem::directory_iterator(folder, error);
       !error && at != std::filesystem::directory_iterator();
       at.increment(error)) {
    if (at->path().extension() != ".yaml") continue;
    const auto text = base::ReadText(at->path().string());
    if (text.ok() && absl::StartsWith(*text, placement::kManifestMark)) {
      stale.push_back(at->path());
    }
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--manifests ", flags.folder, ": ", error.message()));
  }
  for (const placement::ManifestFile& file : files) {
    const std::filesystem::path path = folder / file.name;
    REFRACT_RETURN_IF_ERROR(base::ReplaceText(path.string(), file.text));
    std::erase(stale, path);
  }
  // After all files are written: an error before leaves the files of the
  // earlier run.
  for (const std::filesystem::path& path : stale) {
    if (!std::filesystem::remove(path, error) && error) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--manifests: ", path.string(), ": ", error.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::tools
