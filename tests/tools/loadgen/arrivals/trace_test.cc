#include "tools/loadgen/arrivals/trace.h"

#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ServedModel& Model() {
  static const auto& model = *new ServedModel{
      .name = "m",
      .inputs = {
          {.name = "x", .dtype = base::DType::kFloat32, .dims = {-1, 2}},
          {.name = "ids", .dtype = base::DType::kInt64, .dims = {-1}}}};
  return model;
}

template <typename T>
std::string Data(std::vector<T> values) {
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(T)));
}

std::string Inputs() {
  return absl::StrCat(
      R"("inputs":[{"name":"ids","datatype":"INT64","shape":[3],"data":")",
      Data<int64_t>({5, 6, 7}),
      R"("},{"name":"x","datatype":"FP32","shape":[1,2],"data":")",
      Data<float>({0.5f, -1}), R"("}])");
}

absl::StatusOr<std::vector<TracedQuery>> Read(const std::string& text) {
  const std::string path = testing::TempDir() + "/trace.jsonl";
  std::ofstream(path) << text;
  std::vector<TracedQuery> queries;
  const absl::Status status =
      ReadTrace(path, Model(), [&](TracedQuery query) {
        queries.push_back(std::move(query));
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return queries;
}

TEST(TraceTest, ReadsSizesAndContents) {
  const auto queries = Read(absl::StrCat(
      R"({"refract_trace":1,"rate":0.5})", "\n",
      R"({"at_s":1.5,"items":200})", "\n\n",
      R"({"at_s":1.75,"model":"m",)", Inputs(), "}\n",
      R"({"at_s":2,"model":"another","items":0})", "\n",
      R"({"at_s":4,"model":"m","items":9,)", Inputs(), "}"));
  ASSERT_TRUE(queries.ok()) << queries.status();
  ASSERT_EQ(queries->size(), 3u);
  EXPECT_EQ((*queries)[0].at, absl::ZeroDuration());
  EXPECT_EQ((*queries)[0].items, 200);
  EXPECT_TRUE((*queries)[0].tensors.empty());
  const TracedQuery& second = (*queries)[1];
  EXPECT_EQ(second.at, absl::Milliseconds(250));
  EXPECT_EQ(second.items, 1);
  ASSERT_EQ(second.tensors.size(), 2u);
  EXPECT_THAT(second.tensors[0].view().as<float>(), ElementsAre(0.5f, -1));
  EXPECT_THAT(second.tensors[1].view().as<int64_t>(), ElementsAre(5, 6, 7));
  EXPECT_EQ((*queries)[2].items, 9);
}

TEST(TraceTest, NamesLineAndPlaceOfWhatIsWrong) {
  const std::string good = R"({"at_s":1,"items":2})";
  struct Case {
    std::string line, error;
  };
  const auto replaced = [](std::string text, const std::string& from,
                           const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return absl::StrCat(R"({"at_s":1,)", text, "}");
  };
  for (const auto& [line, error] : std::vector<Case>{
           {R"({"at_s":1,)", ":2: position"},
           {R"([1])", ":2: not a JSON object"},
           {R"({"at_s":1e999,"items":1})", ":2: a number is beyond 1.8e308"},
           {R"({"items":1})", ":2: at_s"},
           {R"({"at_s":-1,"items":1})", ":2: at_s"},
           {R"({"at_s":"1","items":1})", ":2: at_s"},
           {R"({"at_s":0.5,"items":1})", ":2: at_s is below"},
           {R"({"at_s":2})", ":2: items"},
           {R"({"at_s":2,"items":0})", ":2: items"},
           {R"({"at_s":2,"items":1.5})", ":2: items"},
           {R"({"at_s":2,"items":18446744073709551615})", ":2: items"},
           {R"({"at_s":2,"inputs":3})", ":2: inputs is no list"},
           {R"({"at_s":2,"inputs":[3]})", ":2: inputs holds"},
           {R"({"at_s":2,"inputs":[]})", ":2: input x is missing"},
           {replaced(Inputs(), "FP32", "FP16"), ":2: input x: datatype 'FP16'"},
           {replaced(Inputs(), "[3]", "[4]"), ":2: input ids: data has 24"},
           {replaced(Inputs(), "[3]", "[-3]"), ":2: input ids: shape [-3]"},
           {replaced(Inputs(), "\"data\":\"", "\"data\":\"*"),
            ":2: input ids: data is no base64"},
           {replaced(Inputs(), "[{", R"([{"name":"y"},{)"), ":2: 3 inputs"}}) {
    const auto queries = Read(absl::StrCat(good, "\n", line, "\n"));
    EXPECT_EQ(queries.status().code(), absl::StatusCode::kInvalidArgument)
        << line;
    EXPECT_THAT(std::string(queries.status().message()), HasSubstr(error))
        << line;
    EXPECT_THAT(std::string(queries.status().message()),
                HasSubstr("trace.jsonl"));
  }
  EXPECT_THAT(std::string(Read(R"({"refract_trace":2})").status().message()),
              HasSubstr(":1: refract_trace is 2, this program reads 1"));
  EXPECT_THAT(std::string(Read("").status().message()),
              HasSubstr("has no request to model m"));
  EXPECT_EQ(ReadTrace("/nowhere/at/all", Model(), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace refract::loadgen
