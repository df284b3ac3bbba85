#include "runtime/torch/op_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <exception>
#include <filesystem>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"
#include "models/passes/complex_numbers.h"
#include "models/repository/files/copy_file.h"

namespace refract::runtime::aten {
namespace {

struct Registry {
  absl::Mutex mutex;
  std::vector<models::OpLibrary> libraries ABSL_GUARDED_BY(mutex);
};

Registry& GlobalRegistry() {
  static Registry& registry = *new Registry;
  return registry;
}

// Where the library lies that this process has loaded under `name`.
std::string FolderOfLoaded(const char* name) {
  struct Search {
    absl::string_view name;
    std::string folder;
  } search{name, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const std::filesystem::path path(info->dlpi_name);
        if (path.filename() != std::string(wanted.name)) return 0;
        wanted.folder = path.parent_path().string();
        return 1;
      },
      &search);
  return search.folder;
}

absl::Status Refused(absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": not an operator library: ", why.substr(0, why.find('\n'))));
}

absl::Status Open(const std::string& path, const std::string& file) {
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) {
    return absl::OkStatus();
  }
  std::string why = dlerror();
  // Libraries name the umbrella libtorch.so, which programs that use the CPU
  // library alone have not loaded; wheels leave finding it to Python.
  if (absl::StrContains(why, "libtorch.so")) {
    const std::string umbrella =
        absl::StrCat(FolderOfLoaded("libtorch_cpu.so"), "/libtorch.so");
    if (dlopen(umbrella.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) {
      if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) {
        return absl::OkStatus();
      }
      why = dlerror();
    }
  }
  if (absl::StrContains(why, "libtorch_python") ||
      absl::StrContains(why, "undefined symbol: Py") ||
      absl::StrContains(why, "undefined symbol: _Py")) {
    return Refused(path, absl::StrCat("it needs a Python interpreter; build "
                                      "it without Python bindings (",
                                      why, ")"));
  }
  return Refused(path, why);
}

}  // namespace

absl::Status LoadOpLibrary(const std::string& path) {
  // A path without a slash would make dlopen search the system's folders.
  const std::string file =
      absl::StrContains(path, '/') ? path : absl::StrCat("./", path);
  const auto content = models::DigestFile(file);
  if (!content.ok()) return Refused(path, content.status().message());
  const models::OpLibrary library{
      std::filesystem::path(file).filename().string(), content->digest};
  Registry& registry = GlobalRegistry();
  const absl::MutexLock lock(&registry.mutex);
  // The same file under another path would register its operators a second
  // time, which throws.
  for (const models::OpLibrary& loaded : registry.libraries) {
    if (loaded == library) return absl::OkStatus();
  }
  try {
    // The lock is held while the library's static initialisers run, so that
    // concurrent loads of one file open it once.
    REFRACT_RETURN_IF_ERROR(Open(path, file));
  } catch (const std::exception& error) {
    // Static initialisers that register an operator twice throw.
    return Refused(path, error.what());
  }
  registry.libraries.push_back(library);
  return absl::OkStatus();
}

std::vector<models::OpLibrary> LoadedOpLibraries() {
  Registry& registry = GlobalRegistry();
  const absl::MutexLock lock(&registry.mutex);
  return registry.libraries;
}

std::string LibraryOperatorOf(const models::Node& node) {
  if (models::IsRegion(node)) {
    const models::Argument* operators =
        node.FindArg(models::kRegionOperatorsArg);
    if (operators == nullptr) return "";
    const auto* names = std::get_if<models::StringList>(operators);
    if (names == nullptr || names->empty() ||
        absl::StartsWith(names->front(), "aten::") ||
        absl::StartsWith(names->front(), "prim::")) {
      return "";
    }
    return names->front();
  }
  if (absl::StartsWith(node.op, "aten.") || absl::StartsWith(node.op, "py.") ||
      models::IsComplexOp(node.op)) {
    return "";
  }
  return node.op;
}

absl::Status CheckOpLibraries(const models::Graph& graph,
                              absl::Span<const models::NodeId> nodes) {
  if (graph.op_libraries.empty()) return absl::OkStatus();
  const auto needy =
      std::find_if(nodes.begin(), nodes.end(), [&graph](models::NodeId id) {
        return !LibraryOperatorOf(graph.nodes[id]).empty();
      });
  if (needy == nodes.end()) return absl::OkStatus();
  const models::Node& node = graph.nodes[*needy];
  const std::vector<models::OpLibrary> loaded = LoadedOpLibraries();
  for (const models::OpLibrary& library : graph.op_libraries) {
    bool found = false;
    // The digest decides: another build of a library may compute other results.
    bool other_build = false;
    for (const models::OpLibrary& each : loaded) {
      found |= each.digest == library.digest;
      other_build |= each.name == library.name;
    }
    if (found) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "operator ", LibraryOperatorOf(node), " (node ", node.name,
        "): the model was imported "
        "with the operator library ",
        library.name,
        other_build ? ", of which another build is loaded; give the same file "
                      "with --op-library or import the model again"
                    : "; give that file with --op-library"));
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::aten
