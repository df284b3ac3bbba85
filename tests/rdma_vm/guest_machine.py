"""One QEMU process: command line, accelerator, life and death."""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import time

import guest_image

QEMU = "qemu-system-x86_64"
BOOT_MARKER = "refract-vm boots"
FAILURE_MARKER = "refract-vm failed: "
PANIC_MARKER = "Kernel panic"
# An emulated boot takes 5 s on an idle machine. KVM that works boots within
# one; some machines have a /dev/kvm on which this kernel never starts.
KVM_PROBE_S = 10


def _die_with_parent():
    """In the child: SIGKILL when run_in_vm goes, however it goes."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def require_qemu():
    if not shutil.which(QEMU):
        raise guest_image.Unavailable(f"{QEMU} is not installed")


class Machine:
    """A guest of `image`. `console` is the file that its console goes to."""

    def __init__(self, image, accelerator, console, *, cpus=2, memory_mib=1024,
                 folders=(), kernel_arguments="", take_turns=False):  # fmt: skip
        """`folders`: (mount tag, path, may the guest write) of each share.

        take_turns: emulated CPUs share a thread, and a CPU that spins gives way.
        Else the CPU spins for the lock of QEMU's devices, which the other CPU
        needs for an interrupt before it ends the wait.
        """
        self.console = pathlib.Path(console)
        kvm = accelerator == "kvm"
        command = [
            QEMU, "-nodefaults", "-no-user-config", "-display", "none",
            "-monitor", "none", "-no-reboot", "-machine", "q35",
            # Room for the translated code of LibTorch.
            "-accel", "kvm" if kvm else
            f"tcg,thread={'single' if take_turns else 'multi'},tb-size=512",
            # String instructions are emulated byte by byte: without ERMS and FSRM
            # the kernel and libc move words and vectors instead.
            "-cpu", "host" if kvm else "max,erms=off,fsrm=off",
            "-smp", str(cpus), "-m", str(memory_mib),
            "-serial", f"file:{console}",
            "-kernel", str(image.kernel), "-initrd", str(image.initramfs),
            # A panic ends QEMU (panic=-1, -no-reboot). Mitigations, pages that are
            # cleared twice and self-tests cost emulated time and protect nothing
            # here. QEMU's TSC is that of the host on every CPU; the other clocks
            # are devices, which every look at the time would ask under a lock.
            "-append", "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr"
            " mitigations=off init_on_alloc=0 cryptomgr.notests tsc=reliable"
            " random.trust_cpu=on audit=0 apparmor=0 "
            + kernel_arguments,
        ]  # fmt: skip
        for tag, path, writable in folders:
            access = "" if writable else ",readonly=on"
            # multidevs=remap: `path` may hold several file systems.
            command += [
                "-fsdev", f"local,id={tag},path={path},security_model=none,"
                f"multidevs=remap{access}",
                "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
            ]  # fmt: skip
        with open(f"{console}.qemu", "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def running(self):
        return self.process.poll() is None

    def how_it_ended(self):
        """In words, for a guest that ended and left no reason."""
        code = self.process.poll()
        if code is not None and code < 0:
            return f"QEMU was ended by {signal.Signals(-code).name}"
        return f"the guest ended by itself (QEMU's exit status {code})"

    def kill(self):
        if self.running():
            self.process.kill()
        self.process.wait()

    def console_text(self):
        text = ""
        for path in (self.console, pathlib.Path(f"{self.console}.qemu")):
            if path.exists():
                text += path.read_text(errors="replace")
        return text

    def failure(self):
        """Why the guest ended, where it or its kernel said so, or None."""
        for line in self.console_text().splitlines():
            for marker in (FAILURE_MARKER, PANIC_MARKER):
                if marker in line:
                    return line[line.index(marker) :].strip()
        return None


def _kvm_boots(image, folder):
    console = folder / f"probe.{os.getpid()}"
    machine = Machine(
        image, "kvm", console, cpus=1, memory_mib=512,
        kernel_arguments="refract.probe",
    )  # fmt: skip
    try:
        end = time.monotonic() + KVM_PROBE_S
        while time.monotonic() < end:
            ended = not machine.running()
            if BOOT_MARKER in machine.console_text():
                return True
            if ended:
                return False
            time.sleep(0.05)
        return False
    finally:
        machine.kill()
        for path in folder.glob(console.name + "*"):
            path.unlink()


def accelerator(image):
    """"kvm" where a guest boots with it, else "tcg".

    The answer of the probe holds until the machine is booted anew.
    REFRACT_RDMA_VM_ACCEL=tcg or kvm decides without one.
    """
    chosen = os.environ.get("REFRACT_RDMA_VM_ACCEL")
    if chosen:
        return chosen
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    cache = guest_image.cache_folder()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = cache / "accelerator"
    key = f"{boot} {image.kernel.parent.name}"
    with guest_image.lock(cache / "lock"):
        if answer.exists() and answer.read_text().startswith(key + " "):
            return answer.read_text().split()[-1]
        result = "kvm" if _kvm_boots(image, cache) else "tcg"
        answer.write_text(f"{key} {result}\n")
        return result
