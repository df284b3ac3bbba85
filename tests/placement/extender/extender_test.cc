#include "placement/extender/extender.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::placement {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Requests in the form in which Go's encoding/json writes them.
std::string Recorded(const std::string& name) {
  const char* source = std::getenv("REFRACT_SOURCE_DIR");
  const std::string path = std::string(source == nullptr ? "." : source) +
                           "/tests/placement/extender/recorded/" + name;
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

class ExtenderTest : public testing::Test {
 protected:
  Extender Make() {
    Extender::Cluster cluster;
    cluster.nodes = [this]() -> absl::StatusOr<std::vector<NodeObject>> {
      ++reads_;
      if (!broken_.ok()) return broken_;
      return NodesFromText(Recorded("nodes.json"))->nodes;
    };
    cluster.pods = [] { return PodsFromText(Recorded("pods.json"))->pods; };
    cluster.bind = [this](const std::string& name_space, const std::string& pod,
                          const std::string& uid, const std::string& node) {
      binds_.push_back(name_space + "/" + pod + " " + uid + " " + node);
      return bind_status_;
    };
    const Extender::Options options{.placer = {.policy = Policy::kCombined,
                                               .keep_pod = true,
                                               .pack_leaves = true,
                                               .leaf_slack = 0.02}};
    return Extender(std::move(cluster), options, clock_);
  }

  base::ManualClock clock_;
  int reads_ = 0;
  absl::Status broken_;
  absl::Status bind_status_;
  std::vector<std::string> binds_;
};

// gpu-a has 1 free GPU, gpu-b 8 (its pod has ended), gpu-c 6; gpu-d is in
// another fabric pod than the app.
TEST_F(ExtenderTest, FiltersByNames) {
  Extender extender = Make();
  const auto answer = extender.Filter(Recorded("filter_names.json"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(json::parse(*answer),
            json::parse(R"({"NodeNames": ["gpu-a", "gpu-b", "gpu-c"],
                            "FailedNodes": {"gpu-d": "refract: pod",
                                            "cpu-a": "refract: GPU"},
                            "Error": ""})"));
}

TEST_F(ExtenderTest, FiltersWholeNodes) {
  Extender extender = Make();
  const std::string request = Recorded("filter_nodes.json");
  const auto answer = extender.Filter(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const json result = json::parse(*answer);
  // Every node passes, as it was sent.
  EXPECT_EQ(result["Nodes"]["items"], json::parse(request)["Nodes"]["items"]);
  EXPECT_EQ(result["FailedNodes"], json::object());
  EXPECT_FALSE(result.contains("NodeNames"));
}

// By hand: of six shapes with popularities 1/6 (7 GPUs, 2 GPUs, twice 1 GPU,
// twice none) the pod's GPU changes the fragments of a, b and c by −4/6, −2/6
// and −3/6 GPUs: buckets 66, 58 and 62.
TEST_F(ExtenderTest, PrefersTheNodeThatFragmentsLeast) {
  Extender extender = Make();
  const auto answer = extender.Prioritize(Recorded("prioritize_names.json"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(json::parse(*answer),
            json::parse(R"([{"Host": "gpu-a", "Score": 10},
                            {"Host": "gpu-b", "Score": 1},
                            {"Host": "gpu-c", "Score": 5}])"));
}

TEST_F(ExtenderTest, CountsWhatItHasBoundUntilAListShowsIt) {
  Extender extender = Make();
  ASSERT_TRUE(extender.Filter(Recorded("filter_names.json")).ok());
  EXPECT_EQ(*extender.Bind(Recorded("bind.json")), R"({"Error":""})");
  EXPECT_EQ(binds_,
            (std::vector<std::string>{"ranking/ranker-hn-0 u-hn-0 gpu-a"}));
  json next = json::parse(Recorded("filter_names.json"));
  next["Pod"]["metadata"]["uid"] = "u-hn-1";
  const auto failed = [&] {
    return json::parse(*extender.Filter(next.dump()))["FailedNodes"];
  };
  EXPECT_EQ(failed()["gpu-a"], "refract: GPU");
  // The list of pods, which lacks it, is read again.
  const int reads = reads_;
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(failed()["gpu-a"], "refract: GPU");
  EXPECT_EQ(reads_, reads + 1);
  // A pod that is listed no more has been deleted.
  clock_.Advance(absl::Seconds(60));
  EXPECT_FALSE(failed().contains("gpu-a"));
}

TEST_F(ExtenderTest, JudgesOtherNodesBesideAWrongOne) {
  json nodes = json::parse(Recorded("nodes.json"));
  json pods = json::parse(Recorded("pods.json"));
  json request = json::parse(Recorded("filter_names.json"));
  const auto failed = [&] {
    const auto node_page = NodesFromText(nodes.dump());
    const auto pod_page = PodsFromText(pods.dump());
    EXPECT_TRUE(node_page.ok()) << node_page.status();
    EXPECT_TRUE(pod_page.ok()) << pod_page.status();
    Extender extender({.nodes = [&] { return node_page->nodes; },
                       .pods = [&] { return pod_page->pods; }},
                      {}, clock_);
    const auto answer = extender.Filter(request.dump());
    EXPECT_TRUE(answer.ok()) << answer.status();
    const json read = json::parse(*answer);
    EXPECT_EQ(read["Error"], "");
    return read["FailedNodes"];
  };
  const json before = failed();
  ASSERT_FALSE(before.contains("gpu-b"));
  json& node = nodes["items"][1];
  ASSERT_EQ(node["metadata"]["name"], "gpu-b");
  const json good = node;
  json& memory = node["status"]["allocatable"]["memory"];
  for (const auto& [amount, said] :
       {std::pair("1e400", "memory: '\"1e400\"' is no quantity"),
        std::pair("999999999999Ti", "memory: more than a machine has")}) {
    memory = amount;
    json after = failed();
    EXPECT_EQ(after["gpu-b"],
              std::string("refract: node gpu-b: allocatable: ") + said);
    after.erase("gpu-b");
    EXPECT_EQ(after, before);
    // The same in kube-scheduler's own list of nodes.
    request["Nodes"] = nodes;
    request.erase("NodeNames");
    EXPECT_THAT(failed()["gpu-b"].get<std::string>(), HasSubstr(said));
    request = json::parse(Recorded("filter_names.json"));
  }
  node = good;
  // A pod that waits keeps no place, one that runs leaves an unknown rest.
  json pod = json::parse(R"({"metadata": {"name": "p", "uid": "p"}, "spec":
      {"containers": [{"resources": {"requests": {"cpu": "1e12"}}}]}})");
  pods["items"].push_back(pod);
  EXPECT_EQ(failed(), before);
  pods["items"].back()["spec"]["nodeName"] = "gpu-b";
  EXPECT_THAT(failed()["gpu-b"].get<std::string>(), HasSubstr("pod p: cpu"));
  pods["items"].back()["status"]["phase"] = "Failed";
  EXPECT_EQ(failed(), before);
}

TEST_F(ExtenderTest, SaysWhatWentWrong) {
  Extender extender = Make();
  bind_status_ = absl::UnavailableError("api:8001: refused");
  EXPECT_EQ(json::parse(*extender.Bind(Recorded("bind.json")))["Error"],
            "api:8001: refused");
  broken_ = absl::UnavailableError("api:8001: no answer");
  EXPECT_EQ(
      json::parse(*extender.Filter(Recorded("filter_names.json")))["Error"],
      "api:8001: no answer");
  // This answer has no field for it.
  EXPECT_EQ(extender.Prioritize(Recorded("prioritize_names.json")).status(),
            broken_);
}

TEST_F(ExtenderTest, RefusesWhatIsNoRequest) {
  Extender extender = Make();
  const auto refused = [](const absl::StatusOr<std::string>& answer) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument)
        << answer.status();
    return std::string(answer.status().message());
  };
  for (const char* request : {"", "[]", "{", "null", "\xff"}) {
    EXPECT_EQ(refused(extender.Filter(request)),
              "the request is no JSON object");
    EXPECT_EQ(refused(extender.Bind(request)), "the request is no JSON object");
  }
  EXPECT_EQ(refused(extender.Filter("{}")), "Pod: is no object");
  const std::string pod = R"("Pod": {"metadata": {"name": "p"}})";
  EXPECT_THAT(refused(extender.Filter("{" + pod + "}")),
              HasSubstr("NodeNames"));
  EXPECT_EQ(refused(extender.Filter("{" + pod + R"(, "NodeNames": [1]})")),
            "NodeNames: is no list of texts");
  EXPECT_EQ(refused(extender.Filter("{" + pod + R"(, "Nodes": {"items": 1}})")),
            "Nodes: items: is no list");
  const std::string asks = R"({"Pod": {"metadata": {"name": "p"}, "spec":
      {"containers": [{"resources": {"requests": {)";
  const std::string end = R"(}}}]}}, "NodeNames": []})";
  EXPECT_THAT(refused(extender.Filter(asks + R"("cpu": "-1")" + end)),
              HasSubstr("spec.containers[0].resources.requests: cpu"));
  EXPECT_THAT(
      refused(extender.Filter(asks + R"("nvidia.com/mig-9g.1gb": 1)" + end)),
      HasSubstr("is no MIG profile"));
  EXPECT_THAT(
      refused(extender.Filter(asks + R"("nvidia.com/mig-1g.5gb": 2)" + end)),
      HasSubstr("more than one slice"));
  EXPECT_THAT(refused(extender.Filter(asks + R"("cpu": "1e12")" + end)),
              HasSubstr("cpu"));
  // Paths of the API server take names alone.
  EXPECT_THAT(refused(extender.Bind(
                  R"({"PodName": "../x", "PodNamespace": "d", "Node": "n"})")),
              HasSubstr("PodName: '../x'"));
  EXPECT_TRUE(binds_.empty());
}

TEST(Judge, GoesNearTheAppWhereItFitsAsWell) {
  std::vector<NodeObject> nodes(3);
  for (int i = 0; i < 3; ++i) {
    nodes[i].node.name = "n" + std::to_string(i);
    nodes[i].node.cpu_milli = 64'000;
    nodes[i].leaf = i == 0 ? "a" : "b";
  }
  PodObject running{.name = "r", .uid = "r", .node = "n1", .app = "d/app"};
  running.demand.cpu_milli = 1000;
  // n1 is fuller, which is better, but for other pods it is full.
  PodObject full{.name = "f", .uid = "f", .node = "n1"};
  full.demand.cpu_milli = 60'000;
  PodObject pod{.name = "p", .uid = "p", .app = "d/app"};
  pod.demand.cpu_milli = 4000;
  const std::vector<std::string> names = {"n0", "n1", "n2", "other"};
  const PlacerOptions options{
      .policy = Policy::kCombined, .pack_leaves = true, .leaf_slack = 0.02};
  const auto verdicts = Judge(nodes, {running, full}, pod, names, options);
  ASSERT_TRUE(verdicts.ok()) << verdicts.status();
  EXPECT_EQ((*verdicts)[0].score, 9);
  EXPECT_EQ((*verdicts)[1].obstacle, "CPU");
  EXPECT_EQ((*verdicts)[2].score, 10);  // under leaf b, as the app
  EXPECT_EQ((*verdicts)[3].obstacle, "unknown node");
  // The same pod, scheduled again, does not stand in its own way.
  full.uid = "p";
  EXPECT_EQ((*Judge(nodes, {running, full}, pod, names, options))[1].obstacle,
            "");
  nodes[2].node.name = "n0";
  EXPECT_THAT(
      std::string(Judge(nodes, {}, pod, names, options).status().message()),
      HasSubstr("n0"));
}

TEST(Judge, LeavesSharedGpusToTheScheduler) {
  json node = json::parse(R"({"metadata": {"name": "n", "labels":
      {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "Tesla-T4"}},
      "status": {"allocatable": {"cpu": "64", "memory": "256Gi",
                                 "nvidia.com/gpu": "80"}}})");
  PodObject pod{.name = "p"};
  pod.demand = {.cpu_milli = 1000, .gpus = 20, .gpu_milli = kWholeGpu};
  const std::vector<std::string> names = {"n"};
  const auto judge = [&] {
    return Judge({*NodeFromJson(node)}, {}, pod, names, {})->front();
  };
  EXPECT_EQ(judge().obstacle, "");
  EXPECT_EQ(judge().score, 0);
  pod.demand.cpu_milli = 65'000;
  EXPECT_EQ(judge().obstacle, "CPU");
  pod.demand.cpu_milli = 1000;
  node["status"]["allocatable"]["nvidia.com/gpu"] = "8";
  EXPECT_EQ(judge().obstacle, "GPU");
}

// Sets of models have 64 places, clusters any number of products.
TEST(Judge, TakesAnyNumberOfGpuProducts) {
  std::vector<NodeObject> nodes;
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) {
    names.push_back("n" + std::to_string(i));
    nodes.push_back(*NodeFromJson(
        {{"metadata",
          {{"name", names.back()},
           {"labels",
            {{"nvidia.com/gpu.count", "8"},
             {"nvidia.com/gpu.product", "P" + std::to_string(i)}}}}},
         {"status", {{"allocatable", {{"cpu", "64"}, {"memory", "9Gi"}}}}}}));
  }
  PodObject pod{.name = "p"};
  pod.demand = {.cpu_milli = 1000, .gpus = 1, .gpu_milli = kWholeGpu};
  const auto verdicts = Judge(nodes, {}, pod, names, {});
  ASSERT_TRUE(verdicts.ok()) << verdicts.status();
  for (const NodeVerdict& verdict : *verdicts) {
    EXPECT_EQ(verdict.obstacle, "") << verdict.node;
  }
}

TEST(ParseQuantity, ReadsTheResourceModel) {
  EXPECT_EQ(ParseQuantity("0"), 0);
  EXPECT_EQ(ParseQuantity("1500m"), 1.5);
  EXPECT_EQ(ParseQuantity("0.5"), 0.5);
  EXPECT_EQ(ParseQuantity("4Gi"), 4 * 0x1p30);
  EXPECT_EQ(ParseQuantity("2e3"), 2000);
  EXPECT_EQ(ParseQuantity("3E"), 3e18);
  EXPECT_EQ(ParseQuantity("100M"), 1e8);
  for (const char* bad : {"", "m", "Gi", "-1", "nan", "inf", "1 Gi", "4GiB",
                          "0x10", "1e999", "four"}) {
    EXPECT_EQ(ParseQuantity(bad), std::nullopt) << bad;
  }
}

TEST(PodFromJson, AddsUpContainersAndReadsClaims) {
  json pod = json::parse(R"({
    "metadata": {"name": "p", "namespace": "d", "uid": "u",
                 "labels": {"app.kubernetes.io/part-of": "ranker",
                            "app.kubernetes.io/component": "gpu-node"},
                 "annotations": {"refract-gpu": "2g.20gb"}},
    "spec": {"nodeName": "n", "overhead": {"cpu": "250m"},
      "containers": [
        {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
        {"resources": {"requests": {"cpu": "500m", "memory": "1.5Mi"}}}],
      "initContainers": [
        {"resources": {"requests": {"cpu": "4", "memory": "1Mi"}}},
        {"restartPolicy": "Always",
         "resources": {"requests": {"cpu": "1"}}}]},
    "status": {"phase": "Running"}})");
  const auto read = PodFromJson(pod);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->app, "d/ranker");
  EXPECT_EQ(read->role, Role::kHn);
  EXPECT_EQ(read->node, "n");
  EXPECT_FALSE(read->ended);
  // max(2 + 0.5 + 1, 4) + 0.25 cores.
  EXPECT_EQ(read->demand.cpu_milli, 4250);
  EXPECT_EQ(read->demand.memory_mib, 1026);
  EXPECT_EQ(read->demand.mig, MigProfile::k2g);
  EXPECT_EQ(read->demand.gpu_milli, 250);
  pod["metadata"]["annotations"]["refract-gpu"] = "2";
  EXPECT_EQ(PodFromJson(pod)->demand.gpus, 2);
  EXPECT_EQ(PodFromJson(pod)->demand.gpu_milli, kWholeGpu);
  pod["metadata"]["annotations"]["refract-gpu"] = "half";
  EXPECT_THAT(std::string(PodFromJson(pod).status().message()),
              HasSubstr("metadata.annotations.refract-gpu"));
  // Resources count before the annotation.
  pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "4";
  EXPECT_EQ(PodFromJson(pod)->demand.gpus, 4);
}

// Hand-computed by the rules of Kubernetes' sidecars (KEP-753) and of requests
// of whole pods (KEP-2837).
TEST(PodFromJson, CountsInitContainersInTheirOrder) {
  json pod = json::parse(R"({
    "metadata": {"name": "p"},
    "spec": {
      "containers": [{"resources": {"requests": {"cpu": "1"}}}],
      "initContainers": [
        {"resources": {"requests": {"cpu": "5"}}},
        {"restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
        {"resources": {"requests": {"cpu": "4"}}},
        {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]}
    })");
  // max(1 + 2 + 1, 5, 2 + 4).
  EXPECT_EQ(PodFromJson(pod)->demand.cpu_milli, 6000);
  pod["spec"]["resources"]["requests"] = {{"cpu", "3"}};
  EXPECT_EQ(PodFromJson(pod)->demand.cpu_milli, 3000);
  pod["spec"]["resources"]["requests"] = {{"cpu", "three"}};
  EXPECT_THAT(std::string(PodFromJson(pod).status().message()),
              HasSubstr("spec.resources.requests: cpu"));
}

TEST(NodeFromJson, ReadsBothGenerationsOfLabels) {
  json node = json::parse(R"({"metadata": {"name": "n", "labels": {
      "fabric.topograph.run/tier-0": "l", "fabric.topograph.run/tier-1": "p",
      "nvidia.com/gpu.count": "8",
      "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
      "status": {"allocatable": {"cpu": "127500m", "memory": "1040Gi"}}})");
  const auto read = NodeFromJson(node);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->leaf, "l");
  EXPECT_EQ(read->pod, "p");
  EXPECT_EQ(read->node.cpu_milli, 127'500);
  EXPECT_EQ(read->node.memory_mib, 1040 * 1024);
  // GPUs of a DRA driver are counted by the label alone.
  EXPECT_EQ(read->node.gpus, 8);
  EXPECT_TRUE(read->node.mig_capable);
  node["metadata"]["labels"]["network.topology.nvidia.com/leaf"] = "other";
  EXPECT_THAT(std::string(NodeFromJson(node).status().message()),
              HasSubstr("contradictory labels"));
}

}  // namespace
}  // namespace refract::placement
