#ifndef REFRACT_BASE_COMMAND_LINE_REQUEST_MEMORY_FLAG_H_
#define REFRACT_BASE_COMMAND_LINE_REQUEST_MEMORY_FLAG_H_

#include <algorithm>
#include <cstddef>
#include <string>

#include "CLI/CLI.hpp"
#include "base/memory/usable_memory.h"
#include "base/process/byte_budget.h"

namespace refract::base {

// Adds the option, with `about` as its help. Sets `bytes` to its default: a
// quarter of the usable memory, because tables and weights need the rest, but
// enough for some requests of the longest kind.
inline void AddRequestMemoryFlag(CLI::App& app, size_t& bytes,
                                 const std::string& about) {
  bytes = std::max(static_cast<size_t>(UsableMemory() / 4), size_t{512} << 20);
  app.add_option(kRequestMemoryFlag, bytes, about)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(size_t{1} << 20, size_t{1} << 50))
      ->type_name("SIZE")
      ->default_str("a quarter of the memory, at least 512MiB");
}

}  // namespace refract::base

#endif  // REFRACT_BASE_COMMAND_LINE_REQUEST_MEMORY_FLAG_H_
