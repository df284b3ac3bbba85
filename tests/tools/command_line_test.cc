#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CommandLineTest, HelpNamesEveryCommandAndExitsWithZero) {
  const Ran ran = Refract({"--help"});
  EXPECT_EQ(ran.exit_status, 0);
  EXPECT_THAT(ran.err, IsEmpty());
  for (const char* command :
       {"import", "inspect", "profile", "partition", "run", "doctor"}) {
    EXPECT_THAT(ran.out, HasSubstr(command));
  }
  const Ran partition = Refract({"partition", "--help"});
  EXPECT_EQ(partition.exit_status, 0);
  EXPECT_THAT(partition.out,
              AllOf(HasSubstr("refract partition"), HasSubstr("--method"),
                    HasSubstr("heuristic")));
}

TEST_F(CommandLineTest, BadUsageIsOneLineThatNamesTheCulprit) {
  EXPECT_THAT(Refused({}), HasSubstr("inspect"));
  EXPECT_THAT(Refused({"nonsense"}), HasSubstr("nonsense"));
  EXPECT_THAT(Refused({"inspect"}), HasSubstr("model"));
  EXPECT_THAT(Refused({"inspect", "a/b", "--frobnicate"}),
              HasSubstr("--frobnicate"));
  EXPECT_THAT(Refused({"run", "a/b"}), HasSubstr("--inputs"));
  EXPECT_THAT(Refused({"import", "x.pt2", "--name", "m"}), HasSubstr("--repo"));
  EXPECT_THAT(Refused({"inspect", folder_ / "repo/absent"}),
              HasSubstr("absent"));
}

// An empty folder would be the root of the file system, an empty file none.
TEST_F(CommandLineTest, EmptyValuesAreRefused) {
  const std::string model = AddModel();
  EXPECT_THAT(Refused({"inspect", model, "--json", ""}),
              HasSubstr("--json is empty"));
  EXPECT_THAT(Refused({"plan", "loan", ""}), HasSubstr("spec is empty"));
}

TEST_F(CommandLineTest, AnUnknownCommandFailsWithAHint) {
  EXPECT_THAT(
      Refused({"partiton", "models/m"}),
      AllOf(HasSubstr("'partiton'"), HasSubstr("did you mean partition?")));
  EXPECT_THAT(Refused({"insp", "--help"}), HasSubstr("did you mean inspect?"));
  EXPECT_THAT(Refused({"bench", "srving", "--help"}),
              AllOf(HasSubstr("refract bench: "), HasSubstr("serving")));
  EXPECT_THAT(Refused({"xyzzyxyzzy"}), HasSubstr("the commands are import"));
}

TEST_F(CommandLineTest, JsonAloneGoesToStdout) {
  const std::string model = AddModel();
  const std::vector<std::vector<std::string>> commands = {
      {"doctor"},
      {"inspect", model},
      {"list", folder_ / "repo"},
      {"partition", model},
      {"verify-repository", folder_ / "repo"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--json", "-"});
    const Ran ran = Refract(command);
    EXPECT_EQ(ran.exit_status, 0) << ran.err;
    EXPECT_TRUE(nlohmann::json::accept(ran.out)) << command[0] << ran.out;
    EXPECT_THAT(ran.err, testing::Not(IsEmpty())) << command[0];
  }
  EXPECT_FALSE(std::filesystem::exists("-"));
}

// No input of these commands exists: output files are checked first.
TEST_F(CommandLineTest, AFileThatCannotBeWrittenIsFoundBeforeTheWork) {
  const std::string bad = folder_ / "no/such/folder/x";
  const std::vector<std::vector<std::string>> commands = {
      {"bench", "serving", "--target", "x:1", "--model", "m", "--qps", "1",
       "--wait", "0.1", "--json"},
      {"bench", "transport", "--json"},
      {"bench", "transport", "--csv"},
      {"calibrate", "--output"},
      {"doctor", "--json"},
      {"import", "x.pt2", "--repo", "r", "--name", "m", "--json"},
      {"inspect", "a/b", "--json"},
      {"partition", "a/b", "--json"},
      {"partition", "a/b", "--report"},
      {"profile", "a/b", "--json"},
      {"profile", "a/b", "--output"},
      {"profile", "--hardware"},
      {"run", "a/b", "--inputs", "x", "--outputs", "y", "--json"},
      {"run", "a/b", "--inputs", "x.safetensors", "--outputs"}};
  for (std::vector<std::string> command : commands) {
    const std::string name = command[0] + " " + command.back();
    command.push_back(bad);
    const std::string error = Refused(command);
    EXPECT_THAT(error, HasSubstr(bad + " cannot be written")) << name;
    EXPECT_THAT(error, HasSubstr("No such file or directory")) << name;
  }
}

TEST_F(CommandLineTest, AFileIsLeftAsItIsWhenTheWorkFails) {
  const std::string old = folder_ / "old.json";
  std::ofstream(old) << "old";
  const std::string fresh = folder_ / "new.json";
  const std::string link = folder_ / "link.json";
  const std::string linked = folder_ / "linked.json";
  std::filesystem::create_symlink(linked, link);
  for (const std::string& file : {old, fresh, link}) {
    EXPECT_THAT(Refused({"inspect", folder_ / "absent", "--json", file}),
                HasSubstr("absent"));
  }
  std::ifstream file(old);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "old");
  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_FALSE(std::filesystem::exists(linked));
}

