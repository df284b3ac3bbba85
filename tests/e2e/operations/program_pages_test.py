"""Man pages and completion scripts as the programs print them.

groff reads the man pages where it is installed; bash runs its script.
"""

import shutil
import subprocess
import unittest

from tests.e2e import support

PROGRAMS = ("refract", "refract-cpu-node", "refract-gpu-node")


def complete(program, *words):
    """What bash offers for the last of `words`."""
    script = support.start_once(support.program(program), "--completion", "bash").stdout
    function = "_" + program.replace("-", "_")
    quoted = " ".join(f"'{word}'" for word in (program, *words))
    done = subprocess.run(
        ["bash", "-c", f"{script}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words)}\n"
         f"{function}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


class ProgramPages(unittest.TestCase):
    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(complete("refract", "parti"), ["partition"])
        self.assertIn("--write", complete("refract", "partition", "x", "--w"))
        self.assertEqual(
            complete("refract", "partition", "x", "--method", "opt"), ["optimal"]
        )
        # Options of another command are not offered; file names are the shell's default.
        self.assertEqual(complete("refract", "list", "--method"), [])
        self.assertIn(
            "--model-repository", complete("refract-gpu-node", "--model-r")
        )

    def test_shells_read_their_scripts(self):
        for shell in ("bash", "zsh", "fish"):
            for program in PROGRAMS:
                script = support.start_once(
                    support.program(program), "--completion", shell
                ).stdout
                self.assertIn(program, script)
                if shutil.which(shell):
                    subprocess.run(
                        [shell, "-n"], input=script, text=True, check=True
                    )

    def test_man_pages_have_every_option_of_help(self):
        for program in PROGRAMS:
            path = support.program(program)
            page = support.start_once(path, "--man").stdout
            told = support.start_once(path, "--help").stdout
            options = {
                word.partition("{")[0]
                for line in told.splitlines()
                if line.startswith("  -")
                for word in line.split()[:1][0].split(",")
                if word.startswith("--")
            }
            self.assertGreater(len(options), 3)
            for option in options:
                self.assertIn(option.replace("-", "\\-"), page)
            if shutil.which("groff"):
                done = subprocess.run(
                    ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww"], input=page,
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main()
