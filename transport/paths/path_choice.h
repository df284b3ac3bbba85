#ifndef REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_
#define REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace refract::transport {

// Which of several ways a path takes, for kinds of paths that have several; the
// others ignore it.
struct PathChoice {
  // So many of the best addresses are passed over: the peer found no way to
  // them.
  size_t skip = 0;
  // Rails (DataPath::rail) that are taken only when there is no other.
  std::vector<std::string> avoid;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_
