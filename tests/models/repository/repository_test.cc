#include "models/repository/repository.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "models/torch_export/import.h"
#include "proto/graph.pb.h"
#include "tests/models/repository/repository_fixture.h"
#include "tests/models/testing/pt2_archive.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Pt2Archive;
using testing::ReadFile;
using testing::TempDir;

TEST_F(RepositoryTest, AddsAndLoadsVersions) {
  const ImportedModel model = Import();
  EXPECT_EQ(Add(model), 1);
  EXPECT_EQ(Add(model, /*link=*/true), 2);
  EXPECT_THAT(*repository_.ListModels(), ElementsAre("ctr"));
  EXPECT_THAT(*repository_.ListVersions("ctr"), ElementsAre(1, 2));
  EXPECT_EQ(ReadFile(File("1/model.pt2")), ReadFile(dir_.File("src/m.pt2")));
  EXPECT_EQ(ReadFile(File("1/tables/e.safetensors")),
            ReadFile(dir_.File("tables/e.safetensors")));
  EXPECT_TRUE(fs::equivalent(File("2/model.pt2"), dir_.File("src/m.pt2")));
  EXPECT_FALSE(fs::equivalent(File("1/model.pt2"), dir_.File("src/m.pt2")));

  const auto loaded = repository_.Load("ctr", 1);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->version, 1);
  EXPECT_EQ((*loaded)->folder, File("1"));
  EXPECT_EQ((*loaded)->source_file, File("1/model.pt2"));
  EXPECT_EQ((*loaded)->config_text, ReadFile(File("config.pbtxt")));
  EXPECT_EQ((*loaded)->graph.nodes.size(), model.graph.nodes.size());
  EXPECT_FALSE((*loaded)->plan.has_value());
  const auto table = (*loaded)->weights->Get("e.weight");
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(reinterpret_cast<const float*>(table->data)[39], 39.0f);
  EXPECT_TRUE((*loaded)->weights->Get("l.bias").ok());

  const auto newest = repository_.Load("ctr");
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ((*newest)->version, 2);
  EXPECT_EQ((*newest)->digest, (*loaded)->digest);
}

