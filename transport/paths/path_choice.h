#ifndef REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_
#define REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace refract::transport {

// Choice among several routes of a path, for kinds of paths that have several;
// other kinds ignore it.
struct PathChoice {
  // Number of best addresses to skip, because the peer has no route to
  // them.
  size_t skip = 0;
  // Rails (DataPath::rail) to use only if there is no other rail.
  std::vector<std::string> avoid;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_PATH_CHOICE_H_
