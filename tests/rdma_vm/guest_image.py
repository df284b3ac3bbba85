"""The guest's kernel and initramfs: found or unpacked, built once per user.

    guest_image.py kernel   prints where the kernel would come from, or fails
    guest_image.py cache    prints the cache folder

Sources, in this order: a kernel that is installed here (/boot and
/lib/modules), else the newest Debian kernel package in the cache folder, where
scripts/lib/install.sh puts one. An installed kernel is not needed: a package in
the cache is only read, so the machine's own boot menu stays as it is.

The result is <cache>/image.<key>/{kernel,initramfs}; the key covers kernel,
busybox, modules and the init script, so a change of any of them builds anew.
"""

import contextlib
import dataclasses
import fcntl
import gzip
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
INIT = HERE / "initramfs_init.sh"
HOST_ROOT = pathlib.Path("/")

# Modules that the guest loads at boot, in addition to their dependencies. Everything
# is loaded by the initramfs: the host's root has no modules of this kernel.
MODULES = (
    # The host's root and the job folder.
    "virtio_pci", "9pnet_virtio", "9p", "overlay",
    # Soft-RoCE, which asks for the crc32 algorithm by name, and the devices of
    # libibverbs and librdmacm.
    "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm",
    # The layouts; netem delays and drops packets.
    "dummy", "veth", "sch_netem",
)  # fmt: skip
# dummy creates an interface when it is loaded unless it is told not to.
MODULE_OPTIONS = {"dummy": "numdummies=0"}

OLD_IMAGE_S = 7 * 24 * 3600


class Unavailable(Exception):
    """The machine lacks something that a guest needs; the text names it."""


@dataclasses.dataclass(frozen=True)
class Image:
    kernel: pathlib.Path
    initramfs: pathlib.Path
    release: str


def cache_folder():
    """As in scripts/lib/install.sh."""
    folder = os.environ.get("REFRACT_RDMA_VM_CACHE")
    if folder:
        return pathlib.Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "refract" / "rdma_vm"