// The reader of a pipe ends when its writer goes: there is one, which writes.
TEST_F(CommandLineTest, APipeIsNotOpenedBeforeThereIsSomethingToWrite) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  pollfd reader = {.fd = open(pipe.c_str(), O_RDONLY | O_NONBLOCK),
                   .events = POLLIN,
                   .revents = 0};
  ASSERT_GE(reader.fd, 0);
  EXPECT_THAT(Refused({"inspect", folder_ / "absent", "--json", pipe}),
              HasSubstr("absent"));
  EXPECT_EQ(poll(&reader, 1, 0), 0) << "a writer came and went";
  close(reader.fd);
}

TEST_F(CommandLineTest, InspectTellsTheFactsThatTheShapesImply) {
  const std::string model = AddModel();
  const Ran ran = Refract({"inspect", model, "--json", folder_ / "facts.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("table.weight"), HasSubstr("aten.linear.default"),
                    HasSubstr("unknown operators: none"),
                    HasSubstr("split plan: none yet")));
  const nlohmann::json facts = ReadJson(folder_ / "facts.json");
  EXPECT_EQ(facts["name"], "tiny");
  EXPECT_EQ(facts["version"], 1);
  EXPECT_EQ(facts["batch_symbol"], "b");
  EXPECT_EQ(facts["inputs"][0]["name"], "dense");
  EXPECT_EQ(facts["inputs"][0]["shape"], "[b, 2]");
  EXPECT_EQ(facts["inputs"][1]["dtype"], "int64");
  EXPECT_EQ(facts["inputs"][1]["bytes"]["per_item"], 8);
  EXPECT_EQ(facts["outputs"][0]["name"], "output_0");
  EXPECT_EQ(facts["operators"].size(), 4u);
  ASSERT_EQ(facts["tables"].size(), 1u);
  EXPECT_EQ(facts["tables"][0]["rows"], 5);
  EXPECT_EQ(facts["tables"][0]["dim"], 2);
  EXPECT_EQ(facts["tables"][0]["bytes"], 40);
  EXPECT_EQ(facts["other_weight_bytes"], 4 * (4 + 1));
  // Linear 2·4, sigmoid 1.
  EXPECT_EQ(facts["work"]["flops"]["per_item"], 9);
  // Look-up: row 8, id 8, result 8. Concatenation 16 + 16, linear 16 + 4,
  // sigmoid 4 + 4; weights 20 per request.
  EXPECT_EQ(facts["work"]["bytes"]["per_item"], 24 + 32 + 20 + 8);
  EXPECT_EQ(facts["work"]["weight_bytes_per_request"], 20);
  EXPECT_EQ(facts["work"]["operators_not_counted"], 0);
  EXPECT_TRUE(facts["plan"].is_null());
}

TEST_F(CommandLineTest, InspectRefusesSizesThatTheModelLacks) {
  const std::string model = AddModel();
  EXPECT_THAT(Refused({"inspect", model, "--size", "steps=3"}),
              HasSubstr("steps"));
  EXPECT_THAT(Refused({"inspect", model, "--size", "steps"}),
              HasSubstr("NAME=N"));
}

TEST_F(CommandLineTest, ImportNamesFilesThatAreNoModels) {
  const auto refused = [&](const std::string& file) {
    return Refused({"import", file, "--repo", folder_ / "new", "--name", "m"});
  };
  EXPECT_THAT(refused(folder_ / "absent.pt2"), HasSubstr("absent.pt2"));
  std::ofstream(folder_ / "foreign.pt2") << "nothing of the kind";
  EXPECT_THAT(refused(folder_ / "foreign.pt2"), HasSubstr("foreign.pt2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new/m"));
}

TEST_F(CommandLineTest, DoctorReportsWithoutFailing) {
  const Ran ran = Refract({"doctor", "--json", folder_ / "doctor.json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("memory"), HasSubstr("memlock"),
                             HasSubstr("RDMA"), HasSubstr("GPU")));
  for (const auto& finding : ReadJson(folder_ / "doctor.json")) {
    EXPECT_EQ(finding["ok"].get<bool>(),
              finding["cost"].get<std::string>().empty())
        << finding;
  }
}

}  // namespace
}  // namespace refract::tools
