"""Sends deltas of a folder to a CPU node over gRPC (proto/deltas.proto).

    delta_push.push(folder, "cn-0:8001")

The node keeps a delta in its own folder, and acknowledges it when the files have been
flushed to the disk. Needs grpcio, which tritonclient[grpc] brings.
"""

import time

from scripts.lib import deltas

METHOD = "/refract.proto.Deltas/Append"
ADDED = b"\x08\x01"  # AppendDeltaResponse with its field 1


def channel(address, ca=None):
    """A channel; `ca`: a file of certificate authorities, for TLS."""
    try:
        import grpc
    except ImportError as error:
        raise deltas.DeltaError(f"needs grpcio (pip install grpcio): {error}")
    if ca is None:
        return grpc.insecure_channel(address)
    with open(ca, "rb") as file:
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()))


def append(channel, manifest, rows, token=None, timeout=60):
    """Sends the bytes of both files of a delta; returns whether the node's folder has not
    had it. grpc.RpcError is what the node refuses."""
    call = channel.unary_unary(METHOD)  # bytes in, bytes out
    metadata = [("authorization", f"Bearer {token}")] if token else None
    return call(request(manifest, rows), timeout=timeout, metadata=metadata) == ADDED


def request(manifest, rows):
    """An AppendDeltaRequest."""
    return _field(1, manifest) + _field(2, rows)


def push(folder, address, token=None, ca=None, timeout=60):
    """Sends the deltas of a deltas.Folder that the node does not have, in order. Returns
    their number."""
    import grpc

    new, known = 0, True
    with channel(address, ca) as to:
        manifests = folder.manifests()
        last = max(manifests, default=0)
        for sequence, manifest in manifests.items():
            text = (folder.path / deltas.name_of(sequence)).read_bytes()
            file = folder.path / manifest["rows"]["file"]
            # The node knows a delta that it has by the manifest, and misses the rows of
            # any other.
            rows = b"" if known else file.read_bytes()
            end = time.monotonic() + timeout
            while True:
                try:
                    new += append(to, text, rows, token, timeout)
                    break
                except grpc.RpcError as error:
                    code = error.code()
                    if known and code == grpc.StatusCode.DATA_LOSS:
                        known, rows = False, file.read_bytes()
                        continue
                    if code == grpc.StatusCode.ALREADY_EXISTS:
                        # Merged deltas end in the last one, which the node answers again.
                        if sequence == last:
                            raise deltas.DeltaError(
                                f"{address}: delta {sequence}: {error.details()}; the last delta "
                                f"of {folder.path} is not the node's last"
                            )
                        break
                    # A start, or another writer at work.
                    again = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
                    if code not in again or time.monotonic() > end:
                        raise deltas.DeltaError(
                            f"{address}: delta {sequence}: {code.name}: {error.details()}"
                        )
                time.sleep(0.2)
    return new


def _field(number, data):
    """A field of bytes in Protobuf's encoding."""
    length, size = b"", len(data)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data
