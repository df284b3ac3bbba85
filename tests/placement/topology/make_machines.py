"""Writes the dumps in machines/: sysfs as discovery reads it, for seven machines.

The machines are modelled on block diagrams and on the files that drivers make
(docs/how-to/topology.md names the sources); no real machine was dumped. Run without
arguments after a change; the dumps are kept in the tree.
"""

import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "machines"
GEN3, GEN4, GEN5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
IDLE = "2.5 GT/s PCIe"  # what an idle link shows as its current speed


class Machine:
    def __init__(self):
        self.files, self.folders, self.links = {}, {}, {}

    def file(self, path, text):
        """Adds a file, and its name to its folder."""
        folder, _, name = path.rpartition("/")
        self.files[path] = str(text)
        self.entry(folder, name)

    def entry(self, folder, name):
        names = self.folders.setdefault(folder, [])
        if name not in names:
            names.append(name)

    def numa(self, *cpu_lists, gib=256):
        for i, cpus in enumerate(cpu_lists):
            at = f"devices/system/node/node{i}"
            self.entry("devices/system/node", f"node{i}")
            self.files[f"{at}/cpulist"] = cpus
            self.files[f"{at}/meminfo"] = (
                f"Node {i} MemTotal:       {gib << 20} kB\n"
                f"Node {i} MemFree:        {gib << 18} kB"
            )
            self.files[f"{at}/distance"] = " ".join(
                "10" if i == j else "21" for j in range(len(cpu_lists))
            )

    def pci(self, root, *chain, numa=0, speed=GEN4, lanes=16, current=None,
            max_lanes=None, pci_class="0x060400", vendor="0x8086"):
        """Adds the last function of `chain`; returns its path."""
        path = "/".join(["devices", root, *chain])
        at = f"bus/pci/devices/{chain[-1]}"
        self.entry("bus/pci/devices", chain[-1])
        self.links[at] = path
        self.files[f"{at}/class"] = pci_class
        self.files[f"{at}/vendor"] = vendor
        self.files[f"{at}/numa_node"] = str(numa)
        if speed:
            self.files[f"{at}/max_link_speed"] = speed
            self.files[f"{at}/current_link_speed"] = current or speed
            self.files[f"{at}/max_link_width"] = str(max_lanes or lanes)
            self.files[f"{at}/current_link_width"] = str(lanes)
        return path

    def switch(self, root, *chain, down, numa=0, speed=GEN4):
        """A root port or bus, an upstream port, downstream ports."""
        for i in range(1, len(chain) + 1):
            self.pci(root, *chain[:i], numa=numa, speed=speed)
        for port in down:
            self.pci(root, *chain, port, numa=numa, speed=speed)

    def gpu(self, root, *chain, numa=0, speed=GEN4, current=IDLE):
        self.pci(root, *chain, numa=numa, speed=speed, current=current,
                 pci_class="0x030200", vendor="0x10de")

    def rdma(self, name, path, netdevs=(), ports=None):
        at = f"class/infiniband/{name}"
        self.entry("class/infiniband", name)
        if path:
            self.links[f"{at}/device"] = path
            for netdev in netdevs:
                self.entry(f"{at}/device/net", netdev)
                self.net(netdev, path)
        for number, port in enumerate(ports, 1):
            self.port(f"{at}/ports/{number}", **port)
            self.entry(f"{at}/ports", str(number))

    def port(self, at, state="4: ACTIVE", rate="200 Gb/sec (4X HDR)",
             layer="Ethernet", gids=()):
        self.file(f"{at}/state", state)
        self.file(f"{at}/rate", rate)
        self.file(f"{at}/link_layer", layer)
        for index, (gid, kind, netdev) in enumerate(gids):
            self.file(f"{at}/gids/{index}", gid)
            self.file(f"{at}/gid_attrs/types/{index}", kind)
            if netdev:
                self.file(f"{at}/gid_attrs/ndevs/{index}", netdev)

    def net(self, name, path, state="up", mbps=None):
        self.entry("class/net", name)
        if path:
            self.links[f"class/net/{name}/device"] = path
        self.files[f"class/net/{name}/operstate"] = state
        if mbps is not None:
            self.files[f"class/net/{name}/speed"] = str(mbps)

    def write(self, name):
        dump = {"format": "refract-sysfs-dump", "version": 1,
                "files": dict(sorted(self.files.items())),
                "folders": dict(sorted(self.folders.items())),
                "links": dict(sorted(self.links.items()))}
        text = json.dumps(dump, indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text)


