#include "cpu_node/security/access.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/process/files.h"
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

}  // namespace

absl::StatusOr<TokenFile::Version> TokenFile::VersionOf(
    const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return Version{
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
  std::vector<Digest> digests;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    // Names the line, not the token: this text goes to a log.
    if (line.size() < kLeastTokenBytes || line.size() > kMostTokenBytes ||
        absl::StrContains(line, " ")) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, " line ", number, ": a token has ", kLeastTokenBytes, " to ",
          kMostTokenBytes, " characters and no blanks"));
    }
    Digest& digest = digests.emplace_back();
    SHA256(reinterpret_cast<const unsigned char*>(line.data()), line.size(),
           digest.data());
  }
  if (digests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has no token"));
  }
  digests_ = std::move(digests);
  version_ = version;
  return absl::OkStatus();
}

void TokenFile::Refresh() {
  const absl::Time now = clock_.Now();
  if (now < looked_ + kTokenLook) return;
  looked_ = now;
  const absl::StatusOr<Version> version = VersionOf(path_);
  if (version.ok() && *version == version_) return;
  const absl::Status status = version.ok() ? Read() : version.status();
  if (status.ok()) {
    LOG(INFO) << path_ << ": " << digests_.size() << " token(s) read again";
    return;
  }
  // Logs once per change.
  if (version.ok()) version_ = *version;
  LOG_EVERY_N(WARNING, 60) << status.message()
                           << "; the tokens stay as they were";
}

bool TokenFile::Has(absl::string_view token) {
  if (token.size() > kMostTokenBytes) return false;
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         digest.data());
  absl::MutexLock lock(&mu_);
  Refresh();
  bool found = false;
  for (const Digest& each : digests_) {
    found |= CRYPTO_memcmp(each.data(), digest.data(), digest.size()) == 0;
  }
  return found;
}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Create(
    const AccessFiles& files, base::Clock& clock) {
  auto access = std::make_unique<AccessControl>();
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

absl::Status AccessControl::Check(Access access,
                                  absl::string_view authorization) const {
  const bool of_control = access == Access::kControl && control_ != nullptr;
  if (access == Access::kAnybody || (!of_control && clients_ == nullptr)) {
    return absl::OkStatus();
  }
  const absl::string_view scheme = authorization.substr(0, 7);
  if (!absl::EqualsIgnoreCase(scheme, "bearer ")) {
    return absl::UnauthenticatedError(
        "this call needs a token: authorization: Bearer TOKEN");
  }
  const absl::string_view token =
      absl::StripAsciiWhitespace(authorization.substr(scheme.size()));
  // Both files are checked in any case: equal time for all tokens.
  const bool client = clients_ != nullptr && clients_->Has(token);
  const bool control = control_ != nullptr && control_->Has(token);
  if (control || (client && !of_control)) return absl::OkStatus();
  if (client) {
    return absl::PermissionDeniedError(
        "the token is a client's; this call needs one for control");
  }
  return absl::UnauthenticatedError("the token is not known");
}

}  // namespace refract::cpu_node
