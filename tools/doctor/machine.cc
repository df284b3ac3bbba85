#include "tools/doctor/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace refract::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// The HN's default receive pool and the shared-memory transport's segments are
// about this large; with less memory a node does not start.
constexpr uint64_t kEnoughPinnedBytes = 256 * kMiB;

std::string ReadText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)),
                   std::istreambuf_iterator<char>());
  absl::StripAsciiWhitespace(&text);
  return text;
}

// Names of the entries of a folder, sorted; none if the folder is missing.
std::vector<std::string> Entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsNumbered(absl::string_view name, absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix) || name.empty()) return false;
  return std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

// "MemTotal:  16384 kB" → bytes; plain numbers as they are.
uint64_t FieldOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, ":")) {
      continue;
    }
    // The kernel writes kB for units of 1,024 bytes.
    const bool kilobytes = absl::EndsWith(line, "kB");
    uint64_t number = 0;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || !absl::SimpleAtoi(words[0], &number)) return 0;
    return kilobytes ? number * 1024 : number;
  }
  return 0;
}

void ReadCpu(const fs::path& root, Machine& machine) {
  const std::string text = ReadText(root / "proc/cpuinfo");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(field.first);
    const absl::string_view value = absl::StripAsciiWhitespace(field.second);
    if (key == "processor") ++machine.cpus;
    if (key == "model name" && machine.cpu.empty()) {
      machine.cpu = std::string(value);
    }
    // All processors have the same flags; the first is enough.
    if (key == "flags" && machine.vector_sets.empty()) {
      const std::vector<absl::string_view> flags = absl::StrSplit(value, ' ');
      for (const absl::string_view flag : {"avx2", "avx512f", "amx_tile"}) {
        if (std::count(flags.begin(), flags.end(), flag) > 0) {
          machine.vector_sets.emplace_back(flag);
        }
      }
    }
  }
}

// "32768K" → bytes.
uint64_t CacheSize(absl::string_view text) {
  const uint64_t unit = absl::ConsumeSuffix(&text, "K")   ? 1024
                        : absl::ConsumeSuffix(&text, "M") ? kMiB
                                                          : 1;
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number * unit : 0;
}

void ReadCaches(const fs::path& root, Machine& machine) {
  const fs::path caches = root / "sys/devices/system/cpu/cpu0/cache";
  for (const std::string& name : Entries(caches)) {
    if (!IsNumbered(name, "index") ||
        ReadText(caches / name / "type") == "Instruction") {
      continue;
    }
    // The largest cache of processor 0 is the last-level cache.
    machine.cache_bytes = std::max(machine.cache_bytes,
                                   CacheSize(ReadText(caches / name / "size")));
  }
}

void ReadMemory(const fs::path& root, Machine& machine) {
  const std::string text = ReadText(root / "proc/meminfo");
  machine.memory_bytes = FieldOf(text, "MemTotal");
  machine.available_bytes = FieldOf(text, "MemAvailable");
  machine.huge_pages = FieldOf(text, "HugePages_Total");
  machine.huge_page_bytes = FieldOf(text, "Hugepagesize");
  // "always [madvise] never"
  const std::string choices =
      ReadText(root / "sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = choices.find('[');
  const size_t close = choices.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    machine.transparent_huge_pages = choices.substr(open + 1, close - open - 1);
  }
}

void ReadGpus(const fs::path& root, Machine& machine) {
  const fs::path drivers = root / "proc/driver/nvidia/gpus";
  for (const std::string& name : Entries(drivers)) {
    const std::string text = ReadText(drivers / name / "information");
    std::string model = name;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      if (!absl::ConsumePrefix(&line, "Model:")) continue;
      model = std::string(absl::StripAsciiWhitespace(line));
    }
    machine.gpus.push_back(std::move(model));
  }
  if (!machine.gpus.empty()) return;
  // Containers often have the device file and no driver folder.
  for (const std::string& name : Entries(root / "dev")) {
    if (IsNumbered(name, "nvidia")) {
      machine.gpus.push_back(absl::StrCat("/dev/", name));
    }
  }
}

std::string MiBText(uint64_t bytes) {
  return bytes >= 1024 * kMiB
             ? absl::StrFormat("%.1f GiB", static_cast<double>(bytes) /
                                               static_cast<double>(1024 * kMiB))
             : absl::StrFormat("%.1f MiB", static_cast<double>(bytes) /
                                               static_cast<double>(kMiB));
}

Finding JudgeCpu(const Machine& machine) {
  Finding finding{.topic = "CPU"};
  finding.fact = absl::StrCat(machine.cpus, " x ",
                              machine.cpu.empty() ? "unknown CPU" : machine.cpu,
                              machine.vector_sets.empty() ? "" : ", ",
                              absl::StrJoin(machine.vector_sets, " "));
  const auto& sets = machine.vector_sets;
  if (std::count(sets.begin(), sets.end(), "avx2") == 0) {
    finding.ok = false;
    finding.cost =
        "no AVX2: look-ups and dense layers run several times slower";
  }
  return finding;
}

