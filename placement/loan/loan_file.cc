#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "placement/loan/loan.h"
#include "placement/topology/json_fields.h"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using Fields = JsonFields;

constexpr double kMostCores = 10'000;
constexpr double kMostGib = 1 << 20;
constexpr double kMostTime = 1e10;
constexpr int kMostNodes = 100'000;

// The file has cores and GiB; demands count thousandths of a core and MiB.
Demand ReadDemand(Fields& fields, bool with_gpu) {
  Demand demand;
  double cores = 0;
  double memory_gib = 0;
  Need(fields, "cores", fields.Number("cores", 0.001, kMostCores), &cores);
  Assign(fields.Number("memory_gib", 0, kMostGib), &memory_gib);
  demand.cpu_milli = std::llround(cores * 1000);
  demand.memory_mib = std::llround(memory_gib * 1024);
  Assign(fields.Whole("nic_percent", 0, 100), &demand.nic_percent);
  if (!with_gpu) return demand;
  demand.gpus = 1;
  demand.gpu_milli = kWholeGpu;
  std::string part = "whole";
  Assign(fields.Text("gpu_part"), &part);
  if (part == "whole") return demand;
  const auto profile = MigProfileFromName(part);
  if (!profile.has_value()) {
    fields.Fail("gpu_part",
                absl::StrCat("'", part,
                             "' is neither 'whole' nor a MIG profile such as "
                             "2g.20gb"));
    return demand;
  }
  demand.mig = *profile;
  demand.gpu_milli = MigGpuMilli(*profile);
  return demand;
}

LoanService ReadService(Fields& fields) {
  LoanService service;
  Need(fields, "name", fields.Text("name"), &service.name);
  Assign(fields.Text("pod"), &service.pod);
  const auto instances = [](Fields& part, int* count) {
    Need(part, "instances", part.Whole("instances", 0, kMostNodes), count);
  };
  fields.Object("cn", [&](Fields& cn) {
    instances(cn, &service.cns);
    service.cn = ReadDemand(cn, false);
  });
  const bool has_hn = fields.Object("hn", [&](Fields& hn) {
    instances(hn, &service.hns);
    service.hn = ReadDemand(hn, true);
    Assign(hn.Whole("max_per_node", 1, kMostNodes), &service.hn_max_per_node);
  });
  if (!has_hn) fields.Fail("hn", "is missing");
  return service;
}

// Fields of an entry of training_nodes that are no part of a Node.
struct Extra {
  double from = -kMostTime;
  double until = kMostTime;
  double free_cores = 0;
  double free_memory_gib = 0;
};

class Reader {
 public:
  explicit Reader(LoanSpec* spec) : spec_(*spec) {}

  // Nodes come before jobs, which name them. Checks between parts run last.
  void Read(Fields& root) {
    root.Each("services", [&](Fields& fields) {
      spec_.services.push_back(ReadService(fields));
      if (!services_.insert(spec_.services.back().name).second) {
        fields.Fail("name", absl::StrCat("'", spec_.services.back().name,
                                         "' is there twice"));
      }
    });
    root.Each("own_nodes", [&](Fields& fields) {
      ReadNodes(fields, spec_.own, /*lends=*/false);
    });
    root.Each("training_nodes", [&](Fields& fields) {
      ReadNodes(fields, spec_.lenders, /*lends=*/true);
    });
    root.Each("jobs", [&](Fields& fields) { ReadJob(fields); });
    const bool has_peak = root.Object("peak", [&](Fields& fields) {
      const auto time = [&](const char* name, double* target) {
        Need(fields, name, fields.Number(name, -kMostTime, kMostTime), target);
      };
      time("start_s", &spec_.start);
      time("end_s", &spec_.end);
      if (fields.ok() && spec_.end <= spec_.start) {
        fields.Fail("end_s", absl::StrCat(spec_.end, " is not after start_s, ",
                                          spec_.start));
      }
      Assign(fields.Number("warm_up_s", 0, kMostTime), &spec_.warm_up);
      Assign(fields.Number("drain_s", 0, kMostTime), &spec_.drain);
    });
    if (!has_peak) root.Fail("peak", "is missing");
    root.Object("dormant", [&](Fields& fields) {
      Assign(fields.Number("ahead_s", 0, kMostTime), &spec_.dormant);
      double cores = spec_.dormant_cpu_milli / 1000.0;
      double gib = 0;
      Assign(fields.Number("cores", 0, kMostCores), &cores);
      Assign(fields.Number("memory_gib", 0, kMostGib), &gib);
      spec_.dormant_cpu_milli = std::llround(cores * 1000);
      spec_.dormant_memory_mib = std::llround(gib * 1024);
    });
    root.Object("monolith", [&](Fields& fields) {
      spec_.monolith = ReadDemand(fields, true);
    });
    root.RefuseOthers();
    CheckAll(root);
  }

