#include "tools/loadgen/output/hdr_histogram.h"

#include <algorithm>
#include <bit>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "zlib.h"

namespace refract::loadgen {
namespace {

// Names and layout as in HdrHistogram's AbstractHistogram.java. Three digits
// need 2,000 values of single-unit resolution, hence 2,048 sub-buckets, of
// which every bucket but the first uses the upper half.
constexpr int64_t kHighestNs = int64_t{3600} * 1'000'000'000;
constexpr int kDigits = 3;
constexpr int kSubBucketHalfMagnitude = 10;
constexpr int64_t kSubBucketHalf = 1 << kSubBucketHalfMagnitude;
constexpr int64_t kSubBucketMask = 2 * kSubBucketHalf - 1;

constexpr uint32_t kV2Cookie = 0x1c849303 | 0x10;
constexpr uint32_t kV2CompressedCookie = 0x1c849304 | 0x10;

size_t IndexOf(int64_t ns) {
  // Bucket b holds values whose top 11 bits begin at bit b, so a sub-bucket
  // spans 2^b ns: at most a thousandth of the value. Values below 2,048 are all
  // in bucket 0.
  const int bucket =
      std::bit_width(static_cast<uint64_t>(ns | kSubBucketMask)) -
      (kSubBucketHalfMagnitude + 1);
  const int64_t sub_bucket = ns >> bucket;
  return static_cast<size_t>(
      ((int64_t{bucket} + 1) << kSubBucketHalfMagnitude) + sub_bucket -
      kSubBucketHalf);
}

template <typename T>
void AppendBigEndian(T value, std::string& bytes) {
  for (int shift = 8 * (sizeof(T) - 1); shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift);
  }
}

// ZigZag LEB128: 7 bits a byte, small numbers of either sign first. A ninth
// byte has eight bits, which ends every 64-bit value there.
void AppendZigZag(int64_t value, std::string& bytes) {
  uint64_t rest = (static_cast<uint64_t>(value) << 1) ^
                  static_cast<uint64_t>(value >> 63);
  for (int i = 0; i < 8 && rest >= 0x80; ++i, rest >>= 7) {
    bytes += static_cast<char>(rest | 0x80);
  }
  bytes += static_cast<char>(rest);
}

std::string Compress(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string compressed(size, '\0');
  const int result = compress(reinterpret_cast<Bytef*>(compressed.data()),
                              &size,
                              reinterpret_cast<const Bytef*>(bytes.data()),
                              bytes.size());
  CHECK_EQ(result, Z_OK) << "zlib: out of memory";
  compressed.resize(size);
  return compressed;
}

}  // namespace

HdrHistogram::HdrHistogram() : counts_(IndexOf(kHighestNs) + 1) {}

void HdrHistogram::Record(absl::Duration value) {
  const int64_t ns =
      std::clamp<int64_t>(absl::ToInt64Nanoseconds(value), 0, kHighestNs);
  ++counts_[IndexOf(ns)];
  ++total_;
  max_ = std::max(max_, absl::Nanoseconds(ns));
}

std::string HdrHistogram::Encode() const {
  std::string counts;
  const size_t end =
      total_ == 0 ? 0 : IndexOf(absl::ToInt64Nanoseconds(max_)) + 1;
  for (size_t i = 0; i < end;) {
    if (counts_[i] != 0) {
      AppendZigZag(counts_[i++], counts);
      continue;
    }
    // Runs of empty entries are one negative number, their length.
    const size_t begin = i;
    while (i < end && counts_[i] == 0) ++i;
    AppendZigZag(-static_cast<int64_t>(i - begin), counts);
  }
  std::string payload;
  AppendBigEndian(kV2Cookie, payload);
  AppendBigEndian(static_cast<uint32_t>(counts.size()), payload);
  AppendBigEndian(uint32_t{0}, payload);  // normalizing index offset
  AppendBigEndian(uint32_t{kDigits}, payload);
  AppendBigEndian(uint64_t{1}, payload);  // lowest discernible value
  AppendBigEndian(static_cast<uint64_t>(kHighestNs), payload);
  AppendBigEndian(std::bit_cast<uint64_t>(1.0), payload);  // conversion ratio
  payload += counts;
  const std::string compressed = Compress(payload);
  std::string bytes;
  AppendBigEndian(kV2CompressedCookie, bytes);
  AppendBigEndian(static_cast<uint32_t>(compressed.size()), bytes);
  bytes += compressed;
  return absl::Base64Escape(bytes);
}

void WriteHistogramLog(absl::Span<const PlannedQuery> schedule,
                       absl::Span<const QueryResult> results,
                       absl::Duration warmup, absl::Time started,
                       std::ostream& out) {
  const absl::Time begin = started + warmup;
  out << "#[Logged by refract bench serving]\n"
      << "#[Histogram log format version 1.3]\n"
      << absl::StreamFormat(
             "#[StartTime: %.3f (seconds since epoch), %s]\n",
             absl::ToDoubleSeconds(begin - absl::UnixEpoch()),
             absl::FormatTime(begin, absl::UTCTimeZone()))
      << "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\","
         "\"Interval_Compressed_Histogram\"\n";
  size_t i = 0;
  // A histogram per second of scheduled send times, not of answers: a stall
  // then shows in the second that it hit.
  while (i < schedule.size() && schedule[i].at < warmup) ++i;
  for (int64_t second = 0; i < schedule.size(); ++second) {
    const absl::Duration end = warmup + absl::Seconds(second + 1);
    HdrHistogram histogram;
    for (; i < schedule.size() && schedule[i].at < end; ++i) {
      if (results[i].dropped || results[i].code != absl::StatusCode::kOk) {
        continue;
      }
      histogram.Record(results[i].latency);
    }
    // The greatest value in milliseconds, as readers expect of nanoseconds.
    out << absl::StreamFormat("%d.000,1.000,%.3f,%s\n", second,
                              absl::ToDoubleMilliseconds(histogram.max()),
                              histogram.Encode());
  }
}

}  // namespace refract::loadgen