def ipv4_gid(*octets):
    a, b, c, d = octets
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def roce(netdev, *octets):
    gid = ipv4_gid(*octets)
    return [(gid, "IB/RoCE v1", netdev), (gid, "RoCE v2", netdev)]


def two_socket_8gpu():
    """Prism's GPU node (NSDI '25, figure 10): two switches per socket, each with
    a NIC and two GPUs. The last NIC trained with 8 of 16 lanes."""
    m = Machine()
    m.numa("0-31,64-95", "32-63,96-127", gib=512)
    for i, (bus, numa) in enumerate([(0x15, 0), (0x26, 0), (0x97, 1), (0xA7, 1)]):
        root = f"pci0000:{bus:02x}"
        ports = [f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"]
        down = [f"0000:{bus + 2:02x}:{n:02x}.0" for n in range(3)]
        m.switch(root, *ports, down=down, numa=numa)
        for n in range(2):
            m.gpu(root, *ports, down[n], f"0000:{bus + 3 + n:02x}:00.0", numa=numa)
        nic = m.pci(root, *ports, down[2], f"0000:{bus + 5:02x}:00.0", numa=numa,
                    lanes=8 if i == 3 else 16, max_lanes=16, pci_class="0x020000",
                    vendor="0x15b3")
        m.rdma(f"mlx5_{i}", nic, [f"ens{i}f0"],
               [{"gids": roce(f"ens{i}f0", 10, 0, i, 7)}])
    m.net("lo", None)
    m.write("two_socket_8gpu")


def hgx_h200():
    """Eight GPUs and eight InfiniBand cards; of each pair of cards one hangs on
    the switch of the GPUs, one on a second switch below it. The ninth card, for
    management, is Ethernet without RDMA."""
    m = Machine()
    m.numa("0-55,112-167", "56-111,168-223", gib=1024)
    for i, (bus, numa) in enumerate([(0x11, 0), (0x36, 0), (0x91, 1), (0xB6, 1)]):
        root = f"pci0000:{bus:02x}"
        ports = [f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"]
        down = [f"0000:{bus + 2:02x}:{n:02x}.0" for n in range(4)]
        m.switch(root, *ports, down=down, numa=numa, speed=GEN5)
        for n in range(2):
            m.gpu(root, *ports, down[n], f"0000:{bus + 3 + n:02x}:00.0",
                  numa=numa, speed=GEN5)
        near = m.pci(root, *ports, down[2], f"0000:{bus + 5:02x}:00.0", numa=numa,
                     speed=GEN5, pci_class="0x020700", vendor="0x15b3")
        second = [*ports, down[3], f"0000:{bus + 6:02x}:00.0"]
        below = f"0000:{bus + 7:02x}:00.0"
        m.switch(root, *second, down=[below], numa=numa, speed=GEN5)
        far = m.pci(root, *second, below, f"0000:{bus + 8:02x}:00.0", numa=numa,
                    speed=GEN5, pci_class="0x020700", vendor="0x15b3")
        for n, path in enumerate([near, far]):
            number = 2 * i + n
            gid = f"fe80:0000:0000:0000:9403:f703:00a1:{number:04x}"
            m.rdma(f"mlx5_{number}", path, [f"ibs{number}"],
                   [{"rate": "400 Gb/sec (4X NDR)", "layer": "InfiniBand",
                     "gids": [(gid, "IB/RoCE v1", "")]}])
    m.pci("pci0000:00", "0000:00:1c.0", numa=0, speed=GEN3, lanes=4)
    m.net("eno1", m.pci("pci0000:00", "0000:00:1c.0", "0000:01:00.0", numa=0,
                        speed=GEN3, lanes=4, pci_class="0x020000"), mbps=10000)
    m.write("hgx_h200")


def vm():
    """A virtual machine with one passed-through GPU and virtual function: all on
    the root bus, no NUMA node, no link data."""
    m = Machine()
    m.numa("0-15", gib=64)
    root = "pci0000:00"
    plain = {"numa": -1, "speed": None}
    eth0 = m.pci(root, "0000:00:03.0", pci_class="0x020000", vendor="0x1af4", **plain)
    m.net("eth0", f"{eth0}/virtio0", mbps=-1)
    m.pci(root, "0000:00:05.0", pci_class="0x030200", vendor="0x10de", **plain)
    nic = m.pci(root, "0000:00:06.0", pci_class="0x020000", vendor="0x15b3", **plain)
    m.rdma("mlx5_0", nic, ["eth1"],
           [{"rate": "100 Gb/sec (4X EDR)", "gids": roce("eth1", 10, 1, 0, 4)}])
    m.write("vm")


def soft_roce():
    """soft-RoCE over the virtio device of a small virtual machine without PCI."""
    m = Machine()
    m.numa("0-1", gib=2)
    m.net("eth0", "devices/platform/a000000.virtio_mmio/virtio0", mbps=-1)
    m.rdma("rxe0", None, (),
           [{"rate": "2.5 Gb/sec (1X SDR)", "gids": roce("eth0", 10, 9, 0, 1)}])
    m.files["class/infiniband/rxe0/parent"] = "eth0"
    m.write("soft_roce")


def sriov_vf():
    """A card and two of its virtual functions. The kernel knows no link of a
    virtual function."""
    m = Machine()
    m.numa("0-15", "16-31")
    root, port = "pci0000:3a", "0000:3a:00.0"
    m.pci(root, port, numa=1)
    physical = m.pci(root, port, "0000:3b:00.0", numa=1, pci_class="0x020000",
                     vendor="0x15b3")
    m.rdma("mlx5_0", physical, ["ens1f0"],
           [{"rate": "100 Gb/sec (2X HDR)", "gids": roce("ens1f0", 10, 2, 0, 1)}])
    for n in (1, 2):
        address = f"0000:3b:00.{n + 1}"
        path = m.pci(root, port, address, numa=1, speed="Unknown", lanes=0,
                     pci_class="0x020000", vendor="0x15b3")
        m.links[f"bus/pci/devices/{address}/physfn"] = physical
        m.rdma(f"mlx5_{n}", path, [f"ens1f0v{n}"],
               [{"rate": "100 Gb/sec (2X HDR)",
                 "gids": roce(f"ens1f0v{n}", 10, 2, 0, 10 + n)}])
    m.write("sriov_vf")


def bonded():
    """Two ports of one card bonded by the kernel: one RDMA device, whose
    addresses belong to the bond."""
    m = Machine()
    m.numa("0-15", "16-31")
    root, port = "pci0000:5d", "0000:5d:00.0"
    m.pci(root, port, numa=0)
    paths = [m.pci(root, port, f"0000:5e:00.{n}", numa=0, pci_class="0x020000",
                   vendor="0x15b3") for n in range(2)]
    m.rdma("mlx5_bond_0", paths[0], ["ens2f0np0"],
           [{"rate": "100 Gb/sec (4X EDR)", "gids": roce("bond0", 10, 3, 0, 1)}])
    m.net("ens2f1np1", paths[1], mbps=100000)
    m.net("bond0", None)
    m.files["class/net/bond0/bonding/slaves"] = "ens2f0np0 ens2f1np1"
    m.write("bonded")


def down_first_port():
    """A card of two ports whose first is down, on node 0; a card without any
    cable on node 0; a slower card that works on node 1."""
    m = Machine()
    m.numa("0-7", "8-15")
    m.pci("pci0000:00", "0000:00:02.0", numa=0, speed=GEN3, lanes=8)
    dual = m.pci("pci0000:00", "0000:00:02.0", "0000:05:00.0", numa=0, speed=GEN3,
                 lanes=8, pci_class="0x028000", vendor="0x15b3")
    m.rdma("mlx4_0", dual, ["enp5s0", "enp5s0d1"],
           [{"state": "1: DOWN", "rate": "40 Gb/sec (4X FDR10)"},
            {"rate": "40 Gb/sec (4X FDR10)", "gids": roce("enp5s0d1", 10, 4, 0, 1)}])
    m.pci("pci0000:17", "0000:17:00.0", numa=0)
    unplugged = m.pci("pci0000:17", "0000:17:00.0", "0000:18:00.0", numa=0,
                      pci_class="0x020000", vendor="0x15b3")
    m.rdma("mlx5_0", unplugged, ["ens3f0"], [{"state": "1: DOWN"}])
    m.pci("pci0000:85", "0000:85:00.0", numa=1)
    working = m.pci("pci0000:85", "0000:85:00.0", "0000:86:00.0", numa=1,
                    pci_class="0x020000", vendor="0x15b3")
    m.rdma("mlx5_1", working, ["ens7f0"],
           [{"rate": "25 Gb/sec (1X EDR)", "gids": roce("ens7f0", 10, 4, 1, 1)}])
    m.write("down_first_port")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for make in (two_socket_8gpu, hgx_h200, vm, soft_roce, sriov_vf, bonded,
                 down_first_port):
        make()
