#ifndef REFRACT_PLACEMENT_CLUSTER_CSV_H_
#define REFRACT_PLACEMENT_CLUSTER_CSV_H_

// Comma-separated files with a header line, as the published cluster traces
// are: no quotes, one record a line.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::placement {

// A file in memory. Rows are numbered from 0. Every error is InvalidArgument
// and begins with "FILE:LINE, column NAME". Movable; views of fields live as
// long as the table.
class CsvTable {
 public:
  // InvalidArgument: no such file, no header, a column name twice, a row with
  // another number of fields than the header, or a field that begins with a
  // quote.
  static absl::StatusOr<CsvTable> Read(const std::string& path);
  static absl::StatusOr<CsvTable> Parse(std::string path, std::string text);

  const std::string& path() const { return path_; }
  int rows() const { return static_cast<int>(lines_.size()); }
  std::optional<int> Column(absl::string_view name) const;
  bool HasColumns(std::initializer_list<absl::string_view> names) const;

  absl::string_view Text(int row, int column) const;
  // A number between `least` and `most`. An empty field is an error.
  absl::StatusOr<int64_t> Int(int row, int column, int64_t least,
                              int64_t most) const;
  absl::StatusOr<double> Number(int row, int column, double least,
                                double most) const;

  // The error `what` about this field.
  absl::Status Wrong(int row, int column, absl::string_view what) const;
  // The error `what` about this row.
  absl::Status Wrong(int row, absl::string_view what) const;

 private:
  struct Range {
    size_t begin = 0;
    size_t size = 0;
  };

  std::string path_;
  std::string text_;
  std::vector<std::string> names_;
  absl::flat_hash_map<std::string, int> columns_;
  std::vector<Range> fields_;  // row by row
  std::vector<int> lines_;     // number in the file, of each row
};

// `text` as a field of a file that is written: in quotes (RFC 4180) if it holds
// a comma, a quote or an end of line. CsvTable refuses such fields.
std::string CsvField(absl::string_view text);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_CSV_H_
