#ifndef REFRACT_TOOLS_RUN_REFERENCE_H_
#define REFRACT_TOOLS_RUN_REFERENCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refract::tools {

struct ReferenceRun {
  std::string model_file;
  std::string tables_dir;  // empty: none
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;  // as many as inputs
  std::vector<std::string> op_libraries;
};

// Runs PyTorch on the original file in a separate process
// (models/zoo/reference.py). Shares no code with the engine, so it is an
// independent check.
//
// Interpreter: $REFRACT_PYTHON, else the one beside the LibTorch that Refract
// was built with, else python3. The script: under $REFRACT_SOURCE_DIR, else
// where Refract was installed, else where it was built.
//
// Waits for the process. One status per request: a request that PyTorch refuses
// (InvalidArgument) or that ends the process (Internal: a new process runs the
// later requests) costs no other request its outputs. Errors of the whole run:
// InvalidArgument with the process's own line when it refuses the model or its
// tables (exit 2), FailedPrecondition when interpreter or script is missing,
// Internal for other ends before the first request.
absl::StatusOr<std::vector<absl::Status>> RunReference(const ReferenceRun& run);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_RUN_REFERENCE_H_
