// Runs a fuzz target without libFuzzer.
//
//   TARGET CORPUS_FOLDER [--mutations N] [--seed S]
//   TARGET CORPUS_FOLDER --write-seeds
//
// Feeds every file of the folder, then N variants of each with a few bytes
// changed, cut or repeated. Fails when the folder lacks a seed of the target or
// has another one of that name; --write-seeds puts them there instead.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()),
                         bytes.size());
}

std::string Mutate(std::string bytes, std::mt19937& random) {
  for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
    if (bytes.empty()) {
      bytes.push_back(static_cast<char>(random()));
      continue;
    }
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:  // off by one
        bytes[at] = static_cast<char>(bytes[at] + (random() % 2 == 0 ? 1 : -1));
        break;
      case 3:
        bytes.erase(at, 1 + random() % 8);
        break;
      default: {
        const std::string piece = bytes.substr(at, 1 + random() % 32);
        bytes.insert(random() % (bytes.size() + 1), piece);
      }
    }
  }
  return bytes;
}

int WriteSeeds(const fs::path& folder) {
  fs::create_directories(folder);
  for (const Seed& seed : Seeds()) {
    std::ofstream(folder / seed.name, std::ios::binary) << seed.bytes;
  }
  std::printf("%zu seeds in %s\n", Seeds().size(), folder.c_str());
  return 0;
}

int Replay(const fs::path& folder, int mutations, uint32_t seed) {
  std::map<std::string, std::string> files;
  if (fs::is_directory(folder)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      files[entry.path().filename()] = ReadFile(entry.path());
    }
  }
  int stale = 0;
  for (const Seed& wanted : Seeds()) {
    const auto found = files.find(wanted.name);
    if (found != files.end() && found->second == wanted.bytes) continue;
    std::printf("stale seed %s: run again with --write-seeds\n",
                wanted.name.c_str());
    ++stale;
  }
  if (files.empty()) std::printf("%s: no corpus\n", folder.c_str());
  for (const auto& [name, bytes] : files) {
    // Before it runs: a crash is in the last file named.
    std::printf("%s: %zu B, %d mutations with seed %u\n", name.c_str(),
                bytes.size(), mutations, seed);
    std::fflush(stdout);
    Run(bytes);
    std::seed_seq sequence(name.begin(), name.end());
    std::mt19937 of_name(sequence);
    std::mt19937 random(seed ^ of_name());
    for (int i = 0; i < mutations; ++i) Run(Mutate(bytes, random));
  }
  return stale == 0 && !files.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  std::string folder;
  int mutations = 0;
  uint32_t seed = std::random_device()();
  bool write = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--write-seeds") {
      write = true;
    } else if (argument == "--mutations" && i + 1 < argc) {
      mutations = std::atoi(argv[++i]);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else if (folder.empty() && argument.front() != '-') {
      folder = argument;
    } else {
      folder.clear();
      break;
    }
  }
  if (folder.empty()) {
    std::fprintf(stderr,
                 "usage: %s CORPUS_FOLDER [--write-seeds] [--mutations N] "
                 "[--seed S]\n",
                 argv[0]);
    return 2;
  }
  return write ? WriteSeeds(folder) : Replay(folder, mutations, seed);
}

}  // namespace
}  // namespace refract::fuzz

int main(int argc, char** argv) { return refract::fuzz::Main(argc, argv); }
