#include "cpu_node/dispatch/request_log.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

constexpr int kLinesPerSecond = 10;

// Escapes the id, which a client chose: a line break must not begin a log line.
std::string NameOf(absl::string_view id, absl::string_view model) {
  return absl::StrCat(
      id.empty() ? "a request"
                 : absl::StrCat("request '",
                                base::Shorten(absl::Utf8SafeCEscape(id)), "'"),
      " of model '", model, "'");
}

}  // namespace

RequestLog::RequestLog(absl::Duration slow_after, base::Clock& clock)
    : slow_after_(slow_after),
      failures_(kLinesPerSecond, clock),
      slow_(kLinesPerSecond, clock) {}

void RequestLog::OnFailure(absl::string_view model, absl::string_view id,
                           const absl::Status& status) {
  if (const auto held_back = failures_.Admit("failures")) {
    LOG(WARNING) << NameOf(id, model) << " failed: " << status << *held_back;
  }
}

void RequestLog::OnEnd(const Ended& request, const absl::Status& status) {
  if (!IsSlow(request.took)) return;
  const auto held_back = slow_.Admit("slow requests");
  if (!held_back.has_value()) return;
  const StageTimes& times = request.times;
  LOG(WARNING)
      << "slow: " << NameOf(request.id, request.model) << " took "
      << absl::FormatDuration(request.took) << ": "
      << absl::FormatDuration(times.queue) << " in the queue, "
      << absl::FormatDuration(times.compute_input) << " CN-pre, "
      << absl::FormatDuration(times.compute_infer)
      << (request.attempts > 0 ? " at the GPU node" : " here")
      << (request.gpu_node.empty() ? "" : absl::StrCat(" ", request.gpu_node))
      << ", " << absl::FormatDuration(times.compute_output) << " CN-post; "
      << request.attempts << " attempt(s), "
      << (status.ok() ? "answered" : absl::StatusCodeToString(status.code()))
      << *held_back;
}

}  // namespace refract::cpu_node
