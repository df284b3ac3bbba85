#ifndef REFRACT_CPU_NODE_FLAGS_H_
#define REFRACT_CPU_NODE_FLAGS_H_

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "base/command_line/model_control_flags.h"
#include "base/command_line/port_or_off.h"
#include "base/log/log_flags.h"
#include "base/tls/tls_contexts.h"
#include "cpu_node/discovery/node_source.h"
#include "cpu_node/dispatch/node_policy.h"
#include "cpu_node/security/access.h"
#include "metrics/flags.h"
#include "tracing/settings.h"

namespace refract::cpu_node {

// The parsed command line of refract-cpu-node.
struct Flags {
  std::string model_repository;
  std::vector<std::string> op_libraries;  // loaded before the models
  std::vector<NodeSource> gpu_nodes;
  double gpu_nodes_refresh_s = 5;
  std::string dns_servers;         // empty: the system's servers
  std::string transport = "auto";  // auto, shm, tcp or verbs
  std::string rdma_device;         // empty: any device
  std::string topology = "auto";   // auto, off or an override file
  std::string fabric;              // file with hosts; empty: none
  std::string fabric_host;         // empty: the host's name
  double fabric_load_ratio = kDefaultSpillRatio;
  std::string grpc_host = "127.0.0.1";
  int grpc_port = 8001;
  std::string http_host = "127.0.0.1";
  base::PortOrOff http_port;
  int http_threads = 2;
  size_t http_max_input_size = size_t{64} << 20;  // bytes
  int http_max_connections = 1024;
  double http_idle_timeout_s = 60;
  double http_stall_timeout_s = 10;
  double keepalive_ms = 60e3;
  double keepalive_timeout_ms = 20e3;
  double connection_age_ms = 3600e3;
  double connection_age_grace_ms = 600e3;
  int workers = 0;  // 0: the number of CPUs that this process may use
  int max_queue = 1024;
  int max_in_flight = 4096;
  double default_deadline_ms = 0;  // 0: none
  double slow_request_ms = 0;      // 0: never
  size_t request_memory = 0;       // bytes; ParseFlags() always sets it
  metrics::Flags metrics;
  base::LogFlags log;
  std::vector<std::string> trace_config;
  tracing::Settings tracing;  // from trace_config
  bool allow_trace_settings = false;
  base::TlsFiles tls;
  base::TlsFiles node_tls;
  std::string node_tls_name;
  AccessFiles access;
  double lame_duck_s = 5;
  double drain_timeout_s = 30;
  bool local_fallback = false;
  double hedge_after_ms = 0;  // 0: as hedge_quantile says
  double hedge_quantile = 0;  // 0: no hedging
  double shadow_rate = 0;  // of the answered requests
  std::string record;      // empty: nothing is recorded
  double record_rate = 0.01;
  size_t record_size = size_t{1} << 30;  // bytes
  std::string record_redact_key;         // a file
  base::ModelControlFlags control;
  size_t keep_versions = 1;
  double load_timeout_s = 60;
  // Addresses of all shards of the group, and the number of this node among
  // them; empty: the node is in no shard group.
  std::vector<std::string> shard_peers;
  size_t shard = 0;
  bool deltas = true;
  std::string deltas_folder;  // empty: "deltas" in each version's folder
  bool deltas_by_request = false;
  std::string deltas_kafka_brokers;  // empty: no topic
  std::string deltas_kafka_topic;
  std::string deltas_kafka_config;  // a file; empty: none
  double deltas_poll_s = 0.2;
  double deltas_cpu_percent = 20;
  double deltas_p99_ms = 0;  // 0: no limit
  int64_t deltas_new_ids = 0;  // of each table with ids
  std::string table_memory = "map";       // models::TableMemoryNamed()
  size_t row_cache_mib = 1024;            // of each version, with "disk"
  std::string ready_when = "all";         // all, listed or any
  std::vector<std::string> ready_models;  // for "listed"
  bool strict_readiness = false;
};

// The flags, or the exit status if the program ends here: 0 after --help or
// --version, 2 after a line on stderr that names the wrong flag.
std::variant<Flags, int> ParseFlags(int argc, char** argv);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FLAGS_H_
