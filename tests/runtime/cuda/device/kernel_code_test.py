"""nvcc's output for the kernels, checked without a GPU: registers, memory,
parameters.

Needs cuobjdump: of the toolkit, or the one that triton brings for PyTorch. Exit
status 77, with the reason as the last line, where there is none.

REFRACT_CUDA_CODE names files with other code than the build's to look at, separated
by colons: launch.cu compiled for other GPUs.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

LIBRARY = (
    pathlib.Path(os.environ.get("REFRACT_BUILD_DIR", "build/release"))
    / "runtime/cuda/librefract_cuda_device.a"
)
CODE = [name for name in os.environ.get("REFRACT_CUDA_CODE", "").split(":") if name]

# Registers of a multiprocessor, on every GPU since compute capability 5.0.
REGISTERS = 65536
# Limit of a block without a request for more, less what dynamic shared memory
# takes: no kernel of ours has both. The driver's 1 KiB, from 8.0 on, is counted.
SHARED_BYTES = 48 * 1024
PARAMETER_BYTES = 4096

# Bytes of local memory that a kernel has, by architecture: what the compiler could not
# keep in registers, a place or an address that is put aside once per row or bag so
# that more warps run at once. It differs from one architecture to the next.
LOCAL_MEMORY = {
    "Reduce": {90: 8},
    "Bags<1>": {80: 8, 100: 8},
    "Bags<8>": {80: 8},
    "InteractionPairs": {100: 8},
}
# Compute capabilities for which the table was recorded. On others each kernel may use
# twice the table's largest value: an array in local memory, the fault to find, is larger.
KNOWN = {80, 86, 89, 90, 100}
ELSEWHERE_BYTES = 16


def tool(name):
    """Where `name` is, or None."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    triton = pathlib.Path(sysconfig.get_path("purelib"), "triton/backends/nvidia/bin")
    for folder in (None, pathlib.Path(nvcc).resolve().parent, triton):
        found = shutil.which(name, path=folder and str(folder))
        if found:
            return found
    return None


def dump(option, path):
    done = subprocess.run(
        [tool("cuobjdump"), option, str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def short(mangled):
    """Bags<4> of …Enter…4BagsILi4EE…"""
    done = subprocess.run(["c++filt", mangled], capture_output=True, text=True)
    name = done.stdout.strip().replace("(anonymous namespace)::", "")
    name = name.replace("refract::runtime::cuda::", "")
    found = re.search(r"Enter<(.*), \w+Call>\(", name)
    return found[1] if found else re.sub(r"\(.*|.*::", "", name)


class Kernel:
    def __init__(self, arch, mangled):
        self.arch, self.mangled = arch, mangled
        self.registers = self.stack = self.shared = self.parameters = None
        self.threads = None  # what it is compiled for; None: not said
        self.code = []  # operations


def kernels(path):
    """Of all architectures that `path` has code for."""
    found = {}

    def lines(option):
        """(architecture, line) of each."""
        arch = None
        for line in dump(option, path).splitlines():
            match = re.match(r"arch = sm_(\d+)|\s*code for sm_(\d+)", line)
            if match:
                arch = int(match[1] or match[2])
            yield arch, line

    def kernel(arch, mangled):
        return found.setdefault((arch, mangled), Kernel(arch, mangled))

    now = None
    for arch, line in lines("-sass"):
        match = re.search(r"Function : (\S+)", line)
        if match:
            now = kernel(arch, match[1])
        match = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*)", line)
        if match and now:
            now.code.append(match[2])
    for arch, line in lines("-res-usage"):
        match = re.search(r"Function (\S+):", line)
        if match:
            now = kernel(arch, match[1])
        match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line)
        if match:
            now.registers, now.stack, now.shared = map(int, match.groups())
    attribute = None
    for arch, line in lines("-elf"):
        if line.startswith("."):
            match = re.match(r"\.nv\.info\.(\S+)$", line)
            now = kernel(arch, match[1]) if match else None
        match = re.search(r"Attribute:\s+(\w+)", line)
        if match:
            attribute = match[1]
        match = re.match(r"\s+Value:\s+(0x[0-9a-f]+.*)", line)
        if match and now:
            values = [int(value, 16) for value in match[1].split()]
            if attribute == "EIATTR_MAX_THREADS":
                now.threads = values[0] * values[1] * values[2]
            if attribute == "EIATTR_CBANK_PARAM_SIZE":
                now.parameters = values[0]
    return list(found.values())


