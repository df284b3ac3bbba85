#include "transport/paths/rail_health.h"

#include <algorithm>

namespace refract::transport {

void RailHealth::OnError(absl::string_view name, absl::Time now) {
  Rail& rail = rails_[name];
  if (rail.down || (!rail.excused && now < rail.paused_until)) return;
  while (!rail.errors.empty() && now - rail.errors.front() >= options_.window) {
    rail.errors.pop_front();
  }
  if (now - rail.paused_until >= options_.last_pause) {
    rail.last_pause = absl::ZeroDuration();
  }
  rail.errors.push_back(now);
  if (static_cast<int>(rail.errors.size()) < options_.errors) return;
  rail.errors.clear();
  rail.last_pause = rail.last_pause == absl::ZeroDuration()
                        ? options_.first_pause
                        : std::min(2 * rail.last_pause, options_.last_pause);
  rail.paused_until = now + rail.last_pause;
  rail.excused = false;
  ++pauses_;
}

void RailHealth::SetDown(absl::string_view name, bool down) {
  Rail& rail = rails_[name];
  rail.down = down;
  if (down) return;
  rail.errors.clear();
  rail.excused = true;
}

bool RailHealth::usable(absl::string_view name, absl::Time now) const {
  return now >= paused_until(name);
}

absl::Time RailHealth::paused_until(absl::string_view name) const {
  const auto found = rails_.find(name);
  if (found == rails_.end()) return absl::InfinitePast();
  const Rail& rail = found->second;
  if (rail.down) return absl::InfiniteFuture();
  return rail.excused ? absl::InfinitePast() : rail.paused_until;
}

}  // namespace refract::transport
