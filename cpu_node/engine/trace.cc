// Builds the traces of requests when they have ended, from the times in their
// tasks. A request that is not traced costs a comparison.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/shorten.h"
#include "cpu_node/engine.h"
#include "cpu_node/engine/task.h"
#include "nlohmann/json.hpp"
#include "tracing/tracer.h"

namespace refract::cpu_node {
namespace {

using tracing::Span;

// Attributes must be UTF-8, but clients may send any bytes: bytes that are not
// UTF-8 become U+FFFD.
std::string Text(absl::string_view text) {
  const std::string quoted = base::FormatJson(
      nlohmann::json(base::Shorten(text, base::kMaxStatusTextBytes)));
  return base::ParseJson(quoted).get<std::string>();
}

// A trace with its first span, to which stages are added as children.
class TraceBuilder {
 public:
  // `start` and `now` are on the engine's clock.
  TraceBuilder(const tracing::RequestContext& request, absl::Time start,
               absl::Time now)
      // Spans have calendar time, the engine's clock counts from any origin. One offset for all
      // spans of a trace keeps their order.
      : to_calendar_((absl::Now() - absl::UnixEpoch()) -
                     (now - absl::UnixEpoch())) {
    trace_.id = request.trace_id != tracing::TraceId() ? request.trace_id
                                                       : tracing::NewTraceId();
    trace_.sampled = request.sampled;
    root_ = tracing::NewSpanId();
    Span& root = Add("request", request.parent, start, now);
    root.id = root_;
    root.kind = Span::Kind::kServer;
  }

  Span& root() { return trace_.spans.front(); }

  // The reference is valid until the next Add().
  Span& Add(const char* name, const tracing::SpanId& parent, absl::Time start,
            absl::Time end) {
    Span& span = trace_.spans.emplace_back();
    span.id = tracing::NewSpanId();
    span.parent = parent;
    span.name = name;
    span.start = start + to_calendar_;
    span.end = std::max(start, end) + to_calendar_;
    return span;
  }
  Span& AddStage(const char* name, absl::Time start, absl::Time end) {
    return Add(name, root_, start, end);
  }

  void Fail(const absl::Status& status) {
    root().failed = true;
    root().message = Text(status.message());
    root().attributes.emplace_back("refract.status",
                                   absl::StatusCodeToString(status.code()));
  }

  // Adds the stages on the GPU node `address` between `sent` and `came`.
  void AddGpuNode(const std::string& address, absl::Time sent, absl::Time came,
                  const transport::CallTimes& times, absl::Duration ahead) {
    Span& away = AddStage("gpu_node", sent, came);
    away.kind = Span::Kind::kClient;
    away.attributes.emplace_back("server.address", address);
    const tracing::SpanId parent = away.id;
    // The offset of its clock may be wrong by half a round trip, so stages are
    // clamped to the time that the request was away.
    const auto here = [&](absl::Time time) {
      return std::clamp(time - ahead, sent, std::max(sent, came));
    };
    Span& there =
        Add("hn_request", parent, here(times.received), here(times.answered));
    there.kind = Span::Kind::kServer;
    there.node = address;
    const tracing::SpanId hn = there.id;
    const auto stage = [&](const char* name, absl::Time start, absl::Time end) {
      Add(name, hn, here(start), here(end)).node = address;
    };
    stage("hn_queue", times.received, times.started);
    stage("hn_execute", times.started, times.executed);
    stage("hn_answer", times.executed, times.answered);
  }

  tracing::Trace Take() { return std::move(trace_); }