Finding JudgeHugePages(const Machine& machine) {
  Finding finding{.topic = "huge pages"};
  finding.fact = absl::StrCat(
      machine.huge_pages, " reserved of ", MiBText(machine.huge_page_bytes),
      ", transparent: ",
      machine.transparent_huge_pages.empty() ? "unknown"
                                             : machine.transparent_huge_pages);
  if (machine.huge_pages == 0 && machine.transparent_huge_pages != "always" &&
      machine.transparent_huge_pages != "madvise") {
    finding.ok = false;
    finding.cost =
        "random rows of large tables miss the TLB on every look-up; reserve "
        "with sysctl vm.nr_hugepages, or allow madvise";
  }
  return finding;
}

Finding JudgeMemlock(const Machine& machine,
                     std::optional<uint64_t> memlock_bytes) {
  Finding finding{.topic = "memlock"};
  finding.fact = memlock_bytes ? MiBText(*memlock_bytes) : "unlimited";
  // Without RDMA devices nothing is registered, so a small limit costs nothing.
  if (!machine.rdma.empty() && memlock_bytes &&
      *memlock_bytes < kEnoughPinnedBytes) {
    finding.ok = false;
    finding.cost =
        "RDMA memory cannot be registered; raise it (ulimit -l unlimited, "
        "LimitMEMLOCK= in a unit, or CAP_IPC_LOCK)";
  }
  return finding;
}

Finding JudgeRdma(const Machine& machine, const Build& build) {
  Finding finding{.topic = "RDMA"};
  if (machine.rdma.empty()) {
    finding.fact = "no device in /sys/class/infiniband";
    finding.ok = false;
    finding.cost =
        "nodes on different hosts talk over TCP, on one host over shared "
        "memory";
    return finding;
  }
  std::vector<std::string> devices;
  for (const RdmaPort& port : machine.rdma) {
    devices.push_back(absl::StrCat(port.name, " port ", port.port, " (",
                                   port.link_layer, ", ", port.rate, ", ",
                                   port.state, ")"));
  }
  finding.fact = absl::StrJoin(devices, ", ");
  if (std::none_of(machine.rdma.begin(), machine.rdma.end(),
                   [](const RdmaPort& d) { return d.active(); })) {
    finding.ok = false;
    finding.cost = "no port is active: it cannot be used";
  } else if (!build.verbs) {
    finding.ok = false;
    finding.cost =
        "this build has no verbs transport: nodes on different hosts talk over "
        "TCP";
  } else if (machine.rdma_device_files == 0) {
    finding.ok = false;
    finding.cost =
        "no /dev/infiniband/uverbs*: load ib_uverbs, or pass the device files "
        "into this container; until then nodes talk over TCP";
  }
  return finding;
}

}  // namespace

bool RdmaPort::active() const { return absl::StrContains(state, "ACTIVE"); }

Machine ReadMachine(absl::string_view root_text) {
  const fs::path root{std::string(root_text)};
  Machine machine;
  machine.kernel = ReadText(root / "proc/sys/kernel/osrelease");
  ReadCpu(root, machine);
  ReadCaches(root, machine);
  ReadMemory(root, machine);
  for (const std::string& name : Entries(root / "sys/devices/system/node")) {
    if (IsNumbered(name, "node")) ++machine.numa_nodes;
  }
  const fs::path devices = root / "sys/class/infiniband";
  for (const std::string& name : Entries(devices)) {
    for (const std::string& number : Entries(devices / name / "ports")) {
      const fs::path port = devices / name / "ports" / number;
      RdmaPort found{.name = name,
                     .state = ReadText(port / "state"),
                     .rate = ReadText(port / "rate"),
                     .link_layer = ReadText(port / "link_layer")};
      if (!absl::SimpleAtoi(number, &found.port)) continue;
      machine.rdma.push_back(std::move(found));
    }
  }
  for (const std::string& name : Entries(root / "dev/infiniband")) {
    if (IsNumbered(name, "uverbs")) ++machine.rdma_device_files;
  }
  ReadGpus(root, machine);
  return machine;
}

std::vector<Finding> Judge(const Machine& machine, const Build& build,
                           std::optional<uint64_t> memlock_bytes,
                           uint64_t shm_bytes) {
  std::vector<Finding> findings;
  findings.push_back({.topic = "kernel", .fact = machine.kernel});
  findings.push_back(JudgeCpu(machine));
  findings.push_back(
      {.topic = "memory",
       .fact = absl::StrCat(MiBText(machine.memory_bytes), ", ",
                            MiBText(machine.available_bytes), " available, ",
                            machine.numa_nodes, " NUMA node",
                            machine.numa_nodes == 1 ? "" : "s")});
  findings.push_back(JudgeHugePages(machine));
  findings.push_back(JudgeMemlock(machine, memlock_bytes));
  Finding shm{.topic = "/dev/shm", .fact = MiBText(shm_bytes) + " free"};
  if (shm_bytes < kEnoughPinnedBytes) {
    shm.ok = false;
    shm.cost =
        "the shared-memory transport may not get its segments; nodes on one "
        "host then need TCP (containers: --shm-size)";
  }
  findings.push_back(std::move(shm));
  findings.push_back(JudgeRdma(machine, build));
  Finding gpu{.topic = "GPU", .fact = absl::StrJoin(machine.gpus, ", ")};
  if (machine.gpus.empty()) {
    gpu.fact = "none";
    gpu.ok = false;
    gpu.cost = "GPU nodes run the dense part on the CPU";
  } else if (!build.cuda) {
    gpu.ok = false;
    gpu.cost = "GPU nodes of this build run the dense part on the CPU";
  }
  findings.push_back(std::move(gpu));
  return findings;
}

}  // namespace refract::tools