 private:
  void ReadNodes(Fields& fields, Cluster& cluster, bool lends) {
    std::string name;
    Need(fields, "name", fields.Text("name"), &name);
    // An entry may stand for many equal nodes, NAME-0, NAME-1 and so on.
    int64_t count = 0;  // 0: one node of that name
    Assign(fields.Whole("count", 1, kMostNodes), &count);
    Node node;
    double cores = 0;
    double memory_gib = 0;
    Need(fields, "cores", fields.Number("cores", 1, kMostCores), &cores);
    node.cpu_milli = std::llround(cores * 1000);
    if (const auto given = fields.Number("memory_gib", 1, kMostGib)) {
      memory_gib = *given;
      node.memory_mib = std::llround(memory_gib * 1024);
    }
    Assign(fields.Whole("gpus", 0, kMaxGpus), &node.gpus);
    std::string model;
    Assign(fields.Text("gpu_model"), &model);
    if (node.gpus > 0) {
      node.gpu_model = GpuModelIndex(cluster, model);
      node.mig_capable = IsMigCapable(model);
    }
    // The defaults of node lists: a NIC for every two GPUs (NodeDefaults).
    node.nics = std::max(1, node.gpus / 2);
    Assign(fields.Whole("nics", 1, kMaxNics), &node.nics);
    Assign(fields.Number("nic_gbps", 0.001, 1e6), &node.nic_gbps);
    std::string pod = "pod-0";
    Assign(fields.Text("pod"), &pod);
    node.leaf = LeafOf(cluster, pod);
    AttachEvenly(node, 2);
    Extra extra;
    if (lends) {
      Assign(fields.Number("from_s", -kMostTime, kMostTime), &extra.from);
      Assign(fields.Number("until_s", -kMostTime, kMostTime), &extra.until);
      Assign(fields.Number("free_cores", 0, cores), &extra.free_cores);
      Assign(fields.Number("free_memory_gib", 0, kMostGib),
             &extra.free_memory_gib);
    }
    for (int64_t i = 0; i < std::max<int64_t>(count, 1) && fields.ok(); ++i) {
      node.name = count == 0 ? name : absl::StrCat(name, "-", i);
      if (!names_.insert(node.name).second) {
        fields.Fail("name", absl::StrCat("'", node.name, "' is there twice"));
        return;
      }
      if (lends) {
        // Vectors of LoanSpec beside `lenders` have one entry per lender.
        lender_[node.name] = static_cast<int>(cluster.nodes.size());
        spec_.from.push_back(extra.from);
        spec_.until.push_back(extra.until);
        spec_.free_cpu_milli.push_back(std::llround(extra.free_cores * 1000));
        spec_.free_memory_mib.push_back(
            std::llround(extra.free_memory_gib * 1024));
      }
      cluster.nodes.push_back(node);
    }
  }

  // Loans know pods only: each pod gets one leaf, of the same index.
  static int LeafOf(Cluster& cluster, const std::string& pod) {
    const auto found = std::find(cluster.pods.begin(), cluster.pods.end(), pod);
    const int index = static_cast<int>(found - cluster.pods.begin());
    if (found == cluster.pods.end()) {
      cluster.pods.push_back(pod);
      cluster.leaves.push_back({.name = pod, .pod = index});
    }
    return index;  // one leaf per pod
  }

