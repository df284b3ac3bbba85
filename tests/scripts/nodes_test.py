"""The log of a node that tests and benchmarks start."""

import subprocess
import sys
import tempfile
import unittest

from scripts.lib import nodes

LINES = 3000
WRITER = f"import os\nfor i in range({LINES}): os.write(2, b'line %d\\n' % i)"


class LogTest(unittest.TestCase):
    def test_reading_loses_no_line_that_is_being_written(self):
        node = nodes.Node.__new__(nodes.Node)  # without a program
        node.log = tempfile.TemporaryFile()
        self.addCleanup(node.log.close)
        writer = subprocess.Popen([sys.executable, "-c", WRITER], stderr=node.log)
        while writer.poll() is None:
            node.output()
        self.assertEqual(node.output().count("line "), LINES)


if __name__ == "__main__":
    unittest.main()
