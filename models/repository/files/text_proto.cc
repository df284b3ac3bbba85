#include "models/repository/files/text_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace refract::models {
namespace {

constexpr int kMostNested = 32;

// Keeps the first error, and the unknown fields, about which Protobuf warns.
class Listener : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!text_.empty()) return;
    // Protobuf counts both from 0.
    text_ =
        absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    // Message type "inference.ModelConfig" has no field named "optimization".
    const std::vector<std::string> parts = absl::StrSplit(message, '"');
    if (parts.size() < 4 || parts[2] != " has no field named ") return;
    unknown_.push_back({line + 1, column + 1, parts[1], parts[3]});
  }
  const std::string& text() const { return text_; }
  std::vector<UnknownField>& unknown() { return unknown_; }

 private:
  std::string text_;
  std::vector<UnknownField> unknown_;
};

// `unknown`: null if unknown fields are errors.
absl::Status Parse(absl::string_view text, absl::string_view file,
                   google::protobuf::Message& message,
                   std::vector<UnknownField>* unknown) {
  Listener listener;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&listener);
  parser.SetRecursionLimit(kMostNested);
  parser.AllowUnknownField(unknown != nullptr);
  if (!parser.ParseFromString(std::string(text), &message)) {
    if (unknown != nullptr && !listener.unknown().empty()) {
      // Protobuf cannot skip every value of an unknown field, such as a list of
      // messages inside it. The field itself is the better answer.
      *unknown = std::move(listener.unknown());
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ",
        listener.text().empty() ? "does not parse" : listener.text()));
  }
  if (unknown != nullptr) *unknown = std::move(listener.unknown());
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message) {
  return Parse(text, file, message, nullptr);
}

absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message,
                       std::vector<UnknownField>& unknown) {
  return Parse(text, file, message, &unknown);
}

}  // namespace refract::models
