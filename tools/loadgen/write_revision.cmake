# cmake -D SOURCE=… -D OUTPUT=… -D VERSION=… -P write_revision.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(
  COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12
    --exclude=*
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  set(revision "unknown")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
"#include \"tools/loadgen/revision.h\"

namespace refract::loadgen {

absl::string_view BuiltVersion() { return \"@VERSION@\"; }
absl::string_view BuiltRevision() { return \"@revision@\"; }

}  // namespace refract::loadgen
")
