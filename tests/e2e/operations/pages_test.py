"""Commands of pages: those of some how-to pages run as they stand there, and the
options of all others exist.

A fenced block that begins with ```sh run holds commands of a page. The blocks of
PAGES run in this order in one shell, which stops at the first command that fails.
Its folder has the build and the Python of a clone, and goes away afterwards.

The nodes of the pages use default ports. The shell therefore gets a network of
its own where the kernel allows that (unshare); else the ports must be free.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

from scripts.lib.nodes import BUILD, SOURCE, program
from scripts.lib.repository import start_once

HOW_TO = SOURCE / "docs" / "how-to"
# Each goes on where the page before it ends.
PAGES = (
    "first_model.md", "monitoring.md", "security.md", "deltas.md",
    "two_machines.md", "upgrade.md",
)  # fmt: skip
BLOCK = re.compile(r"^( *)```sh run\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:^|[;&|(]\s*|\$ )(refract(?:-cpu-node|-gpu-node)?) +(.*)")
PORTS = (8000, 8001, 8002, 8010, 8011, 8100, 8102)
# Most of it is PyTorch's start and what nodes wait before they stop.
TIMEOUT_S = 600
# A network with nothing in it but a loopback that is up.
OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


def blocks(page):
    """(line of the page, commands) of each block that is to run."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield line, textwrap.dedent(found[2])


def commands(text):
    """(program, its words) of each command line of ours in fenced blocks."""
    for block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = PROGRAM.search(line.strip())
            if found:
                words = re.split(r"\s[#;&|]|&&|[>]", found[2])[0].split()
                yield found[1], words


def script():
    lines = ["set -euo pipefail"]
    for name in PAGES:
        for line, commands in blocks(HOW_TO / name):
            lines.append(f"echo '### {name}:{line}'")
            lines.append(commands)
    lines.append("echo '### the end'")
    return "\n".join(lines)


def with_own_network(command):
    """`command` in a network of its own, or None where that is not allowed."""
    wrapped = [*OWN_NETWORK, sys.executable, "-c", LOOPBACK_UP, *command]
    if shutil.which("unshare") is None:
        return None
    probe = [*wrapped[: len(OWN_NETWORK) + 3], "true"]
    done = subprocess.run(probe, capture_output=True, check=False)
    return wrapped if done.returncode == 0 else None


def clone_in(folder):
    (folder / "scripts").symlink_to(SOURCE / "scripts")
    (folder / "build").mkdir()
    (folder / "build" / "release").symlink_to(BUILD)
    (folder / ".venv").symlink_to(sys.prefix)


class Pages(unittest.TestCase):
    def test_blocks_are_found(self):
        text = "a\n\n```sh run\nx 1\ny\n```\n\n1. b\n\n   ```sh run\n   z\n   ```\n\n```\nno\n```\n"
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "README.md"
            page.write_text(text)
            self.assertEqual(
                list(blocks(page)), [(4, "x 1\ny\n"), (11, "z\n")]
            )

    def test_commands_are_found(self):
        text = "```\n$ refract plan x \\\n  --seed 1  # or --seeds\ny; refract-gpu-node --a &\n```\nrefract z\n"
        self.assertEqual(
            list(commands(text)),
            [("refract", ["plan", "x", "--seed", "1"]), ("refract-gpu-node", ["--a"])],
        )

    def test_options_on_pages_exist(self):
        helps = {}

        def help_of(*words):
            if words not in helps:
                helps[words] = start_once(
                    program(words[0]), *words[1:], "--help"
                ).stdout
            return helps[words]

        seen, wrong = 0, []
        pages = [SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))]
        for page in pages:
            for name, words in commands(page.read_text(encoding="utf-8")):
                chain = [name]
                # Subcommands of subcommands: `refract plan loan`.
                while name == "refract" and words:
                    listed = help_of(*chain).partition("ubcommands:")[2]
                    if not re.search(rf"^ +{re.escape(words[0])}\b", listed, re.M):
                        break
                    chain.append(words.pop(0))
                for word in words:
                    option = re.match(r"--[a-z][\w-]*", word)
                    if option is None:
                        continue
                    seen += 1
                    if not re.search(rf"{option[0]}(?![\w-])", help_of(*chain)):
                        wrong.append(f"{page.name}: {' '.join(chain)} {option[0]}")
        self.assertEqual(wrong, [])
        self.assertGreater(seen, 100)

    def test_commands_of_the_pages_run(self):
        for name in PAGES:
            self.assertGreater(len(list(blocks(HOW_TO / name))), 0, name)
        for name in ("refract", "refract-cpu-node", "refract-gpu-node"):
            program(name)
        self.assertIsNotNone(shutil.which("curl"), "the pages use curl")
        command = ["bash", "-c", script()]
        isolated = with_own_network(command)
        if isolated is None:
            for port in PORTS:
                with socket.socket() as probe:
                    self.assertNotEqual(
                        probe.connect_ex(("127.0.0.1", port)), 0,
                        f"port {port}, which the pages use, is in use",
                    )  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            clone_in(folder)
            output = self.run_in(folder, isolated or command)
            print(output)
            for page in PAGES:
                self.assertIn(f"### {page}:", output)
            self.assertTrue(output.endswith("### the end\n"), output)

    def run_in(self, folder, command):
        environment = {
            key: value for key, value in os.environ.items()
            if not key.startswith("REFRACT_") and key != "PYTHONPATH"
        }  # fmt: skip
        log = folder / "shell.log"
        with log.open("w") as file:
            shell = subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                status = shell.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = f"still running after {TIMEOUT_S} s"
            finally:
                # The nodes, which the last page leaves running.
                try:
                    os.killpg(shell.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                shell.wait()
        output = log.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            logs = "".join(
                f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                for path in sorted(folder.rglob("*-node.log"))
            )
            self.fail(f"status {status}\n{output}\n{logs}")
        return output


if __name__ == "__main__":
    unittest.main()
