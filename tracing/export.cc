#include "tracing/export.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "metrics/client.h"
#include "nlohmann/json.hpp"

namespace refract::tracing {
namespace {

using proto::otlp::AnyValue;
using proto::otlp::ExportTraceServiceRequest;
using proto::otlp::KeyValue;

// A collector on the same machine answers within milliseconds. While it is
// away, each batch waits this long, and the queue drops traces once it is full.
constexpr absl::Duration kPatience = absl::Seconds(5);

template <typename Bytes>
std::string ToString(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

void Add(absl::string_view name, absl::string_view value,
         google::protobuf::RepeatedPtrField<KeyValue>* attributes) {
  KeyValue& attribute = *attributes->Add();
  attribute.set_key(std::string(name));
  attribute.mutable_value()->set_string_value(std::string(value));
}

void Encode(const Trace& trace, const Span& span, proto::otlp::Span& to) {
  to.set_trace_id(ToString(trace.id));
  to.set_span_id(ToString(span.id));
  if (span.parent != SpanId()) to.set_parent_span_id(ToString(span.parent));
  to.set_name(span.name);
  to.set_kind(static_cast<proto::otlp::Span::SpanKind>(span.kind));
  to.set_start_time_unix_nano(absl::ToUnixNanos(span.start));
  to.set_end_time_unix_nano(absl::ToUnixNanos(span.end));
  // W3C trace flags: bit 0 is "sampled".
  to.set_flags(trace.sampled ? 1 : 0);
  for (const auto& [name, value] : span.attributes) {
    if (const std::string* text = std::get_if<std::string>(&value)) {
      Add(name, *text, to.mutable_attributes());
      continue;
    }
    KeyValue& attribute = *to.add_attributes();
    attribute.set_key(name);
    attribute.mutable_value()->set_int_value(std::get<int64_t>(value));
  }
  if (!span.failed) return;
  to.mutable_status()->set_code(proto::otlp::Status::STATUS_CODE_ERROR);
  to.mutable_status()->set_message(span.message);
}

nlohmann::json ToJson(
    const google::protobuf::RepeatedPtrField<KeyValue>& attributes) {
  nlohmann::json list = nlohmann::json::array();
  for (const KeyValue& attribute : attributes) {
    // 64-bit numbers are text in Protobuf's JSON.
    const AnyValue& value = attribute.value();
    list.push_back(
        {{"key", attribute.key()},
         {"value",
          value.has_int_value()
              ? nlohmann::json{{"intValue", absl::StrCat(value.int_value())}}
              : nlohmann::json{{"stringValue", value.string_value()}}}});
  }
  return list;
}

// OTLP's JSON has ids in hexadecimal, unlike Protobuf's.
nlohmann::json ToJson(const proto::otlp::Span& span) {
  nlohmann::json json = {
      {"traceId", absl::BytesToHexString(span.trace_id())},
      {"spanId", absl::BytesToHexString(span.span_id())},
      {"name", span.name()},
      {"kind", static_cast<int>(span.kind())},
      {"startTimeUnixNano", absl::StrCat(span.start_time_unix_nano())},
      {"endTimeUnixNano", absl::StrCat(span.end_time_unix_nano())},
      {"attributes", ToJson(span.attributes())},
      {"flags", span.flags()}};
  if (!span.parent_span_id().empty()) {
    json["parentSpanId"] = absl::BytesToHexString(span.parent_span_id());
  }
  if (span.has_status()) {
    json["status"] = {{"code", static_cast<int>(span.status().code())},
                      {"message", span.status().message()}};
  }
  return json;
}

class FileExporter final : public Exporter {
 public:
  FileExporter(int fd, const Settings& settings)
      : fd_(fd), path_(settings.file), resource_(settings.resource) {}
  ~FileExporter() override { close(fd_); }

  absl::Status Export(absl::Span<const Trace> traces) override {
    // A line per trace, so that a reader can take a trace at a time. All lines
    // of a batch go out with as few calls as the file system allows.
    std::string lines;
    for (const Trace& trace : traces) {
      absl::StrAppend(&lines, tracing::ToJson(ToOtlp({&trace, 1}, resource_)),
                      "\n");
    }
    absl::string_view rest = lines;
    while (!rest.empty()) {
      const ssize_t written = write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        absl::Status error = absl::UnavailableError(
            absl::StrCat(path_, ": ", std::strerror(errno)));
        // A line that was begun goes, or the next batch would continue it.
        const absl::string_view done(lines.data(), lines.size() - rest.size());
        const size_t begun = done.size() - (done.rfind('\n') + 1);
        if (begun > 0) {
          const off_t end = lseek(fd_, 0, SEEK_CUR);
          [[maybe_unused]] const int cut =
              ftruncate(fd_, end - static_cast<off_t>(begun));
        }
        return error;
      }
      rest.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
  const std::string path_;
  const std::vector<std::pair<std::string, std::string>> resource_;
};

class OtlpExporter final : public Exporter {
 public:
  OtlpExporter(std::string address, std::string target,
               const Settings& settings)
      : address_(std::move(address)),
        target_(std::move(target)),
        resource_(settings.resource) {}

  absl::Status Export(absl::Span<const Trace> traces) override {
    const std::string body = ToOtlp(traces, resource_).SerializeAsString();
    REFRACT_ASSIGN_OR_RETURN(
        const metrics::Reply reply,
        metrics::Post(address_, target_, "application/x-protobuf", body,
                      kPatience));
    // The collector's list of refused spans (partial success) is not read:
    // spans that arrived count as exported.
    if (reply.status / 100 == 2) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(address_, target_, " answers with status ", reply.status));
  }

 private:
  const std::string address_;
  const std::string target_;
  const std::vector<std::pair<std::string, std::string>> resource_;
};

}  // namespace

ExportTraceServiceRequest ToOtlp(
    absl::Span<const Trace> traces,
    absl::Span<const std::pair<std::string, std::string>> resource) {
  ExportTraceServiceRequest request;
  // OTLP groups spans by the process that made them. Spans of GPU nodes are
  // made by this process from the times in answers, and get resources of their
  // own here. Key: address of the node; "": this node. The pointers stay valid
  // while `request` grows, because repeated messages are allocated one by one.
  std::map<std::string, proto::otlp::ScopeSpans*> scopes;
  for (const Trace& trace : traces) {
    for (const Span& span : trace.spans) {
      proto::otlp::ScopeSpans*& scope = scopes[span.node];
      if (scope == nullptr) {
        proto::otlp::ResourceSpans& spans = *request.add_resource_spans();
        auto* const attributes = spans.mutable_resource()->mutable_attributes();
        bool named = false;
        if (!span.node.empty()) {
          Add("service.name", "refract-gpu-node", attributes);
          Add("server.address", span.node, attributes);
          named = true;
        } else {
          for (const auto& [name, value] : resource) {
            Add(name, value, attributes);
            named = named || name == "service.name";
          }
        }
        if (!named) Add("service.name", "refract-cpu-node", attributes);
        scope = spans.add_scope_spans();
        scope->mutable_scope()->set_name("refract");
        scope->mutable_scope()->set_version(REFRACT_VERSION);
      }
      Encode(trace, span, *scope->add_spans());
    }
  }
  return request;
}

std::string ToJson(const ExportTraceServiceRequest& request) {
  nlohmann::json resources = nlohmann::json::array();
  for (const proto::otlp::ResourceSpans& from : request.resource_spans()) {
    nlohmann::json scopes = nlohmann::json::array();
    for (const proto::otlp::ScopeSpans& scope : from.scope_spans()) {
      nlohmann::json spans = nlohmann::json::array();
      for (const proto::otlp::Span& span : scope.spans()) {
        spans.push_back(ToJson(span));
      }
      scopes.push_back({{"scope",
                         {{"name", scope.scope().name()},
                          {"version", scope.scope().version()}}},
                        {"spans", std::move(spans)}});
    }
    resources.push_back(
        {{"resource", {{"attributes", ToJson(from.resource().attributes())}}},
         {"scopeSpans", std::move(scopes)}});
  }
  const nlohmann::json json = {{"resourceSpans", std::move(resources)}};
  return base::FormatJson(json);
}

absl::StatusOr<std::unique_ptr<Exporter>> Exporter::Create(
    const Settings& settings) {
  if (!settings.otlp) {
    // Traces contain clients' requests: only the node's user may read them.
    const int fd = open(settings.file.c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace-config triton,file=", settings.file, ": ",
                       std::strerror(errno)));
    }
    return std::make_unique<FileExporter>(fd, settings);
  }
  absl::string_view rest = settings.url;
  const auto refused = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace-config opentelemetry,url=", settings.url,
                     ": wanted http://HOST[:PORT]/PATH; reach a collector that "
                     "takes https through a local collector"));
  };
  if (!absl::ConsumePrefix(&rest, "http://")) return refused();
  // Without a path, OTLP's default path. Without a port, the port of http.
  const size_t slash = rest.find('/');
  std::string address(rest.substr(0, slash));
  const std::string target(
      slash == absl::string_view::npos ? "/v1/traces" : rest.substr(slash));
  // IPv6 addresses are in brackets.
  if (address.rfind(':') == std::string::npos || absl::EndsWith(address, "]")) {
    absl::StrAppend(&address, ":80");
  }
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 1 || port > 65535 ||
      settings.url.find(' ') != std::string::npos) {
    return refused();
  }
  return std::make_unique<OtlpExporter>(std::move(address), target, settings);
}

}  // namespace refract::tracing
