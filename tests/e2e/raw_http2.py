"""HTTP/2 by hand, for what a gRPC client does not do: messages that never end,
connections that say nothing, timeouts of centuries."""

import select
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = (
    0, 1, 3, 4, 6, 7, 8,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + struct.pack(
        "!BBI", kind, flags, stream
    ) + payload


def literal(name, value):
    """A header field that enters no table (RFC 7541, 6.2.2)."""
    name, value = name.encode(), value.encode()
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Connection:
    """Sends as fast as the server's flow control allows; notes what comes."""

    def __init__(self, port, timeout=20):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.received = b""
        self.window = 65535  # of the connection
        self.stream_window = 65535  # of a new stream
        self.windows = {}
        self.ended = set()  # streams that the server has ended or reset
        self.settings = {}
        self.data = {}  # by stream: bytes of its messages
        self.closed = False

    def close(self):
        self.socket.close()

    def call(self, stream, path=INFER, **headers):
        block = b"".join(
            literal(*pair)
            for pair in (
                (":method", "POST"), (":scheme", "http"), (":path", path),
                (":authority", "localhost"),
                ("content-type", "application/grpc"), ("te", "trailers"),
                *((key.replace("_", "-"), text) for key, text in headers.items()),
            )
        )
        self.windows[stream] = self.stream_window
        self.send(frame(HEADERS, END_HEADERS, stream, block))

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def send_some(self, stream, source):
        """One DATA frame of bytes from `source`, if the windows have room;
        returns how many bytes."""
        room = min(self.window, self.windows[stream], 16384, len(source))
        if room <= 0 or stream in self.ended or self.closed:
            return 0
        self.window -= room
        self.windows[stream] -= room
        self.send(frame(DATA, 0, stream, bytes(source[:room])))
        return room

    def finish(self, stream, message=b""):
        """The end of a request, which must fit into one frame."""
        self.send(frame(DATA, END_STREAM, stream, message))

    def poll(self, seconds=0.0):
        """Takes what has come, waiting for it at most so long."""
        if self.closed or not select.select([self.socket], [], [], seconds)[0]:
            return
        try:
            got = self.socket.recv(1 << 20)
        except OSError:
            got = b""
        self.closed = self.closed or not got
        self.received += got
        while len(self.received) >= 9:
            length = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + length:
                break
            kind, flags, stream = struct.unpack("!BBI", self.received[3:9])
            payload = self.received[9 : 9 + length]
            self.received = self.received[9 + length :]
            self.take(kind, flags, stream, payload)

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack("!HI", payload[at : at + 6])
                self.settings[key] = value
                if key == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                    for each in self.windows:
                        self.windows[each] += value - self.stream_window
                    self.stream_window = value
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = struct.unpack("!I", payload)[0]
            if stream == 0:
                self.window += more
            elif stream in self.windows:
                self.windows[stream] += more
        elif kind == DATA:
            self.data[stream] = self.data.get(stream, b"") + payload
        elif kind == GOAWAY:
            self.closed = True
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)

    def await_end(self, stream, seconds=20):
        """Whether the server has ended the stream within that time."""
        end = time.monotonic() + seconds
        while stream not in self.ended and not self.closed:
            if time.monotonic() > end:
                return False
            self.poll(0.1)
        return stream in self.ended


def message(payload, compressed=0):
    return struct.pack("!BI", compressed, len(payload)) + payload
