// A number on a command line: a text that NumberIn() accepts is, for later
// readers, a number of the range.
#include <glog/logging.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <cmath>

#include "base/number_range.h"
#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

std::string Case(double least, double most, absl::string_view text) {
  return Script()
      .U64(std::bit_cast<uint64_t>(least))
      .U64(std::bit_cast<uint64_t>(most))
      .Raw(text)
      .bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  return {{"whole", Case(0, 86400, "600")},
          {"point", Case(0, 1e9, "+2.50e2")},
          {"bound", Case(0, 1000, "1000.0000000000001")},
          {"small", Case(0, 1, "4.9e-324")},
          {"large", Case(-1e308, 1e308, "1e309")},
          {"none", Case(-1, 1, "-nan(0x1)")},
          {"without_end", Case(-1, 1, "-infinity")},
          {"sixteen", Case(0, 100, "0x1p3")},
          {"spaces", Case(0, 100, " 7\t")}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  fuzz::Input input(data, size);
  const auto least = std::bit_cast<double>(input.U64());
  const auto most = std::bit_cast<double>(input.U64());
  const std::string text(input.Take(size));
  if (!(std::isfinite(least) && std::isfinite(most) && least <= most)) return 0;
  const std::string wrong = base::NumberIn(least, most)(text);
  if (!wrong.empty()) {
    CHECK(wrong.rfind(text, 0) == 0);
    return 0;
  }
  // CLI11 reads options of this type by lexical_cast().
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value)) return 0;
  CHECK(least <= value && value <= most) << text << " is read as " << value;
  return 0;
}
