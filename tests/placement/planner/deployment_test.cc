#include "placement/planner/deployment.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::placement {
namespace {

Deployment Good() {
  Deployment deployment;
  deployment.name = "demo";
  Service cn;
  cn.name = "ranker-cn";
  cn.app = "ranker";
  cn.replicas = 3;
  cn.demand.cpu_milli = 8000;
  Service hn = cn;
  hn.name = "ranker-hn";
  hn.role = Role::kHn;
  hn.demand.gpus = 1;
  hn.demand.gpu_milli = 1000;
  deployment.services = {cn, hn};
  return deployment;
}

TEST(Deployment, IsCheckedFieldByField) {
  EXPECT_TRUE(Check(Good()).ok()) << Check(Good());
  const auto refused = [](auto change) {
    Deployment deployment = Good();
    change(deployment);
    return std::string(Check(deployment).message());
  };
  using D = Deployment;
  using testing::HasSubstr;
  EXPECT_THAT(refused([](D& d) { d.services[0].name = "Ranker_CN"; }),
              HasSubstr("service 'Ranker_CN': name: is no DNS label"));
  // The name of a Service (RFC 1035), and of a StatefulSet's pods.
  EXPECT_THAT(refused([](D& d) { d.services[0].name = "9-cn"; }),
              HasSubstr("service '9-cn': name: must begin with a letter"));
  EXPECT_THAT(refused([](D& d) { d.services[0].name = std::string(53, 'x'); }),
              HasSubstr("52 characters at the most"));
  EXPECT_THAT(refused([](D& d) { d.services[1].name = "ranker-cn"; }),
              HasSubstr("name: occurs twice"));
  EXPECT_THAT(refused([](D& d) { d.services[0].replicas = 0; }),
              HasSubstr("replicas: 0"));
  EXPECT_THAT(refused([](D& d) { d.services[0].least_replicas = 4; }),
              HasSubstr("least_replicas: 4"));
  EXPECT_THAT(refused([](D& d) { d.services[1].role = Role::kCn; }),
              HasSubstr("gpus: 1, a CN has no GPU"));
  EXPECT_THAT(refused([](D& d) { d.hn_port = 70000; }),
              HasSubstr("port 70000"));
  EXPECT_THAT(refused([](D& d) { d.name = "-x"; }),
              HasSubstr("deployment '-x'"));
  EXPECT_THAT(refused([](D& d) { d.services.clear(); }),
              HasSubstr("services: there are none"));
  for (const char* key :
       {"", "a//b", "-leaf", "example.com/", "Example.com/leaf", "a b"}) {
    EXPECT_THAT(
        refused([&](D& d) {
          d.tier_keys = {"zone", key};
        }),
        HasSubstr(absl::StrCat("'", key, "' is no key of a node label")));
  }
  EXPECT_EQ(refused([](D& d) {
              d.tier_keys = {"zone", "example.com/Leaf_1.x"};
            }),
            "");
}

}  // namespace
}  // namespace refract::placement
