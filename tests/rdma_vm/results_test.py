"""run_in_vm's reading of results, devices and kernels; needs no guest."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import guest_image
import native
import programs

CASE = '<testcase name="{0}" classname="S" status="{1}">{2}</testcase>'


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, path, text):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class ProgramTest(Folder):
    def program(self, name, exit_code, *cases, limit_s=10, seconds=1):
        """A program that ran; `cases` are (name, status, inner XML)."""
        program = programs.Program([f"/x/{name}"], self.folder / name, limit_s)
        program.write({"A": "it's"}, program.folder)
        for file, text in (
            ("exit_code", exit_code), ("begin", 5), ("end", 5 + seconds),
        ):  # fmt: skip
            (program.folder / file).write_text(f"{text}\n")
        if cases:
            inner = "".join(CASE.format(*case) for case in cases)
            (program.folder / "cases/x.xml").write_text(
                f'<testsuites><testsuite name="S">{inner}</testsuite>'
                "</testsuites>"
            )
        program.read_result()
        program.judge()
        return program

    def merged(self, *some):
        """{class.name: passed, failed or skipped} of the merged file."""
        path = self.folder / "merged.xml"
        programs.merge_cases(some, path)
        if not path.exists():
            return None
        outcome = {}
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            kinds = [child.tag for child in case]
            outcome[f"{case.get('classname')}.{case.get('name')}"] = (
                "failed" if "failure" in kinds
                else "skipped" if "skipped" in kinds
                else "passed"
            )  # fmt: skip
        return outcome

    def test_command_file_sets_the_environment_and_runs_the_command(self):
        program = programs.Program(
            ["printf", "%s,", "a b", "$A"], self.folder / "p", 1
        )
        program.write({"A": "it's"}, "/in guest/p")
        done = subprocess.run(
            ["bash", program.folder / "command.sh"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.assertEqual(done.stdout, "a b,$A,")
        text = (program.folder / "command.sh").read_text()
        self.assertIn("""export A='it'"'"'s'""", text)
        self.assertIn("export GTEST_OUTPUT='xml:/in guest/p/cases/'", text)

    def test_cases_of_all_programs_are_merged(self):
        one = self.program("one", 0, ("a", "run", ""), ("b", "run", "<skipped/>"))
        two = self.program("two", 1, ("c", "run", "<failure/>"))
        self.assertEqual(
            self.merged(one, two),
            {"S.a": "passed", "S.b": "skipped", "S.c": "failed"},
        )

    def test_a_crash_is_a_failed_case(self):
        one = self.program("one", 0, ("a", "run", ""))
        two = self.program("two", 139)
        self.assertEqual(
            self.merged(one, two), {"S.a": "passed", "two.exit_code": "failed"}
        )

    def test_a_failure_after_the_last_case_is_a_failed_case(self):
        one = self.program("one", 1, ("a", "run", ""))
        self.assertEqual(
            self.merged(one), {"S.a": "passed", "one.exit_code": "failed"}
        )

    def test_programs_without_cases_leave_no_file(self):
        self.assertIsNone(self.merged(self.program("one", 0)))

    def test_a_cut_off_file_counts_as_none(self):
        one = self.program("one", 0, ("a", "run", ""))
        two = self.program("two", 137)
        (two.folder / "cases/x.xml").write_text("<testsuites><testsu")
        self.assertEqual(
            self.merged(one, two), {"S.a": "passed", "two.exit_code": "failed"}
        )

    def test_all_cases_skipped_is_a_failure(self):
        one = self.program("one", 0, ("a", "run", "<skipped/>"), ("b", "notrun", ""))
        self.assertEqual(one.exit_code, 1)
        self.assertIn("no case ran", one.problem)

    def test_only_a_program_that_used_its_time_timed_out(self):
        self.assertIsNone(self.program("own", 124, seconds=9).problem)
        late = self.program("late", 137, seconds=10.1)
        self.assertEqual(late.exit_code, programs.TIMED_OUT)
        self.assertIn("after 10 s", late.problem)

    def test_counter_changes(self):
        program = self.program("one", 0)
        self.write("one/counters_before.json", '{"d": {"a": 1, "b": 2}}')
        self.write(
            "one/counters_after.json", '{"d": {"a": 1, "b": 5}, "e": {"a": 1}}'
        )
        self.assertEqual(
            program.counter_changes(), {"d": {"b": 3}, "e": {"a": 1}}
        )

    def test_environment_that_is_passed_on(self):
        variables = {
            "REFRACT_SOURCE_DIR": "1", "GTEST_FILTER": "2", "HOME": "3",
            "GTEST_OUTPUT": "4", "REFRACT_RDMA_VM_CACHE": "5",
        }  # fmt: skip
        with mock.patch.dict(os.environ, variables, clear=True):
            self.assertEqual(
                programs.passed_on_environment(),
                {"REFRACT_SOURCE_DIR": "1", "GTEST_FILTER": "2"},
            )

    def test_list_is_quoted_as_in_a_shell(self):
        path = self.write("list", '"/a b/c" --x="1 2"\n\n/d\n')
        self.assertEqual(
            programs.read_list(path), [["/a b/c", "--x=1 2"], ["/d"]]
        )


class NativeDevicesTest(Folder):
    def device(self, name, state, verbs):
        self.write(f"infiniband/{name}/ports/1/state", state)
        self.write(f"infiniband_verbs/{verbs}/ibdev", name + "\n")

    def found(self):
        return native.devices(self.folder / "infiniband", self.folder / "dev")

    def test_active_ones_that_may_be_opened(self):
        self.device("mlx5_0", "1: DOWN\n", "uverbs0")
        self.device("mlx5_1", "4: ACTIVE\n", "uverbs1")
        self.device("mlx5_2", "4: ACTIVE\n", "uverbs2")
        self.write("dev/uverbs0", "")
        self.write("dev/uverbs2", "")
        self.assertEqual(self.found(), ["mlx5_2"])

    def test_none_without_the_subsystem(self):
        self.assertEqual(self.found(), [])

    def test_a_device_without_port_is_passed_over(self):
        self.write("infiniband/odd/node_type", "")
        self.assertEqual(self.found(), [])


class KernelTest(Folder):
    def kernel(self, release, soft_roce=True):
        self.write(f"boot/vmlinuz-{release}", "")
        if soft_roce:
            self.write(
                f"lib/modules/{release}/kernel/drivers/infiniband/sw/rxe/"
                "rdma_rxe.ko.xz",
                "",
            )

    def source(self):
        variables = {"REFRACT_RDMA_VM_CACHE": str(self.folder / "cache")}
        with (
            mock.patch.object(guest_image, "HOST_ROOT", self.folder),
            mock.patch.dict(os.environ, variables),
        ):
            return guest_image._kernel_source()

    def test_newest_installed_kernel_with_soft_roce(self):
        self.kernel("6.1.0-9-amd64")
        self.kernel("6.1.0-56-amd64")
        self.kernel("6.12.0-1-cloud-amd64", soft_roce=False)
        self.assertEqual(self.source()[0], "6.1.0-56-amd64")

    def test_else_the_newest_package(self):
        self.kernel("6.1.0-9-amd64", soft_roce=False)
        self.write("cache/linux-image-6.1.0-9-amd64_6.1.9-1_amd64.deb", "")
        new = self.write("cache/linux-image-6.1.0-56-amd64_6.1.192-2_amd64.deb", "")
        self.assertEqual(self.source(), (None, new))

    def test_else_says_what_is_missing(self):
        with self.assertRaisesRegex(guest_image.Unavailable, "linux-image"):
            self.source()

    def test_a_dynamic_busybox_is_told_from_a_static_one(self):
        self.assertFalse(guest_image._is_static(sys.executable))


if __name__ == "__main__":
    unittest.main()
