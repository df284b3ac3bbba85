#ifndef REFRACT_TOOLS_TRANSPORT_METER_REPORT_H_
#define REFRACT_TOOLS_TRANSPORT_METER_REPORT_H_

// The results of a run, and their forms: text, CSV.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/transport_meter/recorder.h"
#include "tools/transport_meter/subject.h"

namespace refract::transport_meter {

// Quartiles of values of which some may be unusable. (base/quantile.h: of only
// usable values.)
struct Quartiles {
  double median = 0;
  double q25 = 0;
  double q75 = 0;
  int used = 0;
  int discarded = 0;  // not finite, or not above 0
};

// Over the usable values (finite and above 0); all NaN if no value is usable.
Quartiles QuartilesOf(absl::Span<const double> values);

// Quartiles of subject[i] ÷ yardstick[i]. A pair with one unusable value is
// discarded: both values come from the same round, and only this keeps the
// machine's drift out of the ratio. The spans are of one length.
Quartiles PairedRatios(absl::Span<const double> subject,
                       absl::Span<const double> yardstick);

// One subject at one point, in every round.
struct Row {
  Point point;
  std::string level;  // "raw", "perftest", "path", "message" or "channel"
  std::string name;   // "socket", "ib_send_lat", …; "shm", "tcp", …
  // Name of the path that this row is a yardstick of; empty: not a yardstick.
  std::string yardstick_of;
  int iterations = 0;
  int outstanding = 0;
  std::vector<Figures> rounds;
  std::string error;  // the first error, if a round failed

  bool yardstick() const { return !yardstick_of.empty(); }
  // The values for ratios, per round: p50_us, or bytes_per_s for streams.
  std::vector<double> Primary() const;
};

// rows[subject] ÷ rows[yardstick] at the same point.
struct Ratio {
  size_t subject = 0;
  size_t yardstick = 0;
  Quartiles quartiles;
};

struct Report {
  std::vector<int> cpus;  // of the initiator and the responder
  std::vector<Row> rows;
  std::vector<Ratio> ratios;
};

// Fills `ratios`: every row with each yardstick of its path at the same point.
void AddRatios(Report* report);

// For people: rows by point, with times in µs and rates in MB/s (10⁶).
std::string ReportText(const Report& report);

// For plots: one line per row and yardstick, with a header line. Fields that do
// not apply are empty; one_way_us is half of the round trip's median, as
// perftest reports it.
std::string ReportCsv(const Report& report);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_REPORT_H_
