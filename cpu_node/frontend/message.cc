#include "cpu_node/frontend/message.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/io/gzip_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"

namespace refract::cpu_node {
namespace {

using ::google::protobuf::io::GzipInputStream;
using ::google::protobuf::io::ZeroCopyInputStream;

// Reads the bytes as received. ByteBuffer itself does not say how they are
// compressed.
class Reader final : public grpc::ProtoBufferReader {
 public:
  // The base class takes a pointer to non-const but does not change it.
  explicit Reader(const grpc::ByteBuffer& bytes)
      : ProtoBufferReader(const_cast<grpc::ByteBuffer*>(&bytes)) {}
  grpc_compression_algorithm compression() {
    return reader()->buffer_in->data.raw.compression;
  }
};

}  // namespace

absl::Status ReadMessage(
    const grpc::ByteBuffer& bytes,
    absl::FunctionRef<absl::Status(ZeroCopyInputStream& message)> read) {
  Reader reader(bytes);
  if (!reader.status().ok()) return absl::InternalError("no message");
  const grpc_compression_algorithm compression = reader.compression();
  if (compression == GRPC_COMPRESS_NONE) return read(reader);
  if (compression != GRPC_COMPRESS_GZIP &&
      compression != GRPC_COMPRESS_DEFLATE) {
    return absl::UnimplementedError(
        "the request's compression is unknown; gzip and deflate are supported");
  }
  // Tells gzip from deflate (zlib's format) by their headers.
  GzipInputStream decompressed(&reader, GzipInputStream::AUTO);
  const absl::Status status = read(decompressed);
  // Negative: broken data, which looks like the end of the message.
  if (decompressed.ZlibErrorCode() < 0) {
    return absl::InvalidArgumentError(
        "the request's compressed bytes are broken");
  }
  return status;
}

absl::Status ParseShort(const grpc::ByteBuffer& bytes,
                        google::protobuf::MessageLite& message) {
  return ReadMessage(bytes, [&message](ZeroCopyInputStream& stream) {
    google::protobuf::io::LimitingInputStream limited(
        &stream, int64_t{kMaxShortRequestBytes} + 1);
    const bool parsed = message.ParseFromZeroCopyStream(&limited);
    if (limited.ByteCount() > int64_t{kMaxShortRequestBytes}) {
      return absl::InvalidArgumentError(
          absl::StrCat("the request is longer than ", kMaxShortRequestBytes,
                       " bytes once decompressed"));
    }
    if (parsed) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the request is not a ", message.GetTypeName()));
  });
}

void WriteMessage(const google::protobuf::MessageLite& message,
                  grpc::ByteBuffer& bytes) {
  // Serializes into slices; fails only for messages above 2 GiB.
  bytes.Clear();
  bool own = false;
  grpc::GenericSerialize<grpc::ProtoBufferWriter,
                         google::protobuf::MessageLite>(message, &bytes, &own);
}

}  // namespace refract::cpu_node
