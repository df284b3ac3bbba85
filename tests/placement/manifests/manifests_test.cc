#include "placement/manifests/manifests.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Deployment Small() {
  Deployment deployment;
  deployment.name = "r";
  deployment.image = "refract:1";
  deployment.model_repository = "/models";
  Service cn;
  cn.name = "r-cn";
  cn.app = "r";
  cn.demand.cpu_milli = 1500;
  cn.demand.memory_mib = 1024;
  Service hn = cn;
  hn.name = "r-hn";
  hn.role = Role::kHn;
  hn.demand.gpus = 1;
  hn.demand.gpu_milli = 1000;
  deployment.services = {cn, hn};
  return deployment;
}

std::string TextOf(const Deployment& deployment,
                   const ManifestOptions& options = {}) {
  const auto files = WriteManifests(deployment, options);
  EXPECT_TRUE(files.ok()) << files.status();
  std::string text;
  for (const ManifestFile& file : *files) text += file.text;
  return text;
}

TEST(ManifestsTest, WritesAFilePerServiceGpuNodesFirst) {
  const auto files = *WriteManifests(Small(), {});
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "10-r-hn.yaml");
  EXPECT_EQ(files[1].name, "20-r-cn.yaml");
  EXPECT_THAT(files[0].text, HasSubstr("kind: StatefulSet\n"));
  EXPECT_THAT(files[0].text, HasSubstr("clusterIP: None\n"));
  EXPECT_THAT(files[1].text, HasSubstr("kind: Deployment\n"));
  EXPECT_THAT(files[1].text,
              HasSubstr("\"--gpu-nodes=srv:_refract._tcp.r-hn.default.svc\""));
  EXPECT_THAT(files[1].text, HasSubstr("cpu: \"1500m\"\n"));
}

TEST(ManifestsTest, JoinsGpuAndNicByTheirPcieRoot) {
  Deployment deployment = Small();
  EXPECT_THAT(TextOf(deployment), Not(HasSubstr("matchAttribute")));
  deployment.services[1].demand.nic_percent = 100;
  EXPECT_THAT(TextOf(deployment),
              HasSubstr("constraints:\n"
                        "      - requests:\n"
                        "        - gpu\n"
                        "        - nic\n"
                        "        matchAttribute: "
                        "resource.kubernetes.io/pcieRoot\n"));
  deployment.services[0].demand.nic_percent = 50;
  EXPECT_THAT(TextOf(deployment),
              HasSubstr("- requests:\n"
                        "        - nic\n"
                        "        matchAttribute: "
                        "resource.kubernetes.io/numaNode\n"));
  ManifestOptions options;
  options.cpu_class = "dra.cpu";
  EXPECT_THAT(TextOf(deployment, options),
              HasSubstr("- requests:\n"
                        "        - nic\n"
                        "        - cpu\n"
                        "        matchAttribute: "
                        "resource.kubernetes.io/numaNode\n"));
}

TEST(ManifestsTest, AnAutoscalerOwnsTheCount) {
  Deployment deployment = Small();
  deployment.services[0].replicas = 3;
  deployment.services[0].least_replicas = 3;
  EXPECT_THAT(TextOf(deployment), HasSubstr("replicas: 3\n"));
  EXPECT_THAT(TextOf(deployment), Not(HasSubstr("HorizontalPodAutoscaler")));
  deployment.services[0].least_replicas = 2;
  deployment.services[0].requests_per_s = 812.5;
  const std::string text = TextOf(deployment);
  EXPECT_THAT(text, HasSubstr("minReplicas: 2\n  maxReplicas: 3\n"));
  EXPECT_THAT(text, HasSubstr("averageValue: \"812500m\"\n"));
  EXPECT_THAT(text, Not(HasSubstr("replicas: 3\n  selector")));
  // The target is at most 0.8 of the limit, so that scaling begins in time.
  deployment.services[0].most_requests_per_s = 1000;
  EXPECT_THAT(TextOf(deployment), HasSubstr("averageValue: \"800000m\"\n"));
}