@contextlib.contextmanager
def lock(path):
    """Excludes every other process that locks `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _version_key(text):
    return [
        int(part) if part.isdigit() else part
        for part in re.split(r"(\d+)", text)
    ]


def _installed_releases(root):
    """Kernels under `root` that have soft-RoCE and may be read, newest first."""
    found = []
    for image in (root / "boot").glob("vmlinuz-*"):
        release = image.name.removeprefix("vmlinuz-")
        drivers = root / "lib/modules" / release / "kernel/drivers/infiniband"
        if any(drivers.glob("sw/rxe/rdma_rxe.ko*")) and os.access(
            image, os.R_OK
        ):
            found.append(release)
    return sorted(found, key=_version_key, reverse=True)


def _cached_package():
    packages = cache_folder().glob("linux-image-*.deb")
    newest = sorted(packages, key=lambda p: _version_key(p.name))
    return newest[-1] if newest else None


def _tool(name):
    path = shutil.which(
        name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    )
    if not path:
        raise Unavailable(f"{name} is not installed")
    return path


def _run(*command, **kwargs):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        check=False,
        **kwargs,
    )
    if done.returncode != 0:
        raise Unavailable(
            f"{command[0]} exited with {done.returncode}:"
            f" {done.stderr.decode(errors='replace').strip()[-300:]}"
        )
    return done.stdout


def _unpack(package, root):
    archive = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
    )
    _run("tar", "-x", "-C", root, "./boot", "./lib", stdin=archive.stdout)
    archive.stdout.close()
    if archive.wait() != 0:
        raise Unavailable(f"{package} cannot be unpacked")


def _module_files(root, release):
    """(path, options) of every module to load, in load order."""
    depmod, modprobe = _tool("depmod"), _tool("modprobe")
    modules = root / "lib/modules" / release
    if not (modules / "modules.dep").exists():
        _run(depmod, "-b", root, release)
    files = {}
    for module in MODULES:
        # The configuration of the machine here must not matter: -C.
        lines = _run(
            modprobe, "-C", "/dev/null", "-d", root, "-S", release,
            "--show-depends", module,
        ).decode().splitlines()  # fmt: skip
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "insmod":  # "builtin" needs nothing
                path = pathlib.Path(rest.split()[0])
                name = path.name.partition(".")[0].replace("-", "_")
                files[path] = MODULE_OPTIONS.get(name, "")
    return list(files.items())


def _module_bytes(path):
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix != ".ko":
        raise Unavailable(f"{path}: no decompressor for {path.suffix}")
    return data


def _uncompressed_kernel(image):
    """The ELF kernel inside an xz-compressed bzImage, or None.

    QEMU enters it directly, which spares the emulated CPU the decompression
    (seconds). Offsets: the setup header of the Linux/x86 boot protocol.
    """
    data = image.read_bytes()
    (setup_sectors,) = struct.unpack_from("<B", data, 0x1F1)
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    try:
        kernel = lzma.LZMADecompressor().decompress(
            data[begin : begin + length]
        )
    except lzma.LZMAError:
        return None
    return kernel if kernel.startswith(b"\x7fELF") else None


def _build(root, release, folder):
    busybox = _tool("busybox")
    tree = folder / "tree"
    for name in ("bin", "dev", "host", "layer", "modules", "newroot", "proc",
                 "sys"):  # fmt: skip
        (tree / name).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin/busybox")
    shutil.copy(INIT, tree / "init")
    (tree / "init").chmod(0o755)
    order = []
    for path, options in _module_files(root, release):
        name = path.name.partition(".")[0] + ".ko"
        (tree / "modules" / name).write_bytes(_module_bytes(path))
        order.append(f"{name} {options}".strip() + "\n")
    (tree / "modules/order").write_text("".join(order))
    names = sorted(str(p.relative_to(tree)) for p in tree.rglob("*"))
    archive = _run(
        _tool("cpio"), "--create", "--format=newc", "--owner=0:0", "--quiet",
        cwd=tree, input="\n".join(names).encode() + b"\n",
    )  # fmt: skip
    (folder / "initramfs").write_bytes(gzip.compress(archive, 6, mtime=0))
    shutil.rmtree(tree)
    boot = root / "boot" / f"vmlinuz-{release}"
    kernel = _uncompressed_kernel(boot)
    (folder / "kernel").write_bytes(kernel or boot.read_bytes())


def _is_static(program):
    """True unless the ELF file names a dynamic loader."""
    data = pathlib.Path(program).read_bytes()
    (offset,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    interp = 3  # PT_INTERP
    return all(
        struct.unpack_from("<I", data, offset + i * size)[0] != interp
        for i in range(count)
    )


def prepare():
    """The image for this machine, built if need be. Raises Unavailable."""
    cache = cache_folder()
    if not _is_static(_tool("busybox")):
        raise Unavailable("busybox is not static (package busybox-static)")
    with lock(cache / "lock"):
        return _prepare_locked(cache)


def _kernel_source():
    """(release, its image) of an installed kernel or (None, package)."""
    installed = _installed_releases(HOST_ROOT)
    wanted = os.environ.get("REFRACT_RDMA_VM_KERNEL")
    if wanted and wanted not in installed:
        raise Unavailable(f"kernel {wanted} is not installed, or not readable")
    if installed:
        release = wanted or installed[0]
        return release, HOST_ROOT / "boot" / f"vmlinuz-{release}"
    package = _cached_package()
    if package:
        return None, package
    raise Unavailable(
        "no kernel with soft-RoCE: neither installed (linux-image-amd64) nor"
        f" as a package in {cache_folder()} (scripts/test.sh fetches one)"
    )


def _drop_old_images(cache, keep):
    """Each holds 70 MB. One that a run uses was touched seconds ago."""
    os.utime(keep)
    for folder in cache.glob("image.*"):
        if time.time() - folder.stat().st_mtime > OLD_IMAGE_S:
            shutil.rmtree(folder, ignore_errors=True)


def _prepare_locked(cache):
    release, source = _kernel_source()
    parts = [str(source).encode()]
    for file in (source, pathlib.Path(_tool("busybox"))):
        status = file.stat()
        parts.append(f"{status.st_size} {status.st_mtime_ns}".encode())
    parts += [INIT.read_bytes(), pathlib.Path(__file__).read_bytes()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache / f"image.{key}"
    if not (folder / "release").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="build.") as build:
            build = pathlib.Path(build)
            root = HOST_ROOT
            if release is None:
                root = build / "root"
                root.mkdir()
                _unpack(source, root)
                (release,) = _installed_releases(root)[:1] or [None]
                if release is None:
                    raise Unavailable(f"{source} has no soft-RoCE module")
            image = build / "image"
            image.mkdir()
            _build(root, release, image)
            (image / "release").write_text(release)
            image.rename(folder)
    _drop_old_images(cache, keep=folder)
    return Image(
        kernel=folder / "kernel",
        initramfs=folder / "initramfs",
        release=(folder / "release").read_text(),
    )


def main():
    if sys.argv[1:] == ["cache"]:
        print(cache_folder())
    elif sys.argv[1:] == ["kernel"]:
        try:
            print(_kernel_source()[1])
        except Unavailable as reason:
            sys.exit(str(reason))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
