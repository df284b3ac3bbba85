#include "cpu_node/status.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "metrics/status_page.h"
#include "nlohmann/json.hpp"

namespace refract::cpu_node {
namespace {

using Json = nlohmann::ordered_json;

// OK, or why requests of the version are not answered.
absl::Status WhyNotReady(const Engine& engine, const Catalog::Entry& entry) {
  if (entry.model == nullptr) return entry.status;
  return engine.ModelReady(*entry.model);
}

Json LinkJson(
    const NodePool::Member& member,
    const std::vector<std::optional<transport::ModelOffer>>& offers) {
  const transport::ClientState& state = member.state;
  Json link = {{"address", member.address},
               {"connected", state.connected},
               {"path", state.connected ? state.path : "none"},
               {"leaving", member.leaving},
               {"in_flight", state.in_flight},
               {"requests_sent", state.messages_sent},
               {"losses", state.losses},
               {"models", Json::array()}};
  if (!state.connected && !state.last_error.ok()) {
    link["why"] = std::string(state.last_error.message());
  }
  for (size_t m = 0; m < offers.size() && m < state.models.size(); ++m) {
    if (!offers[m].has_value()) continue;
    const absl::Status& ready = state.models[m];
    Json model = {{"name", offers[m]->name},
                  {"version", offers[m]->version},
                  {"ready", state.connected && ready.ok()}};
    if (!ready.ok()) model["why"] = std::string(ready.message());
    link["models"].push_back(std::move(model));
  }
  return link;
}

}  // namespace

std::string StatusText(const Engine& engine, const base::ByteBudget& memory,
                       absl::Time started) {
  const bool ready = engine.Ready();
  Json status = {{"role", "cpu_node"},
                 {"version", REFRACT_VERSION},
                 {"state", ready ? "serving" : "not ready"},
                 {"ready", ready},
                 {"uptime_seconds",
                  absl::ToInt64Seconds(engine.clock().Now() - started)},
                 {"requests_in_flight", engine.in_flight()}};
  uint64_t succeeded = 0, failed = 0;
  Json models = Json::array();
  const std::shared_ptr<const Catalog> catalog = engine.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    // Versions that nobody asked to serve are no part of the status.
    if (!entry.wanted) continue;
    const absl::Status why = WhyNotReady(engine, entry);
    Json model = {{"name", entry.name},
                  {"version", entry.version},
                  {"ready", why.ok()}};
    if (!why.ok()) {
      model["why"] = std::string(why.message());
      if (!ready && !status.contains("why")) status["why"] = model["why"];
    }
    if (entry.model != nullptr) {
      const auto sums = entry.model->statistics().snapshot();
      model["split"] = entry.model->split();
      model["succeeded"] = sums.success.count;
      model["failed"] = sums.fail.count;
      succeeded += sums.success.count;
      failed += sums.fail.count;
    }
    models.push_back(std::move(model));
  }
  if (!ready && !status.contains("why")) {
    status["why"] = "the node is stopping, or has no model";
  }
  status["requests"] = {{"succeeded", succeeded}, {"failed", failed}};
  status["request_memory_bytes"] = memory.held();
  status["request_memory_limit_bytes"] = memory.bytes();
  status["models"] = std::move(models);
  status["gpu_nodes"] = Json::array();
  const auto offers = engine.nodes().offers();
  for (const NodePool::Member& member : engine.nodes().Members()) {
    status["gpu_nodes"].push_back(LinkJson(member, offers));
  }
  // Model names may hold bytes that are not UTF-8.
  return base::FormatJson(status, 2) + "\n";
}

metrics::Routes StatusRoutes(const Engine* engine,
                             const base::ByteBudget* memory) {
  const absl::Time started = engine->clock().Now();
  metrics::Routes routes;
  routes.routes = {metrics::StatusPageRoute(),
                   {.target = "/status", .changes = false, .answer = [=] {
                      return metrics::Route::Answer{
                          .body = StatusText(*engine, *memory, started)};
                    }}};
  return routes;
}

}  // namespace refract::cpu_node
