#ifndef REFRACT_CPU_NODE_FRONTEND_MESSAGE_H_
#define REFRACT_CPU_NODE_FRONTEND_MESSAGE_H_

// Protobuf messages in and out of gRPC's buffers. The server does not let gRPC
// decompress messages: gRPC 1.51 checks their length only before that, so 1 MiB
// of gzip would become 1.1 GiB.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace refract::cpu_node {

// Calls `read` on the message in `bytes`, decompressed piece by piece if the
// client compressed it. Returns the result of `read`, InvalidArgument for
// broken gzip, or Unimplemented for another compression. May be called again.
absl::Status ReadMessage(
    const grpc::ByteBuffer& bytes,
    absl::FunctionRef<
        absl::Status(google::protobuf::io::ZeroCopyInputStream& message)>
        read);

// Parses a message of a method with short requests. InvalidArgument: not such a
// message, or longer than kMaxShortRequestBytes after decompression.
inline constexpr size_t kMaxShortRequestBytes = size_t{64} << 10;
absl::Status ParseShort(const grpc::ByteBuffer& bytes,
                        google::protobuf::MessageLite& message);

// Replaces `bytes` by the serialized message.
void WriteMessage(const google::protobuf::MessageLite& message,
                  grpc::ByteBuffer& bytes);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_MESSAGE_H_
