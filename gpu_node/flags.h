#ifndef REFRACT_GPU_NODE_FLAGS_H_
#define REFRACT_GPU_NODE_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/command_line/model_control_flags.h"
#include "base/log/log_flags.h"
#include "base/tls/tls_contexts.h"
#include "metrics/flags.h"

namespace refract::gpu_node {

// The parsed command line of refract-gpu-node.
struct Flags {
  std::string model_repository;
  std::vector<std::string> op_libraries;  // loaded before the models
  std::string device = "auto";
  std::string host = "127.0.0.1";
  std::string transport = "auto";  // auto, shm, tcp or verbs
  std::string rdma_device;         // empty: any device
  std::string topology = "auto";   // auto, off or an override file
  int port = 8100;
  int instances = 0;  // 0: one per CPU, on a GPU one
  int max_queue = 256;
  std::optional<int64_t> batching_window_us;
  int64_t max_batch = 16384;
  bool max_batch_given = false;
  int64_t max_size = 1024;
  double weight_memory_mib = 0;
  bool no_isolation = false;
  int pollers = 1;
  size_t request_memory = 0;  // bytes; always set
  base::TlsFiles node_tls;
  base::ModelControlFlags control;
  metrics::Flags metrics;
  base::LogFlags log;
  bool remote_drain = false;
  double slow_request_ms = 0;  // 0: never
  double lame_duck_s = 1;
  double drain_timeout_s = 30;
};

// Returns 2 for "cuda:2"; nullopt for any other text.
std::optional<int> CudaIndexOf(const std::string& device);

// The flags, or the exit status if the program ends here: 0 after --help or
// --version, 2 after a line on stderr that names the wrong flag.
std::variant<Flags, int> ParseFlags(int argc, char** argv);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_FLAGS_H_