def problems(kernel):
    """The kernel's excesses over the limits, in words."""
    wrong = []
    name = short(kernel.mangled)
    allowed = ELSEWHERE_BYTES
    if kernel.arch in KNOWN:
        allowed = LOCAL_MEMORY.get(name, {}).get(kernel.arch, 0)
    local = sum(operation in ("LDL", "STL") for operation in kernel.code)
    if kernel.stack > allowed or (local and not allowed):
        wrong.append(
            f"{kernel.stack} bytes of local memory, {local} accesses to it; "
            f"{allowed} bytes are allowed"
        )
    # Registers are given to warps 256 at a time, 8 to each thread.
    taken = -(-kernel.registers // 8) * 8 * (kernel.threads or 1)
    if taken > REGISTERS:
        wrong.append(f"{kernel.registers} registers for {kernel.threads} threads")
    if kernel.shared > SHARED_BYTES:
        wrong.append(f"{kernel.shared} bytes of shared memory")
    if (kernel.parameters or 0) > PARAMETER_BYTES:
        wrong.append(f"{kernel.parameters} bytes of parameters")
    return [f"{name}, sm_{kernel.arch}: {what}" for what in wrong]


class KernelCode(unittest.TestCase):
    def test_the_kernels_of_the_build(self):
        for path in CODE or [LIBRARY]:
            with self.subTest(path):
                self.look_at(path)

    def look_at(self, path):
        found = kernels(path)
        # Each of them, for each architecture of the build.
        self.assertGreater(len(found), 12)
        for kernel in found:
            self.assertIsNotNone(kernel.registers, kernel.mangled)
            self.assertTrue(kernel.code, kernel.mangled)
            if "Empty" not in kernel.mangled:
                self.assertIsNotNone(kernel.threads, kernel.mangled)
                self.assertGreater(kernel.parameters, 0, kernel.mangled)
        wrong = [what for kernel in found for what in problems(kernel)]
        self.assertEqual(wrong, [])
        archs = {kernel.arch for kernel in found} & KNOWN
        used = {
            (short(kernel.mangled), kernel.arch)
            for kernel in found
            if kernel.stack and kernel.arch in archs
        }
        excepted = {
            (name, arch) for name in LOCAL_MEMORY for arch in archs & set(LOCAL_MEMORY[name])
        }
        self.assertEqual(used, excepted, "an exception that none needs")
        for kernel in found:
            print(
                f"{short(kernel.mangled):32} sm_{kernel.arch} "
                f"{kernel.registers:4} registers, {len(kernel.code):5} instructions"
            )

    def test_what_is_wrong_is_found(self):
        nvcc = tool("nvcc")
        if nvcc is None:
            self.skipTest("there is no nvcc")
        start = "__global__ void __launch_bounds__(256) kernel(int* p, int n) {"
        cases = {
            f"{start} p[threadIdx.x] = p[n] + p[n + 1]; }}": [],
            f"{start} int a[64]; for (int i = 0; i < n; ++i) a[i & 63] = p[i];"
            " p[0] = a[p[n] & 63]; }": ["bytes of local memory"],
            "__global__ void kernel(const __grid_constant__ Large l, int* p) {"
            " p[0] = l.numbers[p[1]]; }": ["bytes of parameters"],
        }
        with tempfile.TemporaryDirectory() as folder:
            for source, wanted in cases.items():
                with self.subTest(source):
                    path = pathlib.Path(folder) / "kernel.cu"
                    path.write_text(f"struct Large {{ int numbers[2000]; }};\n{source}")
                    subprocess.run(
                        [nvcc, "-fatbin", "-arch=sm_90", "-o", f"{folder}/kernel.fatbin",
                         str(path)], check=True, capture_output=True,
                    )  # fmt: skip
                    (kernel,) = kernels(f"{folder}/kernel.fatbin")
                    got = problems(kernel)
                    if not wanted:
                        self.assertEqual(got, [])
                    else:
                        self.assertTrue(
                            any(what in text for what in wanted for text in got), got
                        )


if __name__ == "__main__":
    if tool("cuobjdump") is None:
        print("skipped: there is no cuobjdump, neither on the path nor with nvcc or triton")
        sys.exit(77)
    unittest.main(verbosity=2)
