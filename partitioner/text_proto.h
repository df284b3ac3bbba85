#ifndef REFRACT_PARTITIONER_TEXT_PROTO_H_
#define REFRACT_PARTITIONER_TEXT_PROTO_H_

// Messages in Protobuf's text format, from files that people write.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace refract::partitioner {

// InvalidArgument says `file`, the line and what is wrong with it.
absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_TEXT_PROTO_H_
