#ifndef REFRACT_TOOLS_RUN_REFERENCE_H_
#define REFRACT_TOOLS_RUN_REFERENCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace refract::tools {

struct ReferenceRun {
  std::string model_file;
  std::string tables_dir;  // empty: none
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;  // as many as inputs
  std::vector<std::string> op_libraries;
};

// Runs PyTorch on the original file in a process of its own
// (models/zoo/reference.py). Shares no code with the engine: that is its worth.
//
// Interpreter: $REFRACT_PYTHON, else the one beside the LibTorch that Refract
// was built with, else python3. The script: under $REFRACT_SOURCE_DIR, else
// where Refract was installed, else where it was built.
//
// Waits for the process. InvalidArgument with its own line when it refuses its
// input (exit 2), FailedPrecondition when interpreter or script is missing,
// Internal for other ends.
absl::Status RunReference(const ReferenceRun& run);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_RUN_REFERENCE_H_
