#include "tools/loadgen/arrivals/arrivals.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>
#include <numeric>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tools/loadgen/random.h"

namespace refract::loadgen {
namespace {

// Steps of a day, a quarter of an hour each.
constexpr int kDiurnalSteps = 96;
constexpr double kDefaultTrough = 0.3;

// `count` comma-separated finite numbers >= 0, or nothing.
std::optional<std::vector<double>> Numbers(absl::string_view text,
                                           size_t count) {
  std::vector<double> numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !std::isfinite(number) ||
        number < 0) {
      return std::nullopt;
    }
    numbers.push_back(number);
  }
  if (numbers.size() != count) return std::nullopt;
  return numbers;
}

absl::StatusOr<std::vector<double>> ReadCurve(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--arrivals: ", path, ": cannot be opened"));
  }
  std::vector<double> rates;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    absl::string_view text = line;
    text = absl::StripAsciiWhitespace(text.substr(0, text.find('#')));
    if (text.empty()) continue;
    const auto rate = Numbers(text, 1);
    if (!rate) {
      return absl::InvalidArgumentError(
          absl::StrCat("--arrivals: ", path, ":", number, ": '", text,
                       "' is no rate (a number >= 0)"));
    }
    rates.push_back(rate->front());
  }
  if (file.bad() || std::all_of(rates.begin(), rates.end(),
                                [](double rate) { return rate == 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("--arrivals: ", path, ": holds no rate above 0"));
  }
  return rates;
}

std::vector<double> DiurnalCurve(double trough) {
  std::vector<double> rates;
  for (int i = 0; i < kDiurnalSteps; ++i) {
    // The middle of each step, so that the mean over the day is exact: (1 +
    // trough) / 2 of the peak.
    const double phase = 2 * std::numbers::pi * (i + 0.5) / kDiurnalSteps;
    rates.push_back(trough + (1 - trough) * (1 - std::cos(phase)) / 2);
  }
  return rates;
}

}  // namespace

absl::StatusOr<ArrivalProfile> ArrivalProfile::Parse(absl::string_view spec) {
  ArrivalProfile profile;
  const auto wrong = [spec](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("--arrivals: '", spec, "' ", why));
  };
  if (spec == "poisson") return profile;
  if (spec == "constant") {
    profile.equal_gaps_ = true;
  } else if (absl::ConsumePrefix(&spec, "bursts:")) {
    const auto numbers = Numbers(spec, 3);
    if (!numbers) return wrong("is not bursts:TIMES,ON,PERIOD");
    profile.burst_ = {(*numbers)[0], (*numbers)[1], (*numbers)[2]};
    const Burst& burst = profile.burst_;
    if (burst.times < 1 || burst.on_s <= 0 || burst.on_s >= burst.period_s) {
      return wrong("needs TIMES >= 1 and 0 < ON < PERIOD seconds");
    }
    if (burst.times * burst.on_s > burst.period_s) {
      return wrong("has TIMES x ON > PERIOD: its bursts exceed the mean rate");
    }
  } else if (spec == "diurnal") {
    profile.curve_ = DiurnalCurve(kDefaultTrough);
  } else if (absl::ConsumePrefix(&spec, "diurnal:")) {
    const auto numbers = Numbers(spec, 1);
    if (!numbers || numbers->front() > 1) {
      return wrong("is not diurnal:TROUGH with TROUGH from 0 to 1");
    }
    profile.curve_ = DiurnalCurve(numbers->front());
  } else if (absl::ConsumePrefix(&spec, "curve:")) {
    REFRACT_ASSIGN_OR_RETURN(profile.curve_, ReadCurve(std::string(spec)));
  } else {
    return wrong(
        "is none of poisson, constant, bursts:TIMES,ON,PERIOD, "
        "diurnal[:TROUGH], curve:FILE, trace:FILE");
  }
  return profile;
}

std::vector<ArrivalProfile::Piece> ArrivalProfile::Pieces(
    double warmup_s, double duration_s) const {
  std::vector<Piece> pieces;
  if (!curve_.empty()) {
    const double mean = std::accumulate(curve_.begin(), curve_.end(), 0.0) /
                        static_cast<double>(curve_.size());
    // Factors are relative to the mean of the curve, so that the run as a whole
    // offers the rate that was asked for.
    pieces.push_back({warmup_s, curve_.front() / mean});
    for (const double rate : curve_) {
      pieces.push_back(
          {duration_s / static_cast<double>(curve_.size()), rate / mean});
    }
  } else if (burst_.period_s > 0) {
    // The factor outside bursts from times · on + rest · (period − on) =
    // period.
    const double rest_s = burst_.period_s - burst_.on_s;
    const double rest =
        (burst_.period_s - burst_.times * burst_.on_s) / rest_s;
    for (double at = 0; at < warmup_s + duration_s; at += burst_.period_s) {
      pieces.push_back({burst_.on_s, burst_.times});
      pieces.push_back({rest_s, rest});
    }
  } else {
    pieces.push_back({warmup_s + duration_s, 1});
  }
  return pieces;
}

// A Poisson process of varying rate is a process of rate 1 whose time is
// stretched: its n-th arrival is when the integral of the rate reaches the n-th
// arrival of the process of rate 1. The rate is constant within a piece, so the
// integral is a line there and is inverted by a division. A piece of rate 0 has
// no arrival and divides nothing.
std::vector<absl::Duration> ArrivalProfile::Draw(double queries_per_s,
                                                 absl::Duration warmup,
                                                 absl::Duration duration,
                                                 uint64_t seed) const {
  Random random(seed, "arrivals");
  const double warmup_s = absl::ToDoubleSeconds(warmup);
  const double duration_s = absl::ToDoubleSeconds(duration);
  const double end_s = warmup_s + duration_s;
  std::vector<absl::Duration> arrivals;
  arrivals.reserve(static_cast<size_t>(queries_per_s * end_s * 1.1) + 16);
  // By multiplication: adding gaps would add up rounding errors over a long
  // run.
  if (equal_gaps_) {
    for (int64_t i = 0; static_cast<double>(i) < queries_per_s * end_s; ++i) {
      arrivals.push_back(absl::Seconds(static_cast<double>(i) / queries_per_s));
    }
    return arrivals;
  }
  double due = random.Exponential();  // of the process of rate 1
  double begin = 0, begin_s = 0;      // of the piece, in both times
  for (const Piece& piece : Pieces(warmup_s, duration_s)) {
    const double rate = queries_per_s * piece.factor;
    const double end = begin + rate * piece.seconds;
    for (; due < end; due += random.Exponential()) {
      const double at_s = begin_s + (due - begin) / rate;
      if (at_s >= end_s) return arrivals;
      arrivals.push_back(absl::Seconds(at_s));
    }
    begin = end;
    begin_s += piece.seconds;
  }
  return arrivals;
}

}  // namespace refract::loadgen
