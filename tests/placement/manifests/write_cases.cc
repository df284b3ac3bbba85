// Writes manifests of several deployments in every flavour into
// FOLDER/CASE-FLAVOUR/, for schema_test.py.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "placement/manifests/manifests.h"

namespace refract::placement {
namespace {

Deployment Ranker() {
  Deployment ranker;
  ranker.name = "ranker";
  ranker.image = "registry.example/refract:0.1";
  ranker.model_repository = "/models";
  ranker.slo_p99_ms = 20;
  ranker.tier_keys = *TierKeysOf("topograph");
  Service cn;
  cn.name = "ranker-cn";
  cn.app = "ranker";
  cn.role = Role::kCn;
  cn.replicas = 40;
  cn.least_replicas = 12;
  cn.max_per_node = 4;
  cn.demand.cpu_milli = 16000;
  cn.demand.memory_mib = 65536;
  cn.demand.disk_mib = 1024;
  cn.demand.nic_percent = 25;
  cn.parallel = 16;
  cn.requests_per_s = 812.5;
  cn.most_requests_per_s = 1100;
  cn.node_labels = {{"pool", "cpu"}, {"tier", "1"}};
  Service hn;
  hn.name = "ranker-hn";
  hn.app = "ranker";
  hn.role = Role::kHn;
  hn.replicas = 10;
  hn.least_replicas = 3;
  hn.demand.cpu_milli = 7500;
  hn.demand.memory_mib = 32768;
  hn.demand.gpus = 1;
  hn.demand.gpu_milli = 1000;
  hn.demand.nic_percent = 100;
  hn.gpu_model = "H200";
  hn.parallel = 2;
  hn.batching_window_us = 200;
  hn.requests_per_s = 3250;
  ranker.services = {cn, hn};
  return ranker;
}

std::map<std::string, Deployment> Cases() {
  std::map<std::string, Deployment> cases;
  cases["ranker"] = Ranker();

  Deployment& legacy = cases["legacy"] = Ranker();
  legacy.tier_keys = *TierKeysOf("topograph-legacy");
  legacy.cn_metrics_port = 0;
  legacy.hn_metrics_port = 0;
  legacy.services[0].max_per_node = 1;
  legacy.services[0].requests_per_s = 0;
  legacy.services[1].requests_per_s = 0;

  // One instance each, no NIC, a MIG slice, nothing known of the fabric.
  Deployment& small = cases["small"] = Ranker();
  small.tier_keys.clear();
  for (Service& service : small.services) {
    service.replicas = service.least_replicas = 1;
    service.max_per_node = -1;
    service.demand.nic_percent = 0;
  }
  small.services[1].demand.mig = MigProfile::k2g;
  small.services[1].demand.gpu_milli = MigGpuMilli(MigProfile::k2g);
  small.services[1].batching_window_us = -1;

  // Two apps, of which the second has two kinds of GPU nodes; one tier.
  Deployment& two = cases["two"] = Ranker();
  two.name = "both";
  two.tier_keys = {"example.com/rack"};
  Service retrieval = two.services[0];
  retrieval.name = "retrieval-cn";
  retrieval.app = "retrieval";
  Service fast = two.services[1];
  fast.name = "retrieval-fast";
  fast.app = "retrieval";
  fast.demand.gpus = 2;
  Service slow = two.services[1];
  slow.name = "retrieval-slow";
  slow.app = "retrieval";
  slow.gpu_model = "";
  slow.demand.nic_percent = 0;
  two.services.insert(two.services.end(), {retrieval, fast, slow});

  // Whole models on CPU nodes.
  Deployment& whole = cases["whole"] = Ranker();
  whole.services.pop_back();
  whole.services[0].role = Role::kWhole;
  return cases;
}

absl::Status Write(const std::filesystem::path& folder) {
  for (const auto& [name, deployment] : Cases()) {
    for (const Flavour flavour :
         {Flavour::kPlain, Flavour::kKueue, Flavour::kKai, Flavour::kGrove}) {
      ManifestOptions options;
      options.flavour = flavour;
      options.name_space = "serving";
      if (name == "two") options.cpu_class = "dra.cpu";
      if (name == "two" || name == "whole") {
        options.node_tls_secret = "refract-nodes";
      }
      auto files = WriteManifests(deployment, options);
      if (!files.ok()) return files.status();
      const auto to =
          folder / absl::StrCat(name, "-", std::string(Name(flavour)));
      std::filesystem::create_directories(to);
      for (const ManifestFile& file : *files) {
        std::ofstream(to / file.name) << file.text;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace refract::placement

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: manifest_cases FOLDER\n");
    return 2;
  }
  const absl::Status status = refract::placement::Write(argv[1]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
