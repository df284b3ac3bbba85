#ifndef REFRACT_MODELS_REPOSITORY_TEXT_PROTO_H_
#define REFRACT_MODELS_REPOSITORY_TEXT_PROTO_H_

// Messages in Protobuf's text format, from files that people write.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace refract::models {

// InvalidArgument says `file`, line and column, and what is wrong there, in
// Protobuf's own words. Messages nested deeper than 32 are refused.
absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message);

// A field that the text has and its message does not know.
struct UnknownField {
  int line = 0;  // from 1
  int column = 0;
  std::string message;  // "inference.ModelConfig"
  std::string field;
};

// The same, and goes on behind unknown fields, which are added to `unknown` in
// the order of the text. `message` may be incomplete when there are any.
absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message,
                       std::vector<UnknownField>& unknown);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_TEXT_PROTO_H_
