#ifndef REFRACT_MODELS_TORCHSCRIPT_ARCHIVE_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_ARCHIVE_TORCH_H_

// A TorchScript file loaded by LibTorch, and where in it each tensor lies.
// Includes LibTorch: for *_torch.cc only.

#include <torch/csrc/jit/api/module.h>

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/repository/files/zip.h"
#include "models/repository/weights.h"

namespace refract::models::torchscript {

class Archive {
 public:
  // Contents of tensors of a MiB and more are not read: such a tensor has its
  // shape, its place in the file, and undefined values. So a file of many GiB
  // loads with little memory. InvalidArgument names the file, also for
  // operators that LibTorch does not know.
  static absl::StatusOr<Archive> Load(absl::string_view path);

  const torch::jit::Module& module() const { return module_; }
  const ZipArchive& zip() const { return zip_; }

  // The entry of a tensor of the module; `name` stays empty. Unimplemented: an
  // element type that the IR lacks, a layout that is not strided, a tensor that
  // is not stored plainly.
  absl::StatusOr<WeightEntry> Locate(const at::Tensor& tensor) const;

  // The value of a tensor of one element that Locate() finds. Reads it from the
  // file where Load() left the storage unread.
  at::Scalar ScalarOf(const at::Tensor& tensor) const;

  // "constants/6" for a tensor of the constants folder; empty otherwise.
  std::string EntryName(const at::Tensor& tensor) const;

 private:
  Archive(ZipArchive zip, torch::jit::Module module)
      : zip_(std::move(zip)), module_(std::move(module)) {}
  const ZipEntry* Find(const at::Tensor& tensor) const;

  ZipArchive zip_;
  torch::jit::Module module_;
  // Address of a storage → index of the zip entry it was read from.
  absl::flat_hash_map<const void*, size_t> places_;
};

// Complex types as models/passes/complex_numbers.h has them; kUnknown for
// others that the IR lacks.
base::DType TypeOf(const at::Tensor& tensor);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_ARCHIVE_TORCH_H_
