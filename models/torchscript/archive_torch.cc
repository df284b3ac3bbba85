#include "models/torchscript/archive_torch.h"

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "models/passes/complex_numbers.h"
#include "runtime/torch/convert_torch.h"

namespace refract::models::torchscript {
namespace {

// Payloads of attributes of at least this size stay unread: LibTorch's loader
// looks only into pickles and code. Constants are read at any size, because the
// loader compares constants and merges equal constants: two unread constants of
// one shape would become one.
constexpr size_t kMaxReadBytes = size_t{1} << 20;

bool IsConstant(absl::string_view name) {
  return absl::StrContains(name, "/constants/");
}

bool IsPayload(absl::string_view name) {
  // NAME/data/7, NAME/constants/7
  const size_t slash = name.rfind('/');
  if (slash == absl::string_view::npos || slash + 1 == name.size()) {
    return false;
  }
  const absl::string_view folder = name.substr(0, slash);
  return (absl::EndsWith(folder, "/data") ||
          absl::EndsWith(folder, "/constants")) &&
         std::all_of(name.begin() + slash + 1, name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// Gives LibTorch the mapped file and records which payload the loader reads to
// which address. The loader reads a stored entry in one piece, straight into
// the storage that a tensor keeps, so that the address later finds the entry.
class MappedReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MappedReader(const ZipArchive& zip) : bytes_(zip.file()->bytes()) {
    for (size_t i = 0; i < zip.entries().size(); ++i) {
      const ZipEntry& entry = zip.entries()[i];
      if (!entry.stored || entry.bytes == 0 || !IsPayload(entry.name)) continue;
      payloads_[entry.offset] = {i, entry.bytes, IsConstant(entry.name)};
    }
  }

  size_t size() const override { return bytes_.size(); }

  size_t read(uint64_t pos, void* buffer, size_t n,
              const char* /*what*/) const override {
    if (pos >= bytes_.size()) return 0;
    n = std::min<size_t>(n, bytes_.size() - pos);
    const auto payload = payloads_.find(pos);
    if (payload != payloads_.end() && payload->second.bytes == n) {
      const absl::MutexLock lock(&mutex_);
      places_[buffer] = payload->second.index;
      if (n >= kMaxReadBytes && !payload->second.constant) return n;
    }
    std::memcpy(buffer, bytes_.data() + pos, n);
    return n;
  }

  absl::flat_hash_map<const void*, size_t> TakePlaces() {
    const absl::MutexLock lock(&mutex_);
    return std::move(places_);
  }

 private:
  struct Payload {
    size_t index = 0;
    uint64_t bytes = 0;
    bool constant = false;
  };
  const absl::Span<const std::byte> bytes_;
  absl::flat_hash_map<uint64_t, Payload> payloads_;  // by file offset
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<const void*, size_t> places_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<Archive> Archive::Load(absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(ZipArchive zip, ZipArchive::Open(path));
  const auto reader = std::make_shared<MappedReader>(zip);
  torch::jit::Module module;
  const absl::Status status = runtime::aten::Guarded(path, [&] {
    module = torch::jit::load(reader, at::Device(at::kCPU));
    module.eval();
    return absl::OkStatus();
  });
  if (!status.ok()) {
    // Any exception of the loader is the file's fault, hence InvalidArgument.
    const absl::string_view why = status.message().substr(path.size() + 2);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": LibTorch cannot load it: ", why,
        absl::StrContains(why, "Unknown builtin op")
            ? " Give the library that has the operator with --op-library."
            : ""));
  }
  Archive archive(std::move(zip), std::move(module));
  archive.places_ = reader->TakePlaces();
  return archive;
}

const ZipEntry* Archive::Find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto it = places_.find(tensor.storage().data());
  if (it == places_.end()) return nullptr;
  const ZipEntry& entry = zip_.entries()[it->second];
  return entry.bytes == tensor.storage().nbytes() ? &entry : nullptr;
}

base::DType TypeOf(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kComplexFloat) return kComplex64;
  if (tensor.scalar_type() == at::kComplexDouble) return kComplex128;
  return runtime::aten::FromScalarType(tensor.scalar_type());
}

absl::StatusOr<WeightEntry> Archive::Locate(const at::Tensor& tensor) const {
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return absl::UnimplementedError(
        "it is a sparse or quantized tensor; weights must be dense");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    return absl::UnimplementedError(
        "it is a lazy conjugate or negative of another tensor; apply "
        "resolve_conj() and resolve_neg() before you save the module");
  }
  WeightEntry entry;
  entry.dtype = TypeOf(tensor);
  if (entry.dtype == base::DType::kUnknown) {
    return absl::UnimplementedError(
        absl::StrCat("the graph lacks its element type ",
                     c10::toString(tensor.scalar_type())));
  }
  entry.file = zip_.file()->path();
  entry.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  entry.strides.assign(tensor.strides().begin(), tensor.strides().end());
  entry.storage_offset = tensor.storage_offset();
  MakePairs(entry);
  if (tensor.storage().nbytes() == 0) return entry;
  const ZipEntry* found = Find(tensor);
  if (found == nullptr) {
    return absl::UnimplementedError(
        "the file does not hold its bytes uncompressed; save the module again "
        "with torch.jit.save()");
  }
  entry.offset = found->offset;
  entry.bytes = found->bytes;
  return entry;
}

at::Scalar Archive::ScalarOf(const at::Tensor& tensor) const {
  const ZipEntry* found = Find(tensor);
  if (found != nullptr) {
    std::memcpy(tensor.mutable_data_ptr(),
                zip_.file()->bytes().data() + found->offset +
                    tensor.storage_offset() * tensor.element_size(),
                tensor.element_size());
  }
  return tensor.item();
}

std::string Archive::EntryName(const at::Tensor& tensor) const {
  const ZipEntry* found = Find(tensor);
  if (found == nullptr) return "";
  absl::string_view name = found->name;
  const size_t slash = name.rfind('/', name.rfind('/') - 1);
  if (slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  return std::string(name);
}

}  // namespace refract::models::torchscript
