#include "partitioner/text_proto.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace refract::partitioner {
namespace {

// Keeps the first thing that the text parser has to say.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) {
      text_ = absl::StrCat("line ", line + 1, ": ", message);
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::Status ParseText(absl::string_view text, absl::string_view file,
                       google::protobuf::Message& message) {
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &message)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", error.text()));
  }
  return absl::OkStatus();
}

}  // namespace refract::partitioner
