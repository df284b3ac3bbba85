#include "tools/transport_meter/report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quantile.h"

namespace refract::transport_meter {
namespace {

bool Usable(double value) { return std::isfinite(value) && value > 0; }

std::vector<double> Column(const Row& row, double Figures::*member) {
  std::vector<double> values;
  for (const Figures& figures : row.rounds) values.push_back(figures.*member);
  return values;
}

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.6g", value) : "";
}

std::string Heading(const Point& point) {
  const char* unit = "µs";
  if (IsStream(point.op)) unit = "MB/s";
  if (point.op == Op::kPingPong) unit = "µs one way (half the round trip)";
  return absl::StrCat(OpName(point.op), ", ", ModeName(point.mode), ", ", unit,
                      "\n");
}

std::string TextOf(const Report& report, size_t index) {
  const Row& row = report.rows[index];
  const Quartiles q = QuartilesOf(row.Primary());
  double scale = 1;
  if (row.point.op == Op::kPingPong) scale = 0.5;
  if (IsStream(row.point.op)) scale = 1e-6;
  std::string line = absl::StrFormat(
      "%9d B  %-8s %-7s %10.2f [%.2f, %.2f]", row.point.bytes, row.level,
      row.name, q.median * scale, q.q25 * scale, q.q75 * scale);
  for (const Ratio& ratio : report.ratios) {
    if (ratio.subject != index) continue;
    absl::StrAppendFormat(
        &line, "   %.2f [%.2f, %.2f] x %s %s", ratio.quartiles.median,
        ratio.quartiles.q25, ratio.quartiles.q75,
        report.rows[ratio.yardstick].level, report.rows[ratio.yardstick].name);
  }
  // Each path has one of that name.
  if (row.level == "one") absl::StrAppend(&line, "   of ", row.yardstick_of);
  if (q.discarded > 0) {
    absl::StrAppendFormat(&line, "   (%d of %d rounds discarded%s%s)",
                          q.discarded, row.rounds.size(),
                          row.error.empty() ? "" : ": ", row.error);
  }
  return line + "\n";
}

}  // namespace

Quartiles QuartilesOf(absl::Span<const double> values) {
  // Failed rounds are NaN. They are counted and left out, not taken for zero.
  std::vector<double> usable;
  std::copy_if(values.begin(), values.end(), std::back_inserter(usable),
               Usable);
  std::sort(usable.begin(), usable.end());
  return {base::Quantile(usable, 0.5), base::Quantile(usable, 0.25),
          base::Quantile(usable, 0.75), static_cast<int>(usable.size()),
          static_cast<int>(values.size() - usable.size())};
}

Quartiles PairedRatios(absl::Span<const double> subject,
                       absl::Span<const double> yardstick) {
  std::vector<double> ratios;
  for (size_t i = 0; i < subject.size(); ++i) {
    ratios.push_back(Usable(subject[i]) && Usable(yardstick[i])
                         ? subject[i] / yardstick[i]
                         : std::numeric_limits<double>::quiet_NaN());
  }
  return QuartilesOf(ratios);
}

std::vector<double> Row::Primary() const {
  return Column(*this,
                IsStream(point.op) ? &Figures::bytes_per_s : &Figures::p50_us);
}

void AddRatios(Report* report) {
  for (size_t i = 0; i < report->rows.size(); ++i) {
    const Row& row = report->rows[i];
    if (row.yardstick()) continue;
    for (size_t j = 0; j < report->rows.size(); ++j) {
      const Row& other = report->rows[j];
      // Every subject of a path against each of the path's yardsticks at the
      // same point.
      if (other.yardstick_of != row.name || row.point != other.point) {
        continue;
      }
      report->ratios.push_back(
          {i, j, PairedRatios(row.Primary(), other.Primary())});
    }
  }
}

std::string ReportText(const Report& report) {
  std::string text;
  const Point* last = nullptr;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const Point& point = report.rows[i].point;
    if (last == nullptr || last->op != point.op || last->mode != point.mode) {
      absl::StrAppend(&text, last == nullptr ? "" : "\n", Heading(point));
    }
    last = &point;
    absl::StrAppend(&text, TextOf(report, i));
  }
  return text;
}

std::string ReportCsv(const Report& report) {
  std::string csv =
      "op,mode,bytes,level,name,iterations,outstanding,rounds,discarded,"
      "p50_us,p50_us_q25,p50_us_q75,p99_us,one_way_us,"
      "bytes_per_s,bytes_per_s_q25,bytes_per_s_q75,"
      "yardstick,ratio,ratio_q25,ratio_q75,yardstick_of\n";
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const Row& row = report.rows[i];
    const Quartiles p50 = QuartilesOf(Column(row, &Figures::p50_us));
    const Quartiles p99 = QuartilesOf(Column(row, &Figures::p99_us));
    const Quartiles rate = QuartilesOf(Column(row, &Figures::bytes_per_s));
    const bool ping_pong = row.point.op == Op::kPingPong;
    const std::string begin = absl::StrCat(
        OpName(row.point.op), ",", ModeName(row.point.mode), ",",
        row.point.bytes, ",", row.level, ",", row.name, ",", row.iterations,
        ",", row.outstanding, ",", row.rounds.size(), ",",
        QuartilesOf(row.Primary()).discarded, ",", Number(p50.median), ",",
        Number(p50.q25), ",", Number(p50.q75), ",", Number(p99.median), ",",
        ping_pong ? Number(p50.median / 2) : "", ",", Number(rate.median), ",",
        Number(rate.q25), ",", Number(rate.q75));
    bool written = false;
    for (const Ratio& ratio : report.ratios) {
      if (ratio.subject != i) continue;
      const Row& yardstick = report.rows[ratio.yardstick];
      absl::StrAppend(&csv, begin, ",", yardstick.level, " ", yardstick.name,
                      ",", Number(ratio.quartiles.median), ",",
                      Number(ratio.quartiles.q25), ",",
                      Number(ratio.quartiles.q75), ",\n");
      written = true;
    }
    if (!written) {
      absl::StrAppend(&csv, begin, ",,,,,", row.yardstick_of, "\n");
    }
  }
  return csv;
}

}  // namespace refract::transport_meter
