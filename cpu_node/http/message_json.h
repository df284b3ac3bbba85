#ifndef REFRACT_CPU_NODE_HTTP_MESSAGE_JSON_H_
#define REFRACT_CPU_NODE_HTTP_MESSAGE_JSON_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace refract::cpu_node {

// Formats a message as JSON like Triton: fields under their names in the
// schema, zeros and empty lists included, only submessages that are set, enums
// by name, and all integers as numbers (Protobuf's own JSON writes 64-bit
// integers as strings).
std::string MessageToJson(const google::protobuf::Message& message);

// With quotes and escapes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_MESSAGE_JSON_H_