TEST_F(RepositoryTest, LeavesNothingBesideTheVersions) {
  Add(Import());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(File(""))) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("1", "config.pbtxt"));
  struct stat info;
  ASSERT_EQ(stat(File("1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755) << "servers run as other users";
}

TEST_F(RepositoryTest, DigestTellsModelsApart) {
  ImportedModel model = Import();
  const base::Digest digest = ModelDigest(model.graph, model.weights);
  EXPECT_EQ(ModelDigest(model.graph, model.weights), digest);
  model.graph.nodes.back().name += "x";
  EXPECT_FALSE(ModelDigest(model.graph, model.weights) == digest);
  model = Import();
  model.weights.files[0].digest.low ^= 1;
  EXPECT_FALSE(ModelDigest(model.graph, model.weights) == digest);

  Add(Import());
  const base::Digest first = (*repository_.Load("ctr"))->digest;
  const ImportedModel other = Import();
  // One value of the table.
  std::string bytes = ReadFile(dir_.File("tables/e.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  dir_.Write("tables/e.safetensors", bytes);
  Add(other);
  EXPECT_FALSE((*repository_.Load("ctr"))->digest == first);
}

TEST_F(RepositoryTest, KeepsAnExistingConfigThatFits) {
  Add(Import());
  const std::string text =
      absl::StrCat(ReadFile(File("config.pbtxt")),
                   "parameters { key: 'out_of_range_ids.e.weight' "
                   "value { string_value: 'zero' } }");
  dir_.Write("repo/ctr/config.pbtxt", text);
  Add(Import(/*rows=*/20));  // a table may grow
  EXPECT_EQ(ReadFile(File("config.pbtxt")), text);
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->config.id_policies.at("e.weight"), IdPolicy::kZeroRow);

  // A new version must fit the file, else it is not added.
  ImportedModel renamed = Import();
  renamed.graph.output_names = {"other"};
  const auto status =
      repository_.AddVersion("ctr", renamed, AddOptions()).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("config.pbtxt: output: the model's other"));
  EXPECT_THAT(*repository_.ListVersions("ctr"), ElementsAre(1, 2));
}

TEST_F(RepositoryTest, FailedImportLeavesNothing) {
  ImportedModel model = Import();
  fs::remove(dir_.File("tables/e.safetensors"));
  auto status = repository_.AddVersion("ctr", model, AddOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("e.safetensors"));
  EXPECT_FALSE(fs::exists(File("")));

  model = Import();
  dir_.Write("tables/e.safetensors",
             ReadFile(dir_.File("tables/e.safetensors")) + "x");
  status = repository_.AddVersion("ctr", model, AddOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("e.safetensors: had "));
  EXPECT_FALSE(fs::exists(File("")));
}

TEST_F(RepositoryTest, TablesOfOneNameFromTwoFoldersAreKeptApart) {
  ImportedModel model = Import();
  fs::create_directories(dir_.File("more"));
  fs::copy_file(dir_.File("tables/e.safetensors"),
                dir_.File("more/e.safetensors"));
  WeightEntry entry = model.weights.entries[0];
  entry.name = "unused";
  entry.file = dir_.File("more/e.safetensors");
  model.weights.entries.push_back(entry);
  model.weights.files.push_back(
      {entry.file, fs::file_size(entry.file), base::Digest{}});
  Add(model);
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(fs::exists(File("1/tables/1_e.safetensors")));
}

TEST_F(RepositoryTest, ConcurrentImportsTakeDifferentVersions) {
  const ImportedModel model = Import();
  Add(model);
  std::vector<std::thread> threads;
  std::vector<int64_t> versions(4);
  for (int64_t& version : versions) {
    threads.emplace_back([&] { version = Add(model); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(versions, ::testing::UnorderedElementsAre(2, 3, 4, 5));
  for (int64_t version : versions) {
    EXPECT_TRUE(repository_.Load("ctr", version).ok());
  }
}

TEST_F(RepositoryTest, UnknownNamesAreNotFound) {
  EXPECT_EQ(repository_.ListModels().status().code(),
            absl::StatusCode::kNotFound);
  Add(Import());
  for (const auto& status :
       {repository_.Load("other").status(), repository_.Load("ctr", 7).status(),
        repository_.ListVersions("other").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  }
  for (absl::string_view name : {"", "../ctr", ".ctr", "a/b", "a b", "-x"}) {
    EXPECT_EQ(repository_.Load(name).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
    EXPECT_EQ(
        repository_.AddVersion(name, Import(), AddOptions()).status().code(),
        absl::StatusCode::kInvalidArgument)
        << name;
  }
  // Folders that are no versions.
  for (const char* name : {"01", "-3", "x", "99999999999999999999", ".tmp-q"}) {
    fs::create_directories(File(name));
  }
  EXPECT_THAT(*repository_.ListVersions("ctr"), ElementsAre(1));
}

TEST_F(RepositoryTest, NamesTheDamagedFile) {
  Add(Import());
  const std::string graph = ReadFile(File("1/graph.pb"));
  auto message = [&](absl::StatusCode code) {
    const auto status = repository_.Load("ctr").status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  // Stored messages with one field changed.
  auto edit = [&](const std::function<void(proto::StoredModel&)>& change) {
    proto::StoredModel stored;
    ASSERT_TRUE(stored.ParseFromString(graph));
    stored.clear_digest();
    change(stored);
    dir_.Write("repo/ctr/1/graph.pb", stored.SerializeAsString());
  };
  dir_.Write("repo/ctr/1/graph.pb", graph.substr(0, graph.size() / 2));
  EXPECT_THAT(message(kInvalid), HasSubstr("1/graph.pb: is damaged"));
  dir_.Write("repo/ctr/1/graph.pb", "");
  EXPECT_THAT(message(kInvalid), HasSubstr("1/graph.pb: format version 0"));
  edit([](auto& m) { m.set_format_version(2); });
  EXPECT_THAT(message(kInvalid), HasSubstr("format version 2, this reads"));
  edit([](auto& m) { m.mutable_graph()->mutable_nodes(0)->clear_op(); });
  EXPECT_THAT(message(kInvalid), HasSubstr("1/graph.pb: graph: node"));
  edit([](auto& m) {
    m.mutable_weights()->mutable_files(0)->set_file("../../x");
  });
  EXPECT_THAT(message(kInvalid), HasSubstr("../../x is not in its folder"));
  edit([](auto& m) { m.set_source_file("/etc/passwd"); });
  EXPECT_THAT(message(kInvalid), HasSubstr("source file"));
  edit([](auto& m) {
    m.mutable_weights()->mutable_entries(0)->set_sizes(1, 3);
  });
  EXPECT_THAT(message(kInvalid), HasSubstr("unlike the graph's value"));
  edit(
      [](auto& m) { m.mutable_weights()->mutable_entries(0)->set_name("zz"); });
  EXPECT_THAT(message(absl::StatusCode::kNotFound), HasSubstr("graph.pb"));
  dir_.Write("repo/ctr/1/graph.pb", graph);

  const std::string table = ReadFile(File("1/tables/e.safetensors"));
  dir_.Write("repo/ctr/1/tables/e.safetensors", table + "x");
  EXPECT_THAT(message(kInvalid), HasSubstr("e.safetensors: has "));
  fs::remove(File("1/tables/e.safetensors"));
  EXPECT_THAT(message(absl::StatusCode::kNotFound), HasSubstr("e.safetensors"));
  dir_.Write("repo/ctr/1/tables/e.safetensors", table);

  dir_.Write("repo/ctr/1/split_plan.pb", "garbage");
  EXPECT_THAT(message(kInvalid), HasSubstr("1/split_plan.pb"));
  fs::remove(File("1/split_plan.pb"));

  dir_.Write("repo/ctr/config.pbtxt", "name: \"ctr\"\nnonsense: 3\n");
  EXPECT_THAT(message(kInvalid), HasSubstr("config.pbtxt: line 2"));
  fs::remove(File("config.pbtxt"));
  EXPECT_THAT(message(absl::StatusCode::kNotFound), HasSubstr("config.pbtxt"));
}

// Writes `text` over the file's bytes, in place: same inode, same size.
void Overwrite(const std::string& path, size_t offset, absl::string_view text) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << text;
  ASSERT_TRUE(file.flush().good());
}

TEST_F(RepositoryTest, RefusesAWeightFileThatWasReplacedInPlace) {
  Add(Import());
  const std::string table = File("1/tables/e.safetensors");
  const size_t last = fs::file_size(table) - 1;
  const std::string before = ReadFile(table);
  Overwrite(table, last, std::string(1, static_cast<char>(before[last] ^ 1)));
  Age(table);
  for (int start = 0; start < 2; ++start) {
    const auto status = repository_.Load("ctr").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("1/tables/e.safetensors: differs from the file"));
  }
  Overwrite(table, last, before.substr(last));
  Age(table);
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings, IsEmpty());
}

TEST_F(RepositoryTest, RefusesAGraphThatIsValidButAnother) {
  Add(Import());
  const std::string bytes = ReadFile(File("1/graph.pb"));
  proto::StoredModel stored;
  ASSERT_TRUE(stored.ParseFromString(bytes));
  proto::Node& node = *stored.mutable_graph()->mutable_nodes(0);
  node.set_name(node.name() + "x");
  dir_.Write("repo/ctr/1/graph.pb", stored.SerializeAsString());
  EXPECT_THAT(std::string(repository_.Load("ctr").status().message()),
              HasSubstr("1/graph.pb: differs from what was imported"));
  // Older imports wrote no digest.
  stored.clear_digest();
  dir_.Write("repo/ctr/1/graph.pb", stored.SerializeAsString());
  EXPECT_TRUE(repository_.Load("ctr").ok());
}

TEST_F(RepositoryTest, ReadsAFileForItsDigestOnlyOnce) {
  Add(Import());
  const std::string table = File("1/tables/e.safetensors");
  const auto read = [&](Verification verification) {
    const auto loaded =
        repository_.Load("ctr", 0, {.verification = verification});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? (*loaded)->verified_bytes : 0;
  };
  // Import has noted its files.
  EXPECT_EQ(read(Verification::kNoted), 0);
  Age(table);
  EXPECT_EQ(read(Verification::kNoted), fs::file_size(table));
  EXPECT_EQ(read(Verification::kNoted), 0);
  // A copy is another inode.
  fs::copy_file(table, table + ".copy");
  fs::last_write_time(table + ".copy", fs::last_write_time(table));
  fs::rename(table + ".copy", table);
  EXPECT_EQ(read(Verification::kNoted), fs::file_size(table));
  EXPECT_EQ(read(Verification::kNoted), 0);
  const uint64_t all =
      fs::file_size(table) + fs::file_size(File("1/model.pt2"));
  EXPECT_EQ(read(Verification::kFull), all);
  // Notes that make no sense are as good as none.
  for (const char* notes : {"", "{", "[]", "{\"tables/e.safetensors\":3}",
                            "{\"tables/e.safetensors\":{\"inode\":\"x\"}}"}) {
    dir_.Write("repo/ctr/1/.verified.json", notes);
    EXPECT_EQ(read(Verification::kNoted), all) << notes;
  }
}

TEST_F(RepositoryTest, SaysWhenNotesCannotBeKept) {
  Add(Import());
  fs::remove(File("1/.verified.json"));
  fs::create_directories(File("1/.verified.json"));  // as good as read-only
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings,
              ElementsAre(HasSubstr("1/.verified.json: cannot be written")));
}

TEST_F(RepositoryTest, NotesVouchForNoOtherDigest) {
  Add(Import());
  // graph.pb of a version whose table had other values.
  proto::StoredModel stored;
  ASSERT_TRUE(stored.ParseFromString(ReadFile(File("1/graph.pb"))));
  stored.clear_digest();
  for (proto::WeightFile& file : *stored.mutable_weights()->mutable_files()) {
    if (file.file() == "tables/e.safetensors") {
      file.mutable_digest()->set_low(file.digest().low() ^ 1);
    }
  }
  dir_.Write("repo/ctr/1/graph.pb", stored.SerializeAsString());
  EXPECT_THAT(std::string(repository_.Load("ctr").status().message()),
              HasSubstr("e.safetensors: differs"));
}

TEST_F(RepositoryTest, VersionsWithoutDigestsLoadWithOneWarning) {
  Add(Import());
  proto::StoredModel stored;
  ASSERT_TRUE(stored.ParseFromString(ReadFile(File("1/graph.pb"))));
  stored.clear_digest();
  for (proto::WeightFile& file : *stored.mutable_weights()->mutable_files()) {
    file.clear_digest();
  }
  dir_.Write("repo/ctr/1/graph.pb", stored.SerializeAsString());
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings,
              ElementsAre(HasSubstr("imported without digests")));
}

TEST_F(RepositoryTest, RefusesThePlanOfAnotherModel) {
  Add(Import());
  const auto loaded = repository_.Load("ctr");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  SplitPlan plan;
  plan.model = (*loaded)->digest;
  plan.method = "all-cn";
  plan.stages.assign((*loaded)->graph.nodes.size(), Stage::kCnPre);
  ComputeCrossings((*loaded)->graph, plan);
  ASSERT_TRUE(SavePlan((*loaded)->graph, plan, File("1/split_plan.pb")).ok());
  const auto with_plan = repository_.Load("ctr");
  ASSERT_TRUE(with_plan.ok()) << with_plan.status();
  ASSERT_TRUE((*with_plan)->plan.has_value());
  EXPECT_EQ((*with_plan)->plan->method, "all-cn");

  plan.model.low ^= 1;
  ASSERT_TRUE(SavePlan((*loaded)->graph, plan, File("1/split_plan.pb")).ok());
  const auto status = repository_.Load("ctr").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("split_plan.pb"));
  // A command that replaces the plan can still load the model.
  const auto without = repository_.Load("ctr", 0, {.with_plan = false});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE((*without)->plan.has_value());
}

int64_t ResidentBytes(absl::string_view field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = -1;
  while (status >> word) {
    if (word == field) status >> kib;
  }
  return kib * 1024;
}

TEST_F(RepositoryTest, LargeTablesTakeLittleMemory) {
  // 512 MiB of zeros that take no disk: the header, then a hole.
  constexpr int64_t kRows = int64_t{1} << 25;
  ImportedModel model = Import();
  std::string header =
      absl::StrCat(R"({"e.weight":{"dtype":"F32","shape":[)", kRows,
                   R"(,4],"data_offsets":[0,)", kRows * 16, "]}}");
  header.resize(120, ' ');
  const std::string path = dir_.Write(
      "tables/e.safetensors", std::string("\x78\0\0\0\0\0\0\0", 8) + header);
  fs::resize_file(path, 128 + kRows * 16);
  Pt2Archive archive;
  archive.SetTensor("p_e_weight", 7,
                    {Pt2Archive::Size(kRows), Pt2Archive::Size(4)});
  archive.weights["config"]["e.weight"] =
      Pt2Archive::Payload("weight_0", {kRows, 4}, {0, 1}, 0);

  const int64_t before = ResidentBytes("VmRSS:");
  auto large = ImportTorchExport(dir_.Write("src/l.pt2", archive.Bytes()));
  ASSERT_TRUE(large.ok()) << large.status();
  ImportOptions options;
  options.tables_dir = dir_.File("tables");
  ASSERT_TRUE(BindTables(options, *large).ok());
  Add(*large, /*link=*/true);
  ASSERT_TRUE(repository_.Load("ctr").ok());
  // The peak, which pages dropped since are part of.
  EXPECT_LT(ResidentBytes("VmHWM:") - before, int64_t{64} << 20);
}

TEST(ModelPathTest, SplitsWhatCommandLinesGive) {
  const TempDir dir;
  auto parsed = ParseModelPath("/repo/ctr");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->repository, "/repo");
  EXPECT_EQ(parsed->name, "ctr");
  EXPECT_EQ(parsed->version, 0);
  parsed = ParseModelPath("/absent/");
  ASSERT_TRUE(parsed.ok());
  const auto absent = Repository(parsed->repository).Load(parsed->name);
  EXPECT_THAT(absent.status().message(), Not(HasSubstr("//")));
  EXPECT_THAT(absent.status().message(), HasSubstr("/absent"));
  parsed = ParseModelPath("repo/ctr/12/");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->repository, "repo");
  EXPECT_EQ(parsed->name, "ctr");
  EXPECT_EQ(parsed->version, 12);
  // A model that is named like a version.
  dir.Write("repo/7/config.pbtxt", "");
  parsed = ParseModelPath(dir.File("repo/7"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->name, "7");
  EXPECT_EQ(parsed->version, 0);
  for (absl::string_view path : {"", "ctr", "/", "repo/..", "repo/c t r"}) {
    EXPECT_EQ(ParseModelPath(path).status().code(),
              absl::StatusCode::kInvalidArgument)
        << path;
  }
}

}  // namespace
}  // namespace refract::models
