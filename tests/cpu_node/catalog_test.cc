#include "cpu_node/catalog.h"

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cpu_node/engine.h"
#include "cpu_node/readiness.h"
#include "gmock/gmock.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tests/cpu_node/stored_model.h"
#include "transport/session/session_socket.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_models::StoredModels;

TEST(StoredWeightsTest, BothNodesRefuseDenseWeightsThatWereReplacedInPlace) {
  StoredModels cn;
  StoredModels hn;
  cn.Add("ctr");
  hn.Add("ctr");
  const auto catalog = Catalog::Load(cn.repository(), {});
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const auto served = catalog->Find("ctr", "");
  ASSERT_TRUE(served.ok()) << served.status();
  {
    const auto fine = gpu_node::DeviceModels::Load(hn.repository());
    ASSERT_TRUE(fine.ok()) << fine.status();
    ASSERT_EQ(fine->size(), 1);
    EXPECT_TRUE((*fine)[0].CheckOffer((*served)->offer()).ok());
  }

  // The weights of the linear layer: all that the GPU node computes with.
  hn.Damage("ctr/1/tables/dense.weights");
  const auto models = gpu_node::DeviceModels::Load(hn.repository());
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_EQ(models->size(), 0);
  const absl::Status refused = models->WhyAbsent((*served)->offer());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(hn.File("ctr/1/tables/dense.weights")),
                    HasSubstr("differs")));

  cn.Damage("ctr/1/tables/dense.weights");
  const auto without = Catalog::Load(cn.repository(), {});
  ASSERT_TRUE(without.ok()) << without.status();
  const absl::Status absent = without->Find("ctr", "").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr(cn.File("ctr/1/tables/dense.weights")),
                    HasSubstr("differs")));
}

std::vector<Catalog::Entry> Entries(
    const std::vector<testing_models::SmallModelOptions>& models) {
  std::vector<Catalog::Entry> entries;
  for (const auto& options : models) {
    auto served =
        ServedModel::Create(testing_models::MakeSmallModel(options), {});
    EXPECT_TRUE(served.ok()) << served.status();
    entries.push_back(
        {options.name, options.version, *std::move(served), absl::OkStatus()});
  }
  return entries;
}

// The version that requests without a version go to; 0: none.
int64_t Default(const Catalog& catalog) {
  const auto model = catalog.Find("m", "");
  return model.ok() ? (*model)->version() : 0;
}

TEST(DefaultVersionTest, IsTheNewestThatIsReady) {
  Catalog catalog(Entries({{.name = "m", .version = 1},
                           {.name = "m", .version = 2},
                           {.name = "m", .version = 10}}));
  std::set<int64_t> ready;
  const auto choose = [&] {
    catalog.ChooseDefaults([&](const ServedModel& model) {
      return ready.contains(model.version());
    });
    return Default(catalog);
  };
  EXPECT_EQ(Default(catalog), 10);
  ready = {1, 2};
  EXPECT_EQ(choose(), 2);
  ready = {1};
  EXPECT_EQ(choose(), 1);
  ready = {1, 10};
  EXPECT_EQ(choose(), 10);
  // The newest says why, when none is ready.
  ready = {};
  EXPECT_EQ(choose(), 10);
  EXPECT_EQ((*catalog.Find("m", "2"))->version(), 2);
}

TEST(DefaultVersionTest, IsNoVersionThatHasStillToBePartitioned) {
  const auto always = [](const ServedModel&) { return true; };
  Catalog catalog(Entries({{.name = "m", .version = 1, .split = false},
                           {.name = "m", .version = 2},
                           {.name = "m", .version = 3, .split = false}}));
  EXPECT_EQ(Default(catalog), 2);
  catalog.ChooseDefaults(always);
  EXPECT_EQ(Default(catalog), 2);
  EXPECT_TRUE(catalog.Find("m", "3").ok());
  // A model that is served without plans.
  Catalog whole(Entries({{.name = "m", .version = 1, .split = false},
                         {.name = "m", .version = 3, .split = false}}));
  whole.ChooseDefaults(always);
  EXPECT_EQ(Default(whole), 3);
}

