#ifndef REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_
#define REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_

// Operators outside LibTorch: shared libraries that register theirs with its
// dispatcher when they are loaded (fbgemm's, TorchVision's, a user's).

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"

namespace refract::runtime::aten {

// As torch.ops.load_library: for the whole process, permanently. The library's
// own dependencies are found by the system's loader; LibTorch's umbrella
// library libtorch.so is taken from the folder of libtorch_cpu.so. Thread-safe;
// call before models are read. InvalidArgument names the file: absent, no
// library, made for another LibTorch, or in need of a Python interpreter.
absl::Status LoadOpLibrary(const std::string& path);

// Libraries loaded so far, in order.
std::vector<models::OpLibrary> LoadedOpLibraries();

// The operator of a node that may come from such a library; empty for
// LibTorch's ATen operators, arithmetic on sizes, and TorchScript without such.
std::string LibraryOperatorOf(const models::Node& node);

// Whether the operators of `nodes` are the same as at import. InvalidArgument
// names the operator, the library and the flag if a library of
// graph.op_libraries is not loaded, or is another build.
absl::Status CheckOpLibraries(const models::Graph& graph,
                              absl::Span<const models::NodeId> nodes);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_OP_LIBRARY_H_
