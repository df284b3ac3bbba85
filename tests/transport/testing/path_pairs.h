#ifndef REFRACT_TESTS_TRANSPORT_TESTING_PATH_PAIRS_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_PATH_PAIRS_H_

// Connected pairs of data paths within one process.

#include <arpa/inet.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

#include "transport/datapath.h"
#include "transport/shm/factory.h"
#include "transport/loop/socket.h"
#include "transport/tcp/factory.h"

namespace refract::transport {

using PathPair =
    std::pair<std::unique_ptr<DataPath>, std::unique_ptr<DataPath>>;
using PairFactory = PathPair (*)();

// Over the loopback interface, as in real life.
inline PathPair TcpPair() {
  auto listener = ListenTcp({"127.0.0.1", 0});
  CHECK(listener.ok()) << listener.status();
  UniqueFd client(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(listener->port));
  PCHECK(connect(client.get(), reinterpret_cast<sockaddr*>(&address),
                 sizeof(address)) == 0);
  PCHECK(fcntl(client.get(), F_SETFL, O_NONBLOCK) == 0);
  auto server = Accept(listener->fd.get());
  CHECK(server.ok() && server->valid());
  auto a = tcp::CreateTcpPath(std::move(client));
  auto b = tcp::CreateTcpPath(*std::move(server));
  CHECK(a.ok() && b.ok());
  return {*std::move(a), *std::move(b)};
}

inline PathPair ShmPair() {
  std::array<int, 2> fds;
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
  auto a = shm::CreateShmPath(UniqueFd(fds[0]));
  auto b = shm::CreateShmPath(UniqueFd(fds[1]));
  CHECK(a.ok() && b.ok()) << a.status() << b.status();
  return {*std::move(a), *std::move(b)};
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_PATH_PAIRS_H_
