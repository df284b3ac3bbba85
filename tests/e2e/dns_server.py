"""A DNS server for tests: A and SRV records that the test sets, and bad answers."""

import socket
import struct
import threading

A, SRV = 1, 33
NXDOMAIN = 3


def encode_name(name):
    labels = name.rstrip(".").split(".") if name != "." else []
    return b"".join(
        bytes([len(label)]) + label.encode() for label in labels
    ) + b"\0"


def decode_name(packet, at):
    labels = []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels).lower(), at + 1


class DnsServer:
    """Answers over UDP on a port of 127.0.0.1 until close().

    `addresses`: {name: [IPv4]}; `services`: {name: [(host, port, priority)]}.
    `mode`: "answer"; "nxdomain" and "empty" whatever the name; "garbage";
    "silent".
    """

    def __init__(self):
        self.addresses = {}
        self.services = {}
        self.mode = "answer"
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        # An empty packet ends the thread, which a close() does not wake.
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _run(self):
        while True:
            packet, client = self._socket.recvfrom(4096)
            if not packet:
                return
            self.asked += 1
            if self.mode == "silent":
                continue
            if self.mode == "garbage":
                # The id is right, so that it is taken for the answer.
                self._socket.sendto(packet[:2] + b"\xff" * 40, client)
                continue
            self._socket.sendto(self._answer(packet), client)

    def _answer(self, packet):
        name, end = decode_name(packet, 12)
        kind = struct.unpack_from("!H", packet, end)[0]
        question = packet[12 : end + 4]
        known = name in self.addresses or name in self.services
        records = []
        if kind == A:
            records = [
                socket.inet_aton(ip) for ip in self.addresses.get(name, ())
            ]
        elif kind == SRV:
            records = [
                struct.pack("!HHH", priority, 0, port) + encode_name(host)
                for host, port, priority in self.services.get(name, ())
            ]
        code = 0 if known else NXDOMAIN
        if self.mode != "answer":
            records = []
            code = NXDOMAIN if self.mode == "nxdomain" else 0
        header = packet[:2] + struct.pack(
            "!HHHHH", 0x8580 | code, 1, len(records), 0, 0
        )
        answers = b"".join(
            # A pointer to the question's name; class IN, 1 s to live.
            b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 1, len(data)) + data
            for data in records
        )
        return header + question + answers
