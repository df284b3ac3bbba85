"""The fragmentation metric once more, from its definition, in Python.

`refract simulate fill` writes where it placed instances and the fragments at the
end, by cause. This computes both from the placements alone: what is free on each
node, the target workload (the most frequent 95 % of the shapes), and the rule of
Weng et al. (ATC '23, section 3.2).
"""

import collections
import csv
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

REFRACT = pathlib.Path(os.environ["REFRACT_BUILD_DIR"]) / "bin/refract"
SOURCE = pathlib.Path(os.environ["REFRACT_SOURCE_DIR"])
TRACES = pathlib.Path(
    os.environ.get("REFRACT_TRACES", SOURCE.parent / "shared/data")
)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def shape_of(row):
    """(cores ‰, GPUs, ‰ of each) of an instance row of either format."""
    if "num_gpu" in row:
        return int(row["cpu_milli"]), int(row["num_gpu"]), int(row["gpu_milli"])
    gpus = int(row["gpus"])
    milli = int(row.get("gpu_milli") or (1000 if gpus else 0))
    return int(row["cpu_milli"]), gpus, milli


def workload_of(rows):
    counts = collections.Counter(shape_of(row) for row in rows)
    # Ties at the edge of the 95 % go by GPUs, their parts, then cores.
    order = sorted(counts.items(), key=lambda e: (-e[1], e[0][1], e[0][2], e[0][0]))
    kept, covered = [], 0
    for shape, count in order:
        if covered >= 0.95 * len(rows):
            break
        kept.append((shape, count))
        covered += count
    return [(shape, count / covered) for shape, count in kept]


def fragments(nodes, placements, workload):
    """Cause → thousandths of a GPU over all nodes."""
    free_cpu = {n: cpu for n, (cpu, _) in nodes.items()}
    free_gpu = {n: [1000] * gpus for n, (_, gpus) in nodes.items()}
    for row in placements:
        free_cpu[row["node"]] -= int(row["cpu_milli"])
        for gpu in filter(None, row["gpu_ids"].split("|")):
            free_gpu[row["node"]][int(gpu)] -= int(row["gpu_milli"])
    causes = collections.Counter()
    for node in nodes:
        gpus = free_gpu[node]
        assert min(gpus, default=0) >= 0 and free_cpu[node] >= 0, node
        total = sum(gpus)
        whole = sum(g == 1000 for g in gpus)
        part = max((g for g in gpus if g < 1000), default=0)
        for (cpu, count, milli), popularity in workload:
            wanted = count * milli
            lacks_gpu = wanted > 1000 * whole + part
            lacks_cpu = cpu > free_cpu[node]
            if wanted == 0:
                causes["no GPU wanted"] += popularity * total
            elif lacks_gpu and lacks_cpu:
                causes["GPU and CPU"] += popularity * total
            elif lacks_gpu:
                causes["GPU"] += popularity * total
            elif lacks_cpu:
                causes["CPU"] += popularity * total
            else:
                small = sum(g for g in gpus if g < min(wanted, 1000))
                causes["GPU"] += popularity * small
    return causes


class FragmentationTest(unittest.TestCase):
    def check(self, nodes_file, instances_file, policy, arrival):
        with tempfile.TemporaryDirectory() as folder:
            out, report = f"{folder}/placed.csv", f"{folder}/report.json"
            subprocess.run(
                [REFRACT, "simulate", "fill", "--nodes", nodes_file,
                 "--instances", instances_file, "--policy", policy,
                 "--arrival", str(arrival), "--seeds", "1",
                 "--placements", out, "--json", report],
                check=True, stdout=subprocess.DEVNULL)
            placements = read(out)
            figures = json.loads(pathlib.Path(report).read_text())
        gpus_of = "gpu" if "gpu" in read(nodes_file)[0] else "gpus"
        name = "sn" if gpus_of == "gpu" else "name"
        nodes = {
            row[name]: (int(row["cpu_milli"]), int(row[gpus_of]))
            for row in read(nodes_file)
        }
        capacity = 1000 * sum(gpus for _, gpus in nodes.values())
        workload = workload_of(read(instances_file))
        run = figures["policies"][0]["runs"][0]
        expected = fragments(nodes, placements, workload)
        for cause, part in run["fragment_at_end"].items():
            self.assertAlmostEqual(expected[cause] / capacity, part, 9, cause)
        allocated = sum(
            int(row["gpus"]) * int(row["gpu_milli"]) for row in placements
        )
        self.assertAlmostEqual(allocated / capacity, run["allocated_at_end"], 9)
        empty = sum(fragments(nodes, [], workload).values())
        self.assertAlmostEqual(empty / capacity, figures["empty_fragment"], 9)
        return figures

    def test_made_up_clusters(self):
        for seed in range(4):
            rng = random.Random(seed)
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder:
                nodes, instances = f"{folder}/nodes.csv", f"{folder}/instances.csv"
                with open(nodes, "w") as file:
                    print("name,cpu_milli,memory_mib,gpus,gpu_model", file=file)
                    for i in range(40):
                        cpu = rng.choice([16, 64, 96, 128]) * 1000
                        print(f"n{i},{cpu},999999,{rng.choice([1, 2, 4, 8])},T4",
                              file=file)
                with open(instances, "w") as file:
                    print("name,cpu_milli,memory_mib,gpus,gpu_milli", file=file)
                    for i in range(300):
                        gpus = rng.choice([0, 1, 1, 1, 2, 8])
                        milli = 1000 if gpus else 0
                        if gpus == 1 and rng.random() < 0.5:
                            milli = rng.choice([100, 250, 460, 700])
                        cpu = rng.choice([2, 4, 6, 8, 12, 24]) * 1000
                        print(f"i{i},{cpu},1,{gpus},{milli}", file=file)
                for policy in ("fgd", "random", "combined"):
                    self.check(nodes, instances, policy, rng.choice([0.5, 0.9, 1.2]))

    def test_v2023(self):
        folder = TRACES / "alibaba-gpu-v2023"
        nodes = folder / "openb_node_list_gpu_node.csv"
        if not nodes.exists():
            self.skipTest(f"no {nodes}; set REFRACT_TRACES")
        figures = self.check(
            nodes, folder / "openb_pod_list_default.csv", "fgd", 0.9)
        self.assertAlmostEqual(figures["empty_fragment"], 0.139, delta=0.002)


if __name__ == "__main__":
    unittest.main()
