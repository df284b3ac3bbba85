#ifndef REFRACT_MODELS_REPOSITORY_FILES_TEXT_PROTO_H_
#define REFRACT_MODELS_REPOSITORY_FILES_TEXT_PROTO_H_

// Messages in Protobuf's text format, from files written by people.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace refract::models {

// InvalidArgument gives `file`, line and column, and the error there, in
// Protobuf's own words. Messages nested deeper than 32 are refused.
absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message);

// A field in the text that its message does not have.
struct UnknownField {
  int line = 0;  // counted from 1
  int column = 0;
  std::string message;  // "inference.ModelConfig"
  std::string field;
};

// As above, but unknown fields are added to `unknown`, in the order of the
// text, and parsing goes on. `message` may be incomplete then.
absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message,
                       std::vector<UnknownField>& unknown);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_FILES_TEXT_PROTO_H_
