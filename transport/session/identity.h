#ifndef REFRACT_TRANSPORT_SESSION_IDENTITY_H_
#define REFRACT_TRANSPORT_SESSION_IDENTITY_H_

#include <string>

#include "proto/session.pb.h"

namespace refract::transport {

// Identity of this process for peers. Made once.
const proto::PeerIdentity& LocalIdentity();

// Whether both processes run under one kernel and user, so that they may share
// memory: equal and known boot id, uid and network namespace (the abstract
// socket that carries the file descriptors exists per namespace).
bool CanShareMemory(const proto::PeerIdentity& a, const proto::PeerIdentity& b);

// `bytes` from the kernel's generator.
std::string RandomToken(size_t bytes);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_IDENTITY_H_