  void ReadJob(Fields& fields) {
    LenderJob job;
    Need(fields, "name", fields.Text("name"), &job.name);
    int gpus_of_nodes = 0;
    std::set<int> nodes;
    for (const std::string& name :
         fields.Texts("nodes").value_or(std::vector<std::string>())) {
      const auto found = lender_.find(name);
      if (found == lender_.end()) {
        fields.Fail("nodes",
                    absl::StrCat("'", name, "' is none of training_nodes"));
        return;
      }
      if (!nodes.insert(found->second).second) {
        fields.Fail("nodes", absl::StrCat("'", name, "' is there twice"));
        return;
      }
      gpus_of_nodes += spec_.lenders.nodes[found->second].gpus;
      job.nodes.push_back(found->second);
    }
    if (job.nodes.empty()) fields.Fail("nodes", "is missing or empty");
    // By default a job uses all GPUs of its nodes.
    job.gpus = gpus_of_nodes;
    Assign(fields.Whole("gpus", 1, 1'000'000), &job.gpus);
    if (job.gpus > gpus_of_nodes) {
      fields.Fail("gpus", absl::StrCat(job.gpus, ", but its nodes have ",
                                       gpus_of_nodes));
    }
    Need(fields, "last_checkpoint_s",
         fields.Number("last_checkpoint_s", -kMostTime, kMostTime),
         &job.last_checkpoint);
    Assign(fields.Number("checkpoint_every_s", 1, kMostTime),
           &job.checkpoint_every);
    if (!jobs_.insert(job.name).second) {
      fields.Fail("name", absl::StrCat("'", job.name, "' is there twice"));
    }
    spec_.jobs.push_back(std::move(job));
  }

  void CheckAll(Fields& root) {
    if (!root.ok()) return;
    if (spec_.services.empty()) root.Fail("services", "is missing or empty");
    if (spec_.lenders.nodes.empty()) {
      root.Fail("training_nodes", "is missing or empty");
    }
    bool any_cn = false;
    for (size_t s = 0; s < spec_.services.size(); ++s) {
      const LoanService& service = spec_.services[s];
      any_cn |= service.cns > 0;
      if (!service.pod.empty() &&
          std::find(spec_.lenders.pods.begin(), spec_.lenders.pods.end(),
                    service.pod) == spec_.lenders.pods.end()) {
        root.Fail(absl::StrCat("services[", s, "].pod"),
                  absl::StrCat("'", service.pod, "' has no training node"));
      }
    }
    if (any_cn && spec_.own.nodes.empty()) {
      root.Fail("own_nodes",
                "is missing or empty: CNs never go to borrowed nodes");
    }
    for (size_t j = 0; j < spec_.jobs.size(); ++j) {
      const LenderJob& job = spec_.jobs[j];
      // StopCost() counts from a checkpoint at or before the hand-over.
      if (job.last_checkpoint > spec_.hand_over()) {
        root.Fail(
            absl::StrCat("jobs[", j, "].last_checkpoint_s"),
            absl::StrCat(job.last_checkpoint, " is after the hand-over, at ",
                         spec_.hand_over()));
      }
    }
  }

  LoanSpec& spec_;
  std::set<std::string> names_;
  std::set<std::string> services_;
  std::set<std::string> jobs_;
  std::map<std::string, int> lender_;
};

}  // namespace

absl::StatusOr<LoanSpec> ParseLoanSpec(absl::string_view text,
                                       absl::string_view path) {
  const absl::StatusOr<nlohmann::json> json = ParseJsonText(text);
  if (!json.ok()) return base::Annotate(json.status(), path);
  LoanSpec spec;
  absl::Status status;
  Fields root(*json, "", &status);
  if (status.ok()) Reader(&spec).Read(root);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", status.message()));
  }
  return spec;
}

}  // namespace refract::placement
