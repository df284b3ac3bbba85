// Debian's libprotobuf is built without ThreadSanitizer, under which this header
// gives MapFieldBase two further members: the library would read others in their
// place. So the members stay out.
#pragma GCC system_header
#include <atomic>  // libstdc++ has looked for ThreadSanitizer before it is hidden
#include <memory>
#include <mutex>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