 private:
  const absl::Duration to_calendar_;
  tracing::Trace trace_;
  tracing::SpanId root_;
};

void Describe(Span& root, absl::string_view model, absl::string_view id) {
  root.attributes.emplace_back("refract.model", Text(model));
  if (!id.empty()) root.attributes.emplace_back("refract.request_id", Text(id));
}

}  // namespace

void Engine::TraceEnd(const Task& task, const absl::Status& status,
                      absl::Time computed) {
  const tracing::RequestContext& request = task.request.trace;
  if (!request.on || options_.tracer == nullptr) return;
  tracing::Tracer& tracer = *options_.tracer;
  const absl::Time now = options_.clock->Now();
  const absl::Time came = task.sent + task.times.compute_infer;
  const transport::CallTimes* times = nullptr;
  if (task.response.has_value() && task.response->times().has_value()) {
    times = &*task.response->times();
    tracer.AddTimes(task.gpu_node, task.sent_to_node, times->received, times->answered,
                    came);
  }
  const bool decoded = task.request.received != absl::InfinitePast();
  const absl::Time start = decoded ? task.request.received : task.arrived;
  if (!tracer.Keeps(request, !status.ok(), now - start)) return;

  TraceBuilder builder(request, start, now);
  const ServedModel& model = *task.model;
  Span& root = builder.root();
  Describe(root, model.name(), task.request.id);
  root.attributes.emplace_back("refract.version", model.version());
  root.attributes.emplace_back("refract.rows", task.bound.batch);
  root.attributes.emplace_back("refract.attempts", int64_t{task.attempts});
  if (task.hedged) root.attributes.emplace_back("refract.hedged", int64_t{1});
  if (task.run_stats.replaced_ids > 0) {
    root.attributes.emplace_back(
        "refract.replaced_ids",
        static_cast<int64_t>(task.run_stats.replaced_ids));
  }
  if (!status.ok()) builder.Fail(status);

  if (decoded) builder.AddStage("decode", start, task.arrived);
  if (!task.started && !task.gathered.has_value()) {
    builder.AddStage("cn_queue", task.arrived, now);
    return tracer.Submit(builder.Take());
  }
  const absl::Time began = task.arrived + task.times.queue;
  builder.AddStage("cn_queue", task.arrived, began);
  const absl::Time end = status.ok() ? computed : now;
  if (task.sent == absl::InfinitePast()) {
    builder.AddStage(model.split() && !status.ok() ? "cn_pre" : "whole", began,
                     end);
  } else if (task.gathered.has_value()) {
    builder.AddStage("cn_pre", began, task.sent);
    builder.AddStage("pieces", task.sent, end);
  } else {
    // Only the last of several attempts is shown in detail.
    const absl::Time last = task.sent - task.times.compute_input;
    const bool retried = task.retries() > 0;
    if (retried) builder.AddStage("attempts", began, last);
    builder.AddStage("cn_pre", retried ? last : began, task.sent);
    if (task.sent_to_node > task.sent) {
      builder.AddStage("hedge_wait", task.sent, task.sent_to_node);
    }
    if (times != nullptr) {
      builder.AddGpuNode(task.gpu_node, task.sent_to_node, came, *times,
                         tracer.AheadOf(task.gpu_node));
    } else {
      Span& away = builder.AddStage("gpu_node", task.sent_to_node, came);
      away.kind = Span::Kind::kClient;
      if (!task.gpu_node.empty()) {
        away.attributes.emplace_back("server.address", task.gpu_node);
      }
      away.failed = !task.response.has_value();
    }
    if (task.response.has_value()) {
      builder.AddStage("resume", came, task.began);
      builder.AddStage("cn_post", task.began, end);
    } else if (status.ok()) {  // all GPU nodes had failed
      builder.AddStage("whole", task.began, end);
    }
  }
  if (status.ok()) builder.AddStage("encode", computed, now);
  tracer.Submit(builder.Take());
}

void Engine::TraceRefusal(const tracing::RequestContext& request,
                          absl::Time start, absl::string_view model,
                          absl::string_view id, const absl::Status& status) {
  if (!request.on || options_.tracer == nullptr) return;
  const absl::Time now = options_.clock->Now();
  if (start == absl::InfinitePast()) start = now;
  if (!options_.tracer->Keeps(request, /*failed=*/true, now - start)) return;
  TraceBuilder builder(request, start, now);
  Describe(builder.root(), model, id);
  builder.Fail(status);
  options_.tracer->Submit(builder.Take());
}

}  // namespace refract::cpu_node
