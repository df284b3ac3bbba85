#ifndef REFRACT_CPU_NODE_SECURITY_ACCESS_H_
#define REFRACT_CPU_NODE_SECURITY_ACCESS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/security/client_quota.h"

namespace refract::cpu_node {

// The right that a call requires.
enum class Access : uint8_t {
  kAnybody,  // health, for probes
  kClient,   // inference and questions about models
  kControl,  // changes of models and settings
};

// Bearer tokens of clients, from a file with a token per line; empty lines and
// lines that begin with # do not count. After the token a line may name the
// client and bound its inference requests: `name=shop in-flight=32 rate=500`
// (ClientQuota). A changed file is read again within a
// second; if it is unreadable or has no token, the old tokens stay valid.
// Thread-safe.
class TokenFile {
 public:
  // NotFound or InvalidArgument name the file.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Create(
      const std::string& path, base::Clock& clock);

  struct Found {
    bool token = false;
    std::shared_ptr<ClientQuota> quota;  // null: the line has none
  };
  // Whether the file has `token`. Takes equal time for all tokens of a
  // length, right or wrong: all digests are compared, in constant
  // time.
  Found Find(absl::string_view token);
  // Of all lines that have a quota.
  std::vector<std::shared_ptr<const ClientQuota>> Quotas();

 private:
  using Digest = std::array<uint8_t, 32>;  // SHA-256
  struct Client {
    Digest digest;
    std::shared_ptr<ClientQuota> quota;
  };
  struct Version {
    int64_t changed_ns = 0;
    int64_t size = 0;
    uint64_t inode = 0;
    bool operator==(const Version&) const = default;
  };

  TokenFile(std::string path, base::Clock& clock)
      : path_(std::move(path)), clock_(clock) {}
  static absl::StatusOr<Version> VersionOf(const std::string& path);
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  base::Clock& clock_;
  absl::Mutex mu_;
  Version version_ ABSL_GUARDED_BY(mu_);  // of a missing file: Version()
  std::vector<Client> clients_ ABSL_GUARDED_BY(mu_);
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

struct AccessFiles {
  std::string client_tokens;   // empty: clients need no token
  std::string control_tokens;  // empty: as client_tokens
};

// Decides which calls a client may make. Thread-safe.
class AccessControl {
 public:
  // As TokenFile::Create().
  static absl::StatusOr<std::unique_ptr<AccessControl>> Create(
      const AccessFiles& files, base::Clock& clock);

  // `authorization`: the header of that name, "Bearer TOKEN"; empty: not sent.
  //   Unauthenticated    no token, or an unknown token
  //   PermissionDenied   a client's token for a call that needs a control token
  // Control tokens allow all calls.
  absl::Status Check(Access access, absl::string_view authorization) const;
  // Check(kClient) of an inference request, which counts against the quota of
  // its client until the hold is destroyed. Also ResourceExhausted.
  absl::StatusOr<ClientQuota::Hold> Admit(absl::string_view authorization) const;

  std::vector<std::shared_ptr<const ClientQuota>> Quotas() const;

 private:
  struct Verdict {
    absl::Status status;
    std::shared_ptr<ClientQuota> quota;
  };
  Verdict Judge(Access access, absl::string_view authorization) const;

  base::Clock* clock_ = nullptr;
  std::unique_ptr<TokenFile> clients_;  // null: no token needed
  std::unique_ptr<TokenFile> control_;  // null: as clients_
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SECURITY_ACCESS_H_
