"""Daemons that bind themselves by topology, and CPU nodes that know the fabric."""

import json
import os
import pathlib
import tempfile
import unittest

from scripts.lib import nodes
from tests.e2e import support


def allowed_cpus(pid):
    """How many threads of a process there are per list of CPUs they may use."""
    counts = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list:"):
                cpus = line.split()[1]
                counts[cpus] = counts.get(cpus, 0) + 1
    return counts


class Topology(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        # A split model: without any, a CPU node starts no transport.
        support.export("dlrm", cls.folder / "dlrm")
        support.add_model(
            cls.folder / "repo", "dlrm", cls.folder / "dlrm" / "dlrm.pt2"
        )

    def start(self, make, *arguments):
        node = make(self.folder / "repo", *arguments)
        self.addCleanup(node.close)
        return node

    def cpu_node(self, *arguments):
        return self.start(
            lambda repo, *more: nodes.cpu_node(repo, ["127.0.0.1:1"], *more),
            *arguments,
        )

    def refuse(self, name, *arguments):
        """The line of a daemon that ends at start with status 2."""
        done = support.start_once(
            nodes.program(name), "--model-repository", self.folder / "repo",
            *arguments, check=False,
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr.splitlines()[-1]

    def two_nodes(self):
        """An override that gives the last usable CPU, and a NIC, to NUMA node 1."""
        cpus = sorted(os.sched_getaffinity(0))
        path = self.folder / "here.json"
        support.refract("topology", "--json", path)
        here = json.loads(path.read_text())
        if len(cpus) < 2 or len(here["numa_nodes"]) != 1 or not here["nics"]:
            self.skipTest(
                f"needs two CPUs, one NUMA node and a NIC; there are {len(cpus)}, "
                f"{len(here['numa_nodes'])} and {len(here['nics'])}"
            )
        first = here["numa_nodes"][0]
        others = [str(cpu) for cpu in cpus[:-1]]
        file = self.folder / "override.json"
        file.write_text(json.dumps({
            "numa_nodes": [
                {"id": first["id"], "cpus": ",".join(others)},
                {"id": first["id"] + 1, "cpus": str(cpus[-1])},
            ],
            "nics": [
                {"name": nic["name"], "numa_node": first["id"] + 1}
                for nic in here["nics"]
            ],
        }))
        return file, str(cpus[-1]), first["id"] + 1

    def test_polling_threads_run_where_the_nic_is(self):
        file, cpu, node = self.two_nodes()
        for make in (self.cpu_node, lambda *a: self.start(nodes.gpu_node, *a)):
            daemon = make("--topology", file)
            # The polling thread alone; the others keep all CPUs. A thread that it
            # starts has its CPUs for a moment.
            nodes.wait_until(
                lambda: allowed_cpus(daemon.process.pid)[cpu] == 1,
                f"one thread on CPU {cpu}", 20,
            )
            daemon.await_log(f"chosen NUMA node {node} (CPUs {cpu})")

    def test_off_binds_nothing(self):
        _, cpu, _ = self.two_nodes()
        daemon = self.cpu_node("--topology", "off")
        self.assertEqual(daemon.stop(), 0)
        daemon.await_log("topology: off, nothing is bound")

    def test_every_machine_gets_a_line(self):
        daemon = self.cpu_node()
        daemon.await_log("topology: ")

    def test_wrong_overrides_are_refused(self):
        file = self.folder / "bad.json"
        file.write_text('{"nics": [{"name": "no_such_nic"}]}')
        for name in ("refract-cpu-node", "refract-gpu-node"):
            self.assertIn(
                f"{file}: nics[0].name: the machine has no NIC no_such_nic",
                self.refuse(name, "--topology", file),
            )
            self.assertIn(
                "/no/such.json: cannot be read",
                self.refuse(name, "--topology", "/no/such.json"),
            )

    def test_fabric_gives_tiers(self):
        file = self.folder / "fabric"
        file.write_text(
            "cn-1 leaf=l1 pod=p1 address=10.9.9.9\n"
            "hn-1 leaf=l1 pod=p1\nhn-2 leaf=l2 pod=p1\n"
        )
        node = self.start(
            lambda repo, *more: nodes.cpu_node(
                repo, ["hn-1:81", "hn-2:82", "stranger:83", "127.0.0.1:84"], *more
            ),
            "--fabric", file, "--fabric-host", "10.9.9.9",
        )
        for address, tier in (
            ("hn-1:81", "leaf"), ("hn-2:82", "pod"), ("stranger:83", "far"),
            ("127.0.0.1:84", "host"),
        ):
            node.await_log(f"GPU node {address} is at tier {tier} from host cn-1")

    def test_wrong_fabrics_are_refused(self):
        file = self.folder / "topology.conf"
        file.write_text("SwitchName=a Switches=b\nSwitchName=b Switches=a\n")
        self.assertIn(
            f"{file}: line 1: the switches above a form a cycle",
            self.refuse("refract-cpu-node", "--fabric", file),
        )
        file.write_text("cn-1 leaf=l1\ncn-1 leaf=l2\n")
        self.assertIn(
            f"{file}: line 2: host cn-1 is listed twice",
            self.refuse("refract-cpu-node", "--fabric", file),
        )
        file.write_text("cn-1 leaf=l1\n")
        self.assertIn(
            f"{file}: there is no host elsewhere; --fabric-host names this one",
            self.refuse(
                "refract-cpu-node", "--fabric", file, "--fabric-host", "elsewhere"
            ),
        )
        self.assertIn(
            "--fabric-host requires --fabric",
            self.refuse("refract-cpu-node", "--fabric-host", "a"),
        )


if __name__ == "__main__":
    unittest.main()
