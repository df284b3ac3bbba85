#include "transport/links/server_shared.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace refract::transport {

void PeerLog::Warn(const std::string& host, absl::string_view what,
                   const absl::Status& status) {
  const std::string key =
      absl::StrCat(host, "/", what, "/", static_cast<int>(status.code()));
  const absl::Time now = base::Clock::Real().Now();
  {
    absl::MutexLock lock(&mu_);
    if (last_.size() >= kMaxEntries) last_.clear();
    const auto [entry, fresh] = last_.try_emplace(key, now);
    if (!fresh && now - entry->second < absl::Minutes(1)) return;
    entry->second = now;
  }
  LOG(WARNING) << "peer " << host << ": " << what << ": "
               << status.ToString(absl::StatusToStringMode::kWithNoExtraData)
               << " (repetitions within a minute are not logged)";
}

}  // namespace refract::transport
