#ifndef REFRACT_TOOLS_IMPORT_NON_FINITE_H_
#define REFRACT_TOOLS_IMPORT_NON_FINITE_H_

// Names the weights of a model that hold a NaN or an infinity, from the bytes
// that import reads for its copy and its digest in any case.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "models/import.h"

namespace refract::tools {

class NonFiniteWeights {
 public:
  explicit NonFiniteWeights(const models::ImportedModel& model);

  // `read`: bytes of the file `file`, which end at byte `end` of it.
  void Add(const std::string& file, uint64_t end,
           absl::Span<const std::byte> read);

  // One for each weight: a table with a NaN or an infinity, with the number of
  // such rows; another weight with a NaN (an infinity may be a mask).
  std::vector<std::string> Notes() const;

 private:
  struct Weight {
    std::string name;
    base::DType dtype = base::DType::kUnknown;
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
    uint64_t row_bytes = 0;  // 0: no table
    uint64_t found = 0;      // rows, or 1
    uint64_t first = 0;      // row
    uint64_t last = 0;       // row
  };

  std::map<std::string, std::vector<Weight>> files_;
};

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_IMPORT_NON_FINITE_H_
