#include "transport/messages/landing.h"

#include <glog/logging.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {

std::vector<RangeSet::Range>::iterator RangeSet::At(const std::byte* begin) {
  return std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                          [](const Range& range, const std::byte* at) {
                            return std::less<>{}(range.begin, at);
                          });
}

bool RangeSet::Insert(const std::byte* begin, size_t bytes) {
  const Range added{begin, begin + bytes};
  const auto after = At(begin);
  if (after != ranges_.end() && std::less<>{}(after->begin, added.end)) {
    return false;
  }
  if (after != ranges_.begin() && std::less<>{}(begin, std::prev(after)->end)) {
    return false;
  }
  ranges_.insert(after, added);
  return true;
}

void RangeSet::Erase(const std::byte* begin) {
  const auto range = At(begin);
  CHECK(range != ranges_.end() && range->begin == begin) << "not in the set";
  ranges_.erase(range);
}

bool LandingAreaImpl::Claim(absl::Span<const std::byte> rows) {
  absl::MutexLock lock(&mu_);
  return claimed_.Insert(rows.data(), rows.size());
}

void LandingAreaImpl::Release(absl::Span<const std::byte> rows) {
  absl::MutexLock lock(&mu_);
  claimed_.Erase(rows.data());
}

absl::StatusOr<std::shared_ptr<LandingAreaImpl>> LandingAreas::Create(
    size_t bytes) {
  if (bytes == 0) {
    return absl::InvalidArgumentError("a landing area of no bytes");
  }
  REFRACT_ASSIGN_OR_RETURN(auto memory, Mapping::ForDevices(bytes));
  return Add(std::move(memory));
}

std::shared_ptr<LandingAreaImpl> LandingAreas::Add(
    std::shared_ptr<const Mapping> memory) {
  auto area = std::make_shared<LandingAreaImpl>(std::move(memory));
  absl::MutexLock lock(&mu_);
  areas_.push_back(area);
  size_.store(areas_.size(), std::memory_order_release);
  return area;
}

void LandingAreas::AppendNew(
    size_t seen, std::vector<std::shared_ptr<LandingAreaImpl>>* out) const {
  if (size() == seen) return;
  absl::MutexLock lock(&mu_);
  out->insert(out->end(), areas_.begin() + static_cast<ptrdiff_t>(seen),
              areas_.end());
}

absl::Status LandedRows::Claim(absl::Span<const base::TensorView> tensors,
                               absl::Span<const ReachableArea> areas) {
  const auto refuse = [this](absl::string_view why) {
    Release();
    return absl::InternalError(absl::StrCat("bad place to land: ", why));
  };
  if (!landing_.tensors.empty() && landing_.tensors.size() != tensors.size()) {
    return refuse(absl::StrCat(landing_.tensors.size(), " places for ",
                               tensors.size(), " tensors"));
  }
  for (size_t i = 0; i < landing_.tensors.size(); ++i) {
    const absl::Span<std::byte> place = landing_.tensors[i];
    const size_t bytes = tensors[i].bytes;
    if (place.data() == nullptr || bytes == 0) continue;
    if (place.size() < bytes) {
      return refuse(absl::StrCat("tensor ", i, " of ", bytes, " B in ",
                                 place.size(), " B"));
    }
    const auto area =
        std::find_if(areas.begin(), areas.end(), [&](const auto& candidate) {
          return candidate.area->memory()->Contains(place.data(), bytes);
        });
    if (area == areas.end()) {
      return refuse(
          absl::StrCat("tensor ", i, " lies outside of every landing area"));
    }
    if (!area->reachable) {
      landing_.tensors[i] = {};
      continue;
    }
    if (!area->area->Claim(place.first(bytes))) {
      return refuse(absl::StrCat(
          "tensor ", i, " overlaps another one or a request that is open"));
    }
    claimed_.push_back({area->area, place.first(bytes)});
  }
  return absl::OkStatus();
}

absl::Status LandedRows::Flush() const {
  const DeviceMemory* last = nullptr;
  for (const Claimed& claimed : claimed_) {
    DeviceMemory* const device = claimed.area->memory()->device();
    // Rows of one message lie in one area, as a rule.
    if (device == nullptr || device == last) continue;
    last = device;
    if (!NeedsFlush(device->remote_writes())) continue;
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(device->Flush(), "landing in device memory"));
  }
  return absl::OkStatus();
}

void LandedRows::Release() {
  for (const Claimed& claimed : claimed_) claimed.area->Release(claimed.rows);
  claimed_.clear();
  landing_.tensors.clear();
  landing_.lease.reset();
}

void LandedRows::Swap(LandedRows& other) {
  std::swap(landing_, other.landing_);
  claimed_.swap(other.claimed_);
}

}  // namespace refract::transport
