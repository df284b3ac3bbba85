#include "cpu_node/security/access.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/process/files.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "openssl/crypto.h"
#include "openssl/sha.h"

namespace refract::cpu_node {
namespace {

// Interval of checks whether a file changed.
constexpr absl::Duration kTokenLook = absl::Seconds(1);

// A shorter token can be guessed. 128 bits have 22 characters in base64.
constexpr size_t kLeastTokenBytes = 16;

// Longest token accepted; bounds the bytes of a header that are hashed.
constexpr size_t kMostTokenBytes = 4096;

constexpr size_t kMostNameBytes = 64;

// The quota that follows a token; nullopt: none.
absl::StatusOr<std::optional<ClientQuota::Limits>> LimitsOf(
    absl::Span<const absl::string_view> words) {
  if (words.empty()) return std::nullopt;
  ClientQuota::Limits limits;
  for (const absl::string_view word : words) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto& [key, value] = field;
    const bool fits =
        key == "name" ? !value.empty() && value.size() <= kMostNameBytes &&
                            absl::c_all_of(value, absl::ascii_isgraph)
        : key == "in-flight"
            ? absl::SimpleAtoi(value, &limits.in_flight) && limits.in_flight > 0
        : key == "rate" ? absl::SimpleAtod(value, &limits.rate) &&
                              limits.rate > 0
                        : false;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", base::Shorten(word), "' is none of name=NAME (at most ",
          kMostNameBytes, " bytes), in-flight=N and rate=R, above 0"));
    }
    if (key == "name") limits.name = std::string(value);
  }
  if (limits.name.empty()) {
    return absl::InvalidArgumentError(
        "a token with a quota needs name=NAME, for messages and metrics");
  }
  return limits;
}

}  // namespace

absl::StatusOr<TokenFile::Version> TokenFile::VersionOf(
    const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return Version{
      // Time alone may stay equal when a file is replaced within its
      // resolution.
      facts.st_mtim.tv_sec * int64_t{1'000'000'000} + facts.st_mtim.tv_nsec,
      facts.st_size, facts.st_ino};
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Create(
    const std::string& path, base::Clock& clock) {
  std::unique_ptr<TokenFile> file(new TokenFile(path, clock));
  absl::MutexLock lock(&file->mu_);
  REFRACT_RETURN_IF_ERROR(file->Read());
  file->looked_ = clock.Now();
  return file;
}

absl::Status TokenFile::Read() {
  // Version before text: a change in between is then noticed at the next check.
  REFRACT_ASSIGN_OR_RETURN(const Version version, VersionOf(path_));
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path_));
  std::vector<Client> clients;
  absl::flat_hash_set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const absl::string_view token = words[0];
    // Names the line, not the token: this text goes to a log.
    const auto invalid = [&](const auto&... parts) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, " line ", number, ": ", parts...));
    };
    if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes) {
      return invalid("a token has ", kLeastTokenBytes, " to ", kMostTokenBytes,
                     " characters and no blanks");
    }
    Client& client = clients.emplace_back();
    SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
           // Digests, so that the comparison below takes equal time for tokens
           // of any length, and the node keeps no token in memory.
           client.digest.data());
    const absl::StatusOr<std::optional<ClientQuota::Limits>> limits =
        LimitsOf(absl::MakeConstSpan(words).subspan(1));
    if (!limits.ok()) return invalid(limits.status().message());
    if (!limits->has_value()) continue;
    if (!names.insert((*limits)->name).second) {
      return invalid("the name ", (*limits)->name, " is given twice");
    }
    client.quota = std::make_shared<ClientQuota>(**limits);
    // Requests in flight go on counting, unless the quota has changed.
    for (const Client& old : clients_) {
      if (old.digest == client.digest && old.quota != nullptr &&
          old.quota->limits() == **limits) {
        client.quota = old.quota;
      }
    }
  }
  if (clients.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has no token"));
  }
  clients_ = std::move(clients);
  version_ = version;
  return absl::OkStatus();
}

