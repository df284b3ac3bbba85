#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CommandLineTest, RunGivesTheScores) {
  const std::string model = AddModel();
  ASSERT_EQ(Refract({"partition", model, "--method", "heuristic", "--write"})
                .exit_status,
            0);
  for (const char* mode : {"whole", "split"}) {
    const std::string output = folder_ / (std::string(mode) + ".safetensors");
    const Ran ran = Refract({"run", model, "--mode", mode, "--inputs", Inputs(),
                             "--outputs", output});
    ASSERT_EQ(ran.exit_status, 0) << ran.err;
    const std::vector<float> scores = Scores(output);
    ASSERT_EQ(scores.size(), 3u);
    EXPECT_NEAR(scores[0], TinyModel::Score(1, 2, 0), 1e-6);
    EXPECT_NEAR(scores[1], TinyModel::Score(-0.5f, 0.25f, 3), 1e-6);
    EXPECT_NEAR(scores[2], TinyModel::Score(4, 0, 4), 1e-6);
  }
  EXPECT_EQ(Scores(folder_ / "whole.safetensors"),
            Scores(folder_ / "split.safetensors"));
}

TEST_F(CommandLineTest, RunSaysWhatRoundedWeightsChange) {
  // Rounds to an infinity in bfloat16, and times 0 is NaN then.
  const std::string model = AddModel(3.4028e38f);
  const base::Tensor dense =
      MakeTensor<float>(base::DType::kFloat32, {3, 2}, {1, 2, 0, 0.25f, 2, 0});
  const base::Tensor ids =
      MakeTensor<int64_t>(base::DType::kInt64, {3}, {0, 3, 4});
  const std::string inputs = folder_ / "x.safetensors";
  WriteTensors(inputs, {{"dense", &dense}, {"ids", &ids}});
  const Ran ran = Refract({"run", model, "--dense-weights", "bf16", "--inputs",
                           inputs, "--outputs", folder_ / "y.safetensors"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("output_0: bf16 weights change it by up to 0, on "
                        "average 0 (2 values of up to 1), and 1 become or "
                        "cease to be NaN or infinite\n"));
}

TEST_F(CommandLineTest, RunTakesSeveralPairs) {
  const std::string model = AddModel();
  const std::string a = folder_ / "a.out";
  const std::string b = folder_ / "b.out";
  const Ran ran =
      Refract({"run", model, "--inputs", Inputs("a.in"), "--outputs", a,
               "--inputs", Inputs("b.in"), "--outputs", b});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_EQ(Scores(a), Scores(b));
  EXPECT_THAT(Refused({"run", model, "--inputs", Inputs(), "--inputs", Inputs(),
                       "--outputs", a}),
              HasSubstr("2 --inputs but 1 --outputs"));
}

TEST_F(CommandLineTest, RunSaysWhatItDid) {
  const std::string model = AddModel();
  const std::string x = Inputs();
  const std::string y = folder_ / "y.safetensors";
  const Ran ran =
      Refract({"run", model, "--inputs", x, "--outputs", y, "--json", "-"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(x + " -> " + y + ": output_0 [3, 1]; "));
  const nlohmann::json json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["mode"], "whole");
  ASSERT_EQ(json["requests"].size(), 1u);
  const nlohmann::json& request = json["requests"][0];
  EXPECT_EQ(request["outputs"], y);
  EXPECT_EQ(request["tensors"], nlohmann::json::parse(
                                    R"([{"name": "output_0", "dtype": "float32",
                     "shape": [3, 1]}])"));
  EXPECT_GE(request["milliseconds"], 0);
}

TEST_F(CommandLineTest, ABadRequestCostsTheOthersNothing) {
  const std::string model = AddModel();
  const std::string y = folder_ / "y.safetensors";
  const Ran ran = Refract({"run", model, "--inputs", folder_ / "absent",
                           "--outputs", folder_ / "no", "--inputs", Inputs(),
                           "--outputs", y, "--json", folder_ / "run.json"});
  EXPECT_EQ(ran.exit_status, 2);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("1 of 2 requests failed"), HasSubstr("absent")));
  EXPECT_EQ(Scores(y).size(), 3u);
  const nlohmann::json json = ReadJson(folder_ / "run.json");
  EXPECT_THAT(json["requests"][0]["error"].get<std::string>(),
              HasSubstr("absent"));
  EXPECT_EQ(json["requests"][1]["outputs"], y);
}

TEST_F(CommandLineTest, RunNamesTheInputThatIsWrong) {
  const std::string model = AddModel();
  const auto refused = [&](const std::string& file) {
    return Refused(
        {"run", model, "--inputs", file, "--outputs", folder_ / "out"});
  };
  const std::string bad = folder_ / "bad.safetensors";
  const base::Tensor dense =
      MakeTensor<float>(base::DType::kFloat32, {1, 2}, {1, 2});
  const base::Tensor flat =
      MakeTensor<float>(base::DType::kFloat32, {2}, {1, 2});
  const base::Tensor wide =
      MakeTensor<float>(base::DType::kFloat32, {1, 3}, {1, 2, 3});
  const base::Tensor ids = MakeTensor<int64_t>(base::DType::kInt64, {1}, {1});
  const base::Tensor narrow =
      MakeTensor<int32_t>(base::DType::kInt32, {1}, {1});
  const base::Tensor outside =
      MakeTensor<int64_t>(base::DType::kInt64, {1}, {5});

  EXPECT_THAT(refused(folder_ / "absent.safetensors"),
              HasSubstr("absent.safetensors"));
  WriteTensors(bad, {{"dense", &dense}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("ids")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &ids}, {"more", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("more")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &narrow}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr("ids"), HasSubstr("int32")));
  WriteTensors(bad, {{"dense", &flat}, {"ids", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr("dense"), HasSubstr("1 dim")));
  WriteTensors(bad, {{"dense", &wide}, {"ids", &ids}});
  EXPECT_THAT(refused(bad), AllOf(HasSubstr(bad), HasSubstr("dense")));
  WriteTensors(bad, {{"dense", &dense}, {"ids", &outside}});
  EXPECT_THAT(refused(bad),
              AllOf(HasSubstr(bad), HasSubstr("table.weight"), HasSubstr("5")));
}

TEST_F(CommandLineTest, RunRefusesModesThatItCannotServe) {
  const std::string model = AddModel();
  const auto with = [&](const std::string& option, const std::string& value) {
    return Refused({"run", model, "--inputs", Inputs(), "--outputs",
                    folder_ / "out", option, value});
  };
  EXPECT_THAT(with("--mode", "magic"), HasSubstr("magic"));
  EXPECT_THAT(with("--mode", "split"), HasSubstr("refract partition"));
  EXPECT_THAT(with("--device", "tpu"), HasSubstr("tpu"));
}

TEST_F(CommandLineTest, OutputsThatCannotBeWrittenAreNamed) {
  const std::string model = AddModel();
  const Ran ran = Refract({"run", model, "--inputs", Inputs(), "--outputs",
                           "/no/such/folder/y.safetensors"});
  EXPECT_NE(ran.exit_status, 0);
  EXPECT_THAT(ran.err, HasSubstr("/no/such/folder/y.safetensors"));
  EXPECT_THAT(Refused({"inspect", model, "--json", "/no/such/folder/facts"}),
              HasSubstr("/no/such/folder/facts"));
}

}  // namespace
}  // namespace refract::tools
