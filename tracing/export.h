#ifndef REFRACT_TRACING_EXPORT_H_
#define REFRACT_TRACING_EXPORT_H_

// Destinations of traces.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/otlp.pb.h"
#include "tracing/settings.h"
#include "tracing/trace.h"

namespace refract::tracing {

// The traces in OTLP's form: spans of this node under `resource`, with
// service.name "refract-cpu-node" unless it says otherwise; spans of a GPU node
// under "refract-gpu-node" and its address.
proto::otlp::ExportTraceServiceRequest ToOtlp(
    absl::Span<const Trace> traces,
    absl::Span<const std::pair<std::string, std::string>> resource);

// OTLP's JSON encoding on one line, without a line break.
std::string ToJson(const proto::otlp::ExportTraceServiceRequest& request);

// Used by one thread at a time.
class Exporter {
 public:
  virtual ~Exporter() = default;
  // Errors: the traces are lost.
  virtual absl::Status Export(absl::Span<const Trace> traces) = 0;

  // The exporter for `settings`. InvalidArgument: a file that cannot be
  // written, or a URL that is not http://HOST:PORT/PATH.
  static absl::StatusOr<std::unique_ptr<Exporter>> Create(
      const Settings& settings);
};

}  // namespace refract::tracing

#endif  // REFRACT_TRACING_EXPORT_H_
