// The part of the requester that touches the memory of requests: source and
// destination of payloads, and whether a source still equals the posted bytes.
#include <algorithm>
#include <array>
#include <cstring>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"
#include "tests/transport/verbs_sim/nic/requester.h"

namespace refract::transport::sim {
namespace {

uint64_t Fingerprint(const std::byte* data, uint64_t bytes) {
  return absl::HashOf(
      absl::string_view(reinterpret_cast<const char*>(data), bytes));
}

}  // namespace

uint64_t Requester::PacketBytes(const Request& request, uint64_t index) const {
  const uint64_t mtu = owner_.attributes.mtu;
  return std::min(mtu, request.bytes - index * mtu);
}

bool Requester::Gather(const Request& request, uint64_t offset, uint64_t bytes,
                       std::byte* out, MemoryError& error) const {
  if (request.is_inline) {
    std::memcpy(out, request.inline_data.data() + offset, bytes);
    return true;
  }
  for (const ibv_sge& segment : request.segments) {
    if (bytes == 0) break;
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t piece = std::min(bytes, segment.length - offset);
    const std::byte* from = owner_.nic.memory.Local(
        segment.lkey, segment.addr + offset, piece, 0, owner_.domain, error);
    if (from == nullptr) return false;
    std::memcpy(out, from, piece);
    out += piece;
    bytes -= piece;
    offset = 0;
  }
  return true;
}

bool Requester::Scatter(const Request& request, uint64_t offset,
                        const std::byte* data, uint64_t bytes,
                        MemoryError& error) const {
  for (const ibv_sge& segment : request.segments) {
    if (bytes == 0) break;
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t piece = std::min(bytes, segment.length - offset);
    std::byte* to =
        owner_.nic.memory.Local(segment.lkey, segment.addr + offset, piece,
                                IBV_ACCESS_LOCAL_WRITE, owner_.domain, error);
    if (to == nullptr) return false;
    std::memcpy(to, data, piece);
    data += piece;
    bytes -= piece;
    offset = 0;
  }
  return true;
}

void Requester::TakeFingerprints(Request& request) const {
  std::array<std::byte, kMaxMtuBytes> buffer;
  MemoryError error;
  request.fingerprints.reserve(request.packets);
  for (uint64_t i = 0; i < request.packets; ++i) {
    const uint64_t bytes = PacketBytes(request, i);
    if (!Gather(request, i * owner_.attributes.mtu, bytes, buffer.data(),
                error)) {
      // The request fails when it is sent.
      request.fingerprints.clear();
      return;
    }
    request.fingerprints.push_back(Fingerprint(buffer.data(), bytes));
  }
}

bool Requester::IsAsPosted(const Request& request, uint64_t index,
                           const std::byte* payload) const {
  return request.fingerprints.empty() ||
         Fingerprint(payload, PacketBytes(request, index)) ==
             request.fingerprints[index];
}

void Requester::CheckSource(const Request& request, uint64_t index) {
  std::array<std::byte, kMaxMtuBytes> buffer;
  MemoryError error;
  const uint64_t bytes = PacketBytes(request, index);
  // Memory that is gone was a violation already.
  if (!Gather(request, index * owner_.attributes.mtu, bytes, buffer.data(),
              error)) {
    return;
  }
  if (!IsAsPosted(request, index, buffer.data())) {
    owner_.AddViolation(absl::StrCat(
        "source of request ", request.id, " changed in bytes ",
        index * owner_.attributes.mtu, "+", bytes, " before it completed"));
  }
}

bool Requester::Uses(uint32_t local_key) const {
  for (const Request& request : queue_) {
    for (const ibv_sge& segment : request.segments) {
      if (segment.length > 0 && segment.lkey == local_key) return true;
    }
  }
  return false;
}

}  // namespace refract::transport::sim
