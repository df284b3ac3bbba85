#include "cpu_node/http/route.h"

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/shorten.h"

namespace refract::cpu_node {
namespace {

using Call = Route::Call;

// Decodes %XX; nullopt if an escape is broken.
std::optional<std::string> Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    int byte = 0;
    if (i + 2 >= text.size() || !absl::ascii_isxdigit(text[i + 1]) ||
        !absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      return std::nullopt;
    }
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

// Parses the path after /v2/models/NAME[/versions/VERSION].
std::optional<Route> OfModel(std::string model, std::string version,
                             absl::Span<const std::string> rest) {
  Route route{Call::kModelMetadata, std::move(model), std::move(version)};
  if (rest.empty()) return route;
  if (rest.size() == 2 && rest[0] == "trace" && rest[1] == "setting") {
    route.call = Call::kTraceSetting;
    route.both = true;
    return route;
  }
  if (rest.size() != 1) return std::nullopt;
  if (rest[0] == "ready") {
    route.call = Call::kModelReady;
  } else if (rest[0] == "config") {
    route.call = Call::kModelConfig;
  } else if (rest[0] == "stats") {
    route.call = Call::kModelStatistics;
  } else if (rest[0] == "infer") {
    route.call = Call::kModelInfer;
    route.post = true;
  } else {
    return std::nullopt;
  }
  return route;
}

std::optional<Route> Find(absl::Span<const std::string> path) {
  if (path.empty() || path[0] != "v2") return std::nullopt;
  path.remove_prefix(1);
  if (path.empty()) return Route{Call::kServerMetadata};
  if (path[0] == "health" && path.size() == 2) {
    if (path[1] == "live") return Route{Call::kServerLive};
    if (path[1] == "ready") return Route{Call::kServerReady};
  }
  if (path[0] == "trace" && path.size() == 2 && path[1] == "setting") {
    return Route{Call::kTraceSetting, "", "", false, true};
  }
  if (path[0] == "repository") {
    if (path.size() == 2 && path[1] == "index") {
      return Route{Call::kRepositoryIndex, "", "", true};
    }
    if (path.size() == 4 && path[1] == "models") {
      if (path[3] == "load") return Route{Call::kModelLoad, path[2], "", true};
      if (path[3] == "unload") {
        return Route{Call::kModelUnload, path[2], "", true};
      }
    }
  }
  if (path[0] != "models" || path.size() < 2) return std::nullopt;
  // As in Triton, hides the metadata of a model of that name.
  if (path.size() == 2 && path[1] == "stats") {
    return Route{Call::kModelStatistics};
  }
  if (path.size() >= 4 && path[2] == "versions") {
    return OfModel(path[1], path[3], path.subspan(4));
  }
  return OfModel(path[1], "", path.subspan(2));
}

// Whether `path` belongs to an extension of Triton that this server lacks.
bool IsMissingExtension(absl::Span<const std::string> path) {
  if (path.size() < 2 || path[0] != "v2") return false;
  const std::string& last = path.back();
  return path[1] == "systemsharedmemory" || path[1] == "cudasharedmemory" ||
         path[1] == "logging" || last == "generate" ||
         last == "generate_stream";
}

// The path of "/v2/…?query", or of "http://host/v2/…?query": RFC 9112, section
// 3.2.2, has servers accept the form of requests to a proxy as well.
absl::string_view PathOf(absl::string_view target) {
  target = target.substr(0, target.find('?'));
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(target, scheme)) {
      const size_t slash = target.find('/', scheme.size());
      return slash == target.npos ? "/" : target.substr(slash);
    }
  }
  return target;
}

}  // namespace

absl::StatusOr<Route> RouteOf(absl::string_view target) {
  // Split before %XX is decoded: an escaped "/" is part of a name.
  const absl::string_view text = PathOf(target);
  std::vector<std::string> path;
  bool whole = !text.empty() && text[0] == '/';
  for (const absl::string_view part :
       absl::StrSplit(text, '/', absl::SkipEmpty())) {
    std::optional<std::string> name = Unescape(part);
    whole = whole && name.has_value();
    if (!whole) break;
    path.push_back(*std::move(name));
  }
  if (whole) {
    if (std::optional<Route> route = Find(path)) return *std::move(route);
    if (IsMissingExtension(path)) {
      return absl::UnimplementedError(
          absl::StrCat("'", base::Shorten(text), "' is not supported"));
    }
  }
  return absl::NotFoundError(
      absl::StrCat("unknown path '", base::Shorten(text), "'"));
}

}  // namespace refract::cpu_node