TEST(DefaultVersionTest, IsNoVersionThatFailedToLoad) {
  std::vector<Catalog::Entry> entries = Entries({{.name = "m", .version = 1}});
  entries.push_back({"m", 2, nullptr, absl::InternalError("a bad file")});
  entries.push_back({"n", 1, nullptr, absl::InternalError("another")});
  const Catalog catalog(std::move(entries));
  EXPECT_EQ(Default(catalog), 1);
  EXPECT_THAT(catalog.LoadedModels(), ElementsAre("m"));
  for (const auto& status :
       {catalog.Find("m", "2").status(), catalog.Find("n", "").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  for (const char* version : {"3", "0", "-1", "x"}) {
    EXPECT_EQ(catalog.Find("m", version).status().code(),
              absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(catalog.Find("o", "").status().code(), absl::StatusCode::kNotFound);
}

TEST(CatalogTest, TheOldestVersionsAreLeftOutWhereTooManyAreSplit) {
  constexpr int kMost = transport::kMaxModelOffers;
  std::vector<testing_models::SmallModelOptions> models;
  for (int version = 1; version <= kMost + 3; ++version) {
    models.push_back({.name = "m", .version = version});
  }
  models.push_back({.name = "other", .version = 1});
  models.push_back({.name = "whole", .version = 1, .split = false});
  EngineOptions options;
  options.nodes.addresses = {"127.0.0.1:1"};
  // 257 offers were an error of the node pool, and the CN did not start.
  auto engine = Engine::Create(Catalog(Entries(models)), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::shared_ptr<const Catalog> pinned = (*engine)->catalog();
  const Catalog& catalog = *pinned;
  for (const char* version : {"1", "2", "3", "4"}) {
    const absl::Status status = catalog.Find("m", version).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << version;
    EXPECT_THAT(std::string(status.message()), HasSubstr("version_policy"));
  }
  EXPECT_TRUE(catalog.Find("m", "5").ok());
  EXPECT_EQ((*catalog.Find("m", ""))->version(), kMost + 3);
  EXPECT_TRUE(catalog.Find("other", "1").ok());
  EXPECT_TRUE(catalog.Find("whole", "1").ok());
  (*engine)->Stop();
}

TEST(VersionPolicyTest, BothNodesLoadWhatConfigPbtxtSays) {
  StoredModels stored;
  for (int version = 1; version <= 4; ++version) stored.Add("m");
  const auto loaded = [&](const std::string& policy) {
    std::ofstream(stored.File("m/config.pbtxt")) << "name: \"m\"\n"
                                                 << policy << "\n";
    const auto catalog = Catalog::Load(stored.repository(), {});
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    std::vector<int64_t> versions;
    for (const Catalog::Entry& entry : catalog->entries()) {
      if (entry.model != nullptr) versions.push_back(entry.version);
    }
    const auto devices = gpu_node::DeviceModels::Load(stored.repository());
    EXPECT_TRUE(devices.ok()) << devices.status();
    std::vector<int64_t> on_hn;
    for (size_t i = 0; i < devices->size(); ++i) {
      on_hn.push_back((*devices)[i].version());
    }
    EXPECT_EQ(versions, on_hn);
    return versions;
  };
  EXPECT_THAT(loaded(""), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(loaded("version_policy { all {} }"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(loaded("version_policy { latest { num_versions: 2 } }"),
              ElementsAre(3, 4));
  EXPECT_THAT(loaded("version_policy { latest {} }"), ElementsAre(4));
  EXPECT_THAT(loaded("version_policy { latest { num_versions: 9 } }"),
              ElementsAre(1, 2, 3, 4));
  // Version 9 is absent: an error of its own, the others are served.
  EXPECT_THAT(loaded("version_policy { specific { versions: [3, 1, 9, 1] } }"),
              ElementsAre(1, 3));
  EXPECT_THAT(loaded("version_policy { specific { versions: [0] } }"),
              ElementsAre());
}

TEST(ReadinessRuleTest, AllListedOrAny) {
  std::vector<Catalog::Entry> entries = Entries({{.name = "a"},
                                                 {.name = "b", .version = 1},
                                                 {.name = "b", .version = 2}});
  entries.push_back({"bad", 1, nullptr, absl::InternalError("a bad file")});
  Catalog catalog(std::move(entries));
  using When = ReadinessRule::When;
  const auto check = [&](const std::set<std::string>& ready) {
    const auto is_ready = [&](const ServedModel& model) {
      return ready.contains(absl::StrCat(model.name(), model.version()));
    };
    catalog.ChooseDefaults(is_ready);
    const auto by = [&](const ReadinessRule& rule) {
      return NodeReady(rule, catalog, is_ready);
    };
    return std::vector<bool>{by({When::kAll}), by({When::kAny}),
                             by({When::kListed, {"b"}}),
                             by({When::kListed, {"a", "bad"}})};
  };
  EXPECT_THAT(check({}), ElementsAre(false, false, false, false));
  EXPECT_THAT(check({"a1"}), ElementsAre(false, true, false, false));
  // An older version of b serves in place of the newest.
  EXPECT_THAT(check({"b1"}), ElementsAre(false, true, true, false));
  EXPECT_THAT(check({"a1", "b1"}), ElementsAre(true, true, true, false));
  EXPECT_THAT(check({"a1", "b2"}), ElementsAre(true, true, true, false));

  const auto any = [](const ServedModel&) { return true; };
  EXPECT_TRUE(NodeReady({.when = When::kAll}, catalog, any));
  EXPECT_FALSE(NodeReady({.when = When::kAll, .strict = true}, catalog, any));
  EXPECT_FALSE(NodeReady({.when = When::kAny, .strict = true}, catalog, any));

  EXPECT_TRUE(CheckReadinessRule({When::kListed, {"a", "bad"}}, catalog).ok());
  for (const ReadinessRule& rule : {ReadinessRule{When::kListed, {}},
                                    ReadinessRule{When::kListed, {"c"}}}) {
    EXPECT_EQ(CheckReadinessRule(rule, catalog).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Over the transport: the GPU node has version 1 alone.
TEST(DefaultVersionTest, FollowsWhatGpuNodesHave) {
  const auto v1 = testing_models::MakeSmallModel({.name = "m"});
  const auto v2 =
      testing_models::MakeSmallModel({.name = "m", .version = 2, .variant = 1});
  TestGpuNode old({v1});
  EngineOptions options;
  options.nodes.addresses = {old.address()};
  auto engine = Engine::Create(MakeCatalog({v1, v2}), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  // Version 2 was never ready: no GPU node had it.
  ASSERT_TRUE(ReadinessWatch(**engine).Await(true));
  const Answer answer = Infer(**engine, MakeRequest("m", 3));
  ExpectRight(answer, 3);
  EXPECT_EQ(answer.version, 1);
  InferRequest newest = MakeRequest("m", 3);
  newest.model_version = "2";
  EXPECT_EQ(Infer(**engine, std::move(newest)).status.code(),
            absl::StatusCode::kUnavailable);
  (*engine)->Stop();
}

// Requests without a version, by the version that each goes to.
std::map<int64_t, int> Answering(const Catalog& catalog, int requests) {
  std::map<int64_t, int> count;
  for (int i = 0; i < requests; ++i) {
    const auto model = catalog.Find("m", "");
    ++count[model.ok() ? (*model)->version() : 0];
  }
  return count;
}

TEST(TrafficTest, VersionsGetTheirSharesInEveryRunOfRequests) {
  std::vector<Catalog::Entry> entries = Entries({{.name = "m", .version = 1},
                                                 {.name = "m", .version = 2},
                                                 {.name = "m", .version = 3}});
  entries[0].share = 90;
  entries[1].share = 10;  // and none for version 3
  const Catalog catalog(std::move(entries));
  catalog.ChooseDefaults([](const ServedModel&) { return true; });
  for (const int requests : {10, 50, 100, 1000}) {
    std::map<int64_t, int> count = Answering(catalog, requests);
    EXPECT_NEAR(count[2], 0.1 * requests, 2) << requests;
    EXPECT_EQ(count[1] + count[2], requests);
  }
  // A version that is asked for by its number has no share.
  EXPECT_EQ((*catalog.Find("m", "3"))->version(), 3);
  int64_t newest = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(catalog.Find("m", "", &newest).ok());
  }
  EXPECT_EQ(newest, 0);
}

TEST(TrafficTest, AVersionThatIsNotReadyLeavesItsShareToTheOthers) {
  std::vector<Catalog::Entry> entries =
      Entries({{.name = "m", .version = 1}, {.name = "m", .version = 2}});
  entries[0].share = 1;
  entries[1].share = 99;
  const Catalog catalog(std::move(entries));
  catalog.ChooseDefaults(
      [](const ServedModel& model) { return model.version() == 1; });
  EXPECT_EQ(Answering(catalog, 100), (std::map<int64_t, int>{{1, 100}}));
  int64_t newest = 0;
  ASSERT_TRUE(catalog.Find("m", "", &newest).ok());
  EXPECT_EQ(newest, 2);
  // Where none is ready, the newest of them is the reason.
  catalog.ChooseDefaults([](const ServedModel&) { return false; });
  EXPECT_EQ(Answering(catalog, 10), (std::map<int64_t, int>{{2, 10}}));
}

TEST(DefaultVersionTest, SaysWhichVersionShouldHaveAnswered) {
  std::vector<Catalog::Entry> entries =
      Entries({{.name = "m", .version = 1}, {.name = "m", .version = 2}});
  // Could not be loaded; and kept in memory, which nobody misses.
  entries.push_back({"m", 3, nullptr, absl::InternalError("broken")});
  entries.push_back(
      {"m", 4, nullptr, absl::UnavailableError("kept"), 0, /*wanted=*/false});
  const Catalog catalog(std::move(entries));
  catalog.ChooseDefaults([](const ServedModel&) { return true; });
  int64_t newest = 0;
  EXPECT_EQ((*catalog.Find("m", "", &newest))->version(), 2);
  EXPECT_EQ(newest, 3);
  newest = 0;
  ASSERT_TRUE(catalog.Find("m", "1", &newest).ok());
  EXPECT_EQ(newest, 0);  // the client's choice
}

TEST(TrafficTest, ConfigPbtxtGivesShares) {
  StoredModels stored;
  stored.Add("m");
  stored.Add("m");
  std::ofstream(stored.File("m/config.pbtxt"), std::ios::app)
      << "parameters { key: 'traffic' value { string_value: '1=3,2=1,9=5' } }";
  const auto catalog = Catalog::Load(stored.repository(), {});
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  catalog->ChooseDefaults([](const ServedModel&) { return true; });
  std::map<int64_t, int> count = Answering(*catalog, 400);
  EXPECT_NEAR(count[2], 100, 2);
}

}  // namespace
}  // namespace refract::cpu_node