void TokenFile::Refresh() {
  const absl::Time now = clock_.Now();
  if (now < looked_ + kTokenLook) return;
  looked_ = now;
  // The file is read again when time, size or inode differ. A file that cannot
  // be read or parsed leaves the present tokens in force, so that a bad copy
  // locks nobody out.
  const absl::StatusOr<Version> version = VersionOf(path_);
  const Version present = version.ok() ? *version : Version();
  if (present == version_) return;
  const absl::Status status = version.ok() ? Read() : version.status();
  if (status.ok()) {
    LOG(INFO) << path_ << ": " << clients_.size() << " token(s) read again";
    return;
  }
  // Logs once per change.
  version_ = present;
  LOG(WARNING) << status.message() << "; the tokens stay as they were";
}

TokenFile::Found TokenFile::Find(absl::string_view token) {
  Found found;
  if (token.size() > kMostTokenBytes) return found;
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         digest.data());
  absl::MutexLock lock(&mu_);
  Refresh();
  const Client* match = nullptr;
  for (const Client& each : clients_) {
    // Goes through all tokens, also after a match: the time tells nothing about
    // the position.
    const bool equal = CRYPTO_memcmp(each.digest.data(), digest.data(),
                                     digest.size()) == 0;
    match = equal ? &each : match;
  }
  if (match != nullptr) found = {true, match->quota};
  return found;
}

std::vector<std::shared_ptr<const ClientQuota>> TokenFile::Quotas() {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const ClientQuota>> quotas;
  for (const Client& client : clients_) {
    if (client.quota != nullptr) quotas.push_back(client.quota);
  }
  return quotas;
}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Create(
    const AccessFiles& files, base::Clock& clock) {
  auto access = std::make_unique<AccessControl>();
  access->clock_ = &clock;
  if (!files.client_tokens.empty()) {
    REFRACT_ASSIGN_OR_RETURN(access->clients_,
                             TokenFile::Create(files.client_tokens, clock));
  }
  if (!files.control_tokens.empty()) {
    REFRACT_ASSIGN_OR_RETURN(access->control_,
                             TokenFile::Create(files.control_tokens, clock));
  }
  return access;
}

AccessControl::Verdict AccessControl::Judge(
    Access access, absl::string_view authorization) const {
  const bool of_control = access == Access::kControl && control_ != nullptr;
  if (access == Access::kAnybody || (!of_control && clients_ == nullptr)) {
    return {};
  }
  const absl::string_view scheme = authorization.substr(0, 7);
  if (!absl::EqualsIgnoreCase(scheme, "bearer ")) {
    return {absl::UnauthenticatedError(
                "this call needs a token: authorization: Bearer TOKEN"),
            nullptr};
  }
  const absl::string_view token =
      absl::StripAsciiWhitespace(authorization.substr(scheme.size()));
  // Both files are checked in any case: equal time for all tokens.
  TokenFile::Found client, control;
  if (clients_ != nullptr) client = clients_->Find(token);
  if (control_ != nullptr) control = control_->Find(token);
  if (control.token) return {absl::OkStatus(), std::move(control.quota)};
  if (client.token && !of_control) {
    return {absl::OkStatus(), std::move(client.quota)};
  }
  if (client.token) {
    return {absl::PermissionDeniedError(
                "the token is a client token; this call needs a control token"),
            nullptr};
  }
  return {absl::UnauthenticatedError("the token is unknown"), nullptr};
}

absl::Status AccessControl::Check(Access access,
                                  absl::string_view authorization) const {
  return Judge(access, authorization).status;
}

absl::StatusOr<ClientQuota::Hold> AccessControl::Admit(
    absl::string_view authorization) const {
  const Verdict verdict = Judge(Access::kClient, authorization);
  REFRACT_RETURN_IF_ERROR(verdict.status);
  if (verdict.quota == nullptr) return ClientQuota::Hold();
  return verdict.quota->Take(clock_->Now());
}

std::vector<std::shared_ptr<const ClientQuota>> AccessControl::Quotas() const {
  std::vector<std::shared_ptr<const ClientQuota>> quotas;
  for (TokenFile* const file : {clients_.get(), control_.get()}) {
    if (file == nullptr) continue;
    for (auto& quota : file->Quotas()) quotas.push_back(std::move(quota));
  }
  return quotas;
}

}  // namespace refract::cpu_node