TEST(ManifestsTest, KnowsTheLabelsOfTopographInBothGenerations) {
  EXPECT_THAT(
      *TierKeysOf("topograph"),
      ElementsAre("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1",
                  "topology.kubernetes.io/zone"));
  EXPECT_THAT(*TierKeysOf("topograph-legacy"),
              ElementsAre("network.topology.nvidia.com/leaf",
                          "network.topology.nvidia.com/spine",
                          "topology.kubernetes.io/zone"));
  EXPECT_FALSE(TierKeysOf("other").has_value());
}

TEST(ManifestsTest, SaysWhatItCannotWrite) {
  const auto refusal = [](const Deployment& deployment, Flavour flavour) {
    ManifestOptions options;
    options.flavour = flavour;
    const absl::Status status = WriteManifests(deployment, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  Deployment deployment = Small();
  deployment.services[1].demand.gpu_milli = 500;
  EXPECT_THAT(refusal(deployment, Flavour::kPlain),
              HasSubstr("service 'r-hn': demand.gpu_milli: 500 of a GPU "
                        "works only with flavour kai"));
  ManifestOptions kai;
  kai.flavour = Flavour::kKai;
  EXPECT_THAT(TextOf(deployment, kai), HasSubstr("gpu-fraction: \"0.500\"\n"));

  deployment = Small();
  deployment.image = "";
  EXPECT_THAT(refusal(deployment, Flavour::kPlain), HasSubstr("image"));
  deployment = Small();
  deployment.model_repository = "models";
  EXPECT_THAT(refusal(deployment, Flavour::kPlain),
              HasSubstr("'models' is no absolute path"));
  deployment = Small();
  deployment.services[1].gpu_model = "A100')||('";
  EXPECT_THAT(refusal(deployment, Flavour::kPlain),
              HasSubstr("is no product name"));
  deployment = Small();
  deployment.services[0].name = "R_CN";
  EXPECT_THAT(refusal(deployment, Flavour::kPlain), HasSubstr("R_CN"));
  deployment = Small();
  deployment.services[1].role = Role::kWhole;
  EXPECT_THAT(refusal(deployment, Flavour::kPlain),
              HasSubstr("whole models on GPUs have no daemon"));
}

TEST(ManifestsTest, RefusesNamesThatKubernetesRefuses) {
  const auto refusal = [](std::string ManifestOptions::*option,
                          const std::string& name) {
    ManifestOptions options;
    options.*option = name;
    return std::string(WriteManifests(Small(), options).status().message());
  };
  using Options = ManifestOptions;
  EXPECT_EQ(refusal(&Options::name_space, "Bad Name"),
            "namespace: 'Bad Name' is no DNS label (a-z, 0-9, '-', 63 at the "
            "most)");
  EXPECT_THAT(refusal(&Options::monitoring_namespace, "a.b"),
              HasSubstr("monitoring-namespace: 'a.b'"));
  EXPECT_THAT(refusal(&Options::gpu_class, ""), HasSubstr("gpu-class: ''"));
  EXPECT_THAT(refusal(&Options::queue, "a..b"), HasSubstr("queue: 'a..b'"));
  EXPECT_THAT(refusal(&Options::node_tls_secret, "Tls"),
              HasSubstr("node-tls-secret: 'Tls'"));
  EXPECT_EQ(refusal(&Options::node_tls_secret, "node.tls-1"), "");
  EXPECT_EQ(refusal(&Options::cpu_class, ""), "");
}

TEST(ManifestsTest, FlavoursHaveNames) {
  for (const Flavour flavour :
       {Flavour::kPlain, Flavour::kKueue, Flavour::kKai, Flavour::kGrove}) {
    EXPECT_EQ(FlavourFromName(Name(flavour)), flavour);
  }
  EXPECT_FALSE(FlavourFromName("helm").has_value());
}

}  // namespace
}  // namespace refract::placement
