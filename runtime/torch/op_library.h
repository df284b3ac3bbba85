#ifndef REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_
#define REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_

// Operators that are not LibTorch's own: shared libraries that register theirs
// with its dispatcher when they are loaded (fbgemm's, TorchVision's, a user's).

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"

namespace refract::runtime::aten {

// torch.ops.load_library: for the whole process, for good. The library's own
// dependencies are found as the system's loader finds them; LibTorch's umbrella
// library libtorch.so is taken from where libtorch_cpu.so lies. Thread-safe;
// call before models are read. InvalidArgument names the file: absent, no
// library, made for another LibTorch, or in need of a Python interpreter.
absl::Status LoadOpLibrary(const std::string& path);

// Libraries loaded so far, in order.
std::vector<models::OpLibrary> LoadedOpLibraries();

// The operator of a node that may come from such a library; empty for
// LibTorch's ATen operators, arithmetic on sizes, and TorchScript without any.
std::string LibraryOperatorOf(const models::Node& node);

// Whether what `nodes` call is at hand as it was at import. InvalidArgument
// names the operator, the library and the flag when one of
// graph.op_libraries is not loaded, or is another build.
absl::Status CheckOpLibraries(const models::Graph& graph,
                              absl::Span<const models::NodeId> nodes);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_
