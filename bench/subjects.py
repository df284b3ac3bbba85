"""The measurements that bench/report.py runs: SUBJECTS, and what they prepare.

A page names, in each section with a table of figures, the subjects that make them
again: "Subject `models`." (bench/quotes.py). A report that is kept is
bench/results/MACHINE/SUBJECT.json.
"""

import dataclasses
import os
import pathlib
import shlex
import sys
import sysconfig

from scripts.lib.nodes import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BENCH = BUILD / "bench"
REFRACT = BUILD / "bin" / "refract"
NODE = BUILD / "bin" / "refract-cpu-node"
RUNTIME = BENCH / "bench_runtime"
# Alibaba's traces; tests/placement reads the same.
TRACES = pathlib.Path(os.environ.get("REFRACT_TRACES", ROOT / "shared/data"))


@dataclasses.dataclass(frozen=True)
class Subject:
    """A measurement.

    `command` has {out} for the JSON file, {folder} for the subject's folder, and
    {NAME} for the folder of a preparation.
    """

    name: str
    title: str
    command: tuple
    short: tuple = ()  # arguments that --short adds or replaces
    needs: tuple = ()  # programs and files
    # Where the command leaves its JSON; several files (*) are one object by name.
    result: str = "{out}"
    environment: dict = dataclasses.field(default_factory=dict)
    modules: tuple = ()  # of Python


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Files that several subjects read, made once for all of them."""

    command: tuple
    short: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)


def zoo(*options, short=("--models", "deepfm,two_tower")):
    return Preparation(
        (PYTHON, "-m", "bench.runtime.prepare", "--refract", REFRACT, "--out", "{folder}",
         *options),
        (*short, "--tables-gib", "0.01"),
    )


PREPARATIONS = {
    "models": zoo("--aoti"),
    "models_zero05": zoo("--aoti", "--zero-share", "0.05"),
    # A batch is of users.
    "models_v3": zoo("--aoti", "--models", "dlrm_v3", "--batches", "1,8", short=()),
    # Apart from `models`, because these subjects write plans.
    "zoo": zoo(),
    "top_mlp": Preparation(
        ("sh", "-ec", f"{PYTHON} -m bench.runtime.prepare --refract {REFRACT} "
         "--out {folder} --cases bench.gpu_node.top_mlp; "
         f"{REFRACT} partition {{folder}}/repo/top_mlp --method all-hn")),
    "dlrm_v3": Preparation(
        ("sh", "-ec", f"{PYTHON} -m models.zoo.export --model dlrm_v3 --formats pt2 "
         "--min-rows 128 --out {folder} \"$@\"; "
         f"{REFRACT} import {{folder}}/dlrm_v3.pt2 --repo {{folder}}/repo --name dlrm_v3 "
         "--tables {folder}/tables --sample {folder}/sample.safetensors", "sh",
         "--rows-scale", "0.0001"),
        ("--rows-scale", "0.00001"),
    ),
}


def cases(**commands):
    """One command for several, each with a file of its own in {folder}.

    Every command gets the arguments of --short.
    """
    lines = [
        f"{shlex.join(map(str, command))} \"$@\" --json {{folder}}/{name}.json"
        for name, command in commands.items()
    ]
    return "sh", "-ec", "\n".join(lines), "sh"


def runtime(name, title, *arguments, short=("--rounds", "5"), **others):
    return Subject(name, title, (RUNTIME, *arguments, "--json", "{out}"), short, (RUNTIME,),
                   **others)


def models(name, title, *arguments, **others):
    folder = "{" + name + "}" if name in PREPARATIONS else "{models}"
    return runtime(
        name, title, "models", folder, *arguments,
        short=("--rounds", "5", "--names", "deepfm,two_tower"), **others,
    )


def gather(name, title, *arguments, **others):
    return Subject(name, title, (BENCH / "bench_gather", *arguments, "--json", "{out}"),
                   ("--rounds", "5", "--gib", "0.1"), (BENCH / "bench_gather",), **others)


def serving(name, title, script, *arguments, short=("--rounds", "3"), **others):
    return Subject(
        name, title,
        (PYTHON, f"bench/serving/{script}.py", *arguments, "--json", "{out}"), short,
        (NODE,), **others,
    )


def predicted_p99(model, items, *arguments):
    return serving(
        f"predicted_p99_{model}_{items}", f"Predicted ÷ measured p99, {model}, {items} items",
        "predicted_p99", "--model", model, "--items", items, "--rounds", "2", *arguments,
        short=("--rounds", "1", "--duration", "2", "--loads", "0.2,0.4", "--requests", "1000"),
    )


def http_cost(client, items):
    return serving(
        f"http_cost_{client}_{items}", f"HTTP ÷ gRPC, p50, {client}, {items} items",
        "http_cost", "--client", client, "--items", items, "--rounds", "15",
        short=("--rounds", "3", "--requests", "30"),
    )


def tls_cost(name, title, *arguments):
    return serving(name, title, "tls_cost", *arguments, "--rounds", "15",
                   short=("--rounds", "3", "--requests", "30"))


def overload(items, rounds):
    return serving(
        f"overload_{items}", f"Goodput under overload ÷ capacity, {items} items", "overload",
        "--items", items, "--rounds", rounds, "--loads", "2,3,5", "--duration", "2.5",
        short=("--rounds", "1", "--loads", "3", "--duration", "2"),
    )


# Models in {zoo}/repo: two of them with --short.
IN_ZOO = ("$(for name in dlrm dlrm_dcnv2 two_tower wide_deep deepfm din; do "
          "test ! -e {zoo}/repo/$name || echo {zoo}/repo/$name; done)")


def predictions(transport):
    command = shlex.join((
        PYTHON, "scripts/check_predictions.py", "--refract", str(REFRACT),
        "--transport", transport, "--no-bars",
    ))
    return Subject(
        f"predictions_{transport}", f"Predicted ÷ measured time of cuts, {transport}",
        ("sh", "-ec", f'{command} --json {{out}} "$@" {IN_ZOO}', "sh", "--rounds", "20"),
        ("--rounds", "3", "--cuts", "5"),
        (REFRACT,),
    )


def fbgemm():
    """FBGEMM's libraries for bench_gather, each after those that it needs."""
    folder = pathlib.Path(sysconfig.get_paths()["platlib"]) / "fbgemm_gpu"
    names = ("asmjit", "fbgemm", *(
        f"fbgemm_gpu_{part}" for part in
        ("config", "sparse_async_cumsum", "tbe_utils", "tbe_common", "tbe_inference", "py")
    ))
    for name in names:
        if (folder / f"{name}.so").exists():
            yield from ("--op-library", folder / f"{name}.so")


def simulate(name, title, traces, commands, short):
    return Subject(
        name, title,
        cases(**{case: (REFRACT, "simulate", *command) for case, command in commands.items()}),
        short, (REFRACT, *traces), "{folder}/*.json",
    )


def survey(name, title, *arguments, cases=None, only, modules=()):
    module = ("--cases", f"tests.models.survey.{cases}") if cases else ()
    return Subject(
        name, title,
        (PYTHON, "-m", "tests.models.survey.survey", "--seed", "1", *module, *arguments,
         "--json", "{out}"),
        ("--only", only), (REFRACT,), environment={"REFRACT_TEST_SEED": "1"}, modules=modules,
    )


def survey_packages(name, of, cases, only, *modules):
    return survey(name, f"Imported models of {of}", "--forms", "pt2,frozen", "--methods",
                  "optimal", cases=cases, only=only, modules=modules)


V2023_NODES = TRACES / "alibaba-gpu-v2023/openb_node_list_gpu_node.csv"
V2023_INSTANCES = TRACES / "alibaba-gpu-v2023/openb_pod_list_default.csv"
V2025 = TRACES / "alibaba-gpu-v2025/disaggregated_DLRM_trace.csv"
V2026 = TRACES / "alibaba-gpu-v2026-spot/node_info_df.csv"
FILL = ("fill", "--nodes", V2023_NODES, "--instances", V2023_INSTANCES)
FABRIC = (*FILL, "--node-count", "4000", "--nic-percent-per-gpu", "25", "--app-size", "50",
          "--policy", "fgd,combined")
REPLAY = ("replay", "--nodes", V2026, "--memory-gib-per-core", "8", "--oversubscription", "2",
          "--instances", V2025)
DLRM_V3 = (REFRACT, "partition", "{dlrm_v3}/repo/dlrm_v3", "--batch", "2048", "--size",
           "history=6715/request", "--size", "user=1/request", "--cn", "cpu-2s", "--hn",
           "h200", "--link-gbps", "200")
DISK = ("tables_on_disk", "--limit-mib")
LOADS = ("--parts", "load", "--qps", "100", "--duration", "10")
SHORT_LOADS = ("--rounds", "1", "--duration", "2", "--tables-gib", "0.1")
SHORT_DISK = ("--rounds", "1", "--duration", "2", "--mib", "192", "--limit-mib", "512")

SUBJECTS = (
    Subject("build", "A build without ccache, seconds",
            ("sh", "-ec", "rm -rf {folder}/build; begin=$(date +%s); "
             "cmake --preset release -B {folder}/build > {folder}/build.log; "
             "CCACHE_DISABLE=1 cmake --build {folder}/build $@ >> {folder}/build.log; "
             "echo \"{{\\\"seconds\\\": $(($(date +%s) - begin))}}\" > {out}", "sh",
             "--target", "refract_program refract_cpu_node_program refract_gpu_node_program"),
            ("--target", "refract_base"), ("cmake",)),
    runtime("layers", "Dense layers on a CPU: others ÷ Refract", "layers"),
    models("models", "Whole models on a CPU: others ÷ Refract"),
    models("models_zero05", "Whole models, 5 % of activations zero: others ÷ Refract"),
    runtime("models_v3", "DLRM-v3 on a CPU: others ÷ Refract", "models", "{models_v3}",
            "--names", "dlrm_v3", "--batches", "1,8"),
    models("models_bf16", "Whole models with bf16 weights: TorchScript ÷ Refract",
           "--dense-weights", "bf16", "--batches", "1", "--rounds", "9"),
    runtime("beside", "Requests beside a busy process ÷ alone", "beside", "{models}",
            "--rounds", "9", "--seconds", "0.1",
            short=("--rounds", "5", "--names", "deepfm,two_tower")),
    gather("gather", "Table look-ups: others ÷ Refract", "--formats",
           "fp32,fp16,tbe-int8,tbe-int4", "--rounds", "15", *fbgemm()),
    gather("gather_cores", "Table look-ups: two cores ÷ one", "--cores", "--batches",
           "16,256"),
    gather("gather_sources", "Table look-ups: where tables lie ÷ huge pages", "--sources",
           "--thread-time", "--batches", "16,64,256", "--look-ups", "1,20"),
    Subject("batching", "Batching on a CPU: requests per second",
            (BENCH / "bench_scheduler", "--model", "{top_mlp}/repo/top_mlp", "--json", "{out}"),
            ("--rounds", "3", "--seconds", "0.2"), (BENCH / "bench_scheduler",)),
    Subject("transport", "Transport on this machine",
            (REFRACT, "bench", "transport", "--json", "{out}"),
            ("--rounds", "3", "--time-ms", "5", "--sizes", "64,64K"), (REFRACT,)),
    Subject("verbs", "Verbs on soft-RoCE ÷ perftest",
            ("tests/rdma_vm/run_in_vm", "--timeout", "600", "--memory", "2048",
             "--share", "{folder}", "--kernel-arguments",
             "tsc=reliable clocksource=tsc", "--", BENCH / "bench_transport",
             "transport", "--paths", "verbs", "--levels", "path,message", "--modes",
             "busy", "--ops", "pingpong,pull,stream,fan-in", "--sizes",
             "64,1K,4K,64K,256K,2M", "--rounds", "7", "--time-ms", "60",
             "--json", "{out}"),
            ("--rounds", "3", "--time-ms", "5", "--sizes", "64"),
            (BENCH / "bench_transport", "qemu-system-x86_64")),
    Subject("quickstart", "A served model: split, and unsplit",
            (PYTHON, "scripts/quickstart.py", "--duration", "30"),
            ("--rounds", "1", "--duration", "2", "--tables-gib", "0.1"),
            (NODE,), "artifacts/quickstart/results.json"),
    Subject("quickstart_cpu", "A served model on a machine with a GPU that is left unused",
            (PYTHON, "scripts/quickstart.py", "--duration", "5", "--device", "cpu"),
            ("--rounds", "1", "--duration", "2", "--tables-gib", "0.1"),
            (NODE, "nvidia-smi"), "artifacts/quickstart/results.json"),
    serving("isolation", "Two models on one GPU node: p99 beside ÷ alone", "isolation",
            "--rounds", "9", short=("--rounds", "3", "--duration", "2")),
    overload("33", "2"),
    overload("8", "1"),
    http_cost("lean", "33"),
    http_cost("lean", "270"),
    http_cost("triton", "33"),
    http_cost("triton", "270"),
    tls_cost("tls_cost", "TLS ÷ plain gRPC, p50"),
    tls_cost("tls_cost_tcp", "TLS between the nodes ÷ plain, p50", "--link", "tcp"),
    serving("metrics_cost", "Metrics and 1 % tracing ÷ neither, answers per second of "
            "processor time", "metrics_cost", "--rounds", "15",
            short=("--rounds", "3", "--requests", "1000", "--interval", "0.1")),
    serving("offered_rate", "Rate of the load generator ÷ tritonclient's", "offered_rate",
            "--rounds", "13"),
    serving("triton_backend", "Rate within an SLO ÷ Triton's Python backend",
            "triton_backend", "--install", "--duration", "4"),
    serving("triton_backend_wide", "The same, DLRM of published widths",
            "triton_backend", "--install", "--preset", "default", "--tables-gib", "0.5",
            "--slo-ms", "200", "--qps", "5", "--duration", "8"),
    serving("unique_rows_shm", "Repeated user features between the nodes", "unique_rows",
            short=("--rounds", "3", "--requests", "3")),
    serving("unique_rows_tcp", "Repeated user features over a link of 1 Gb/s", "unique_rows",
            "--transport", "tcp", "--mbit", "1000", "--rounds", "9", "--requests", "4",
            short=("--rounds", "3", "--requests", "3")),
    serving("update_rates", "p99 while rows of tables change ÷ steady p99", "update_rates",
            "--qps", "40", "--duration", "50",
            short=("--duration", "2", "--window", "1", "--tables-gib", "0.1",
                   "--rates", "1000")),
    serving("tables_on_disk", "Tables larger than memory", *DISK, "1024", "--duration", "8",
            short=SHORT_DISK),
    serving("tables_on_disk_neighbour", "A model beside another whose tables are on disk",
            *DISK, "512", "--mib", "1536", "--qps", "100", "--neighbour-qps", "100",
            "--duration", "3.5", "--modes", "load,disk,disk_more_workers", short=SHORT_DISK),
    serving("hedging", "p99 with ÷ without hedged requests", "hedging", "--duration", "7",
            short=("--rounds", "1", "--duration", "2")),
    serving("version_switch", "Changes of a version while requests come", "version_switch",
            "--tables-gib", "0.05", "--parts", "changes,back",
            short=("--changes", "4")),
    serving("version_switch_load", "p99 while 2 GiB load ÷ without a change",
            "version_switch", *LOADS, "--cn", "--table-memory load", short=SHORT_LOADS),
    serving("version_switch_cold",
            "p99 while 2 GiB load from the disk and are mapped ÷ without a change",
            "version_switch", *LOADS, "--cold", short=SHORT_LOADS),
    serving("version_switch_start", "p99 in the first seconds of a node with cold tables",
            "version_switch", "--parts", "start", "--cold", "--qps", "20", "--duration", "6",
            short=SHORT_LOADS),
    predicted_p99("dlrm", "64"),
    predicted_p99("dlrm", "8"),
    predicted_p99("deepfm", "16", "--requests", "2000"),
    predicted_p99("din", "16", "--loads", "0.1,0.15,0.2,0.25,0.3,0.4"),
    predictions("tcp"),
    predictions("shm"),
    Subject("roofline", "Costs estimated from a description of this machine ÷ measured",
            ("sh", "-ec", f"{REFRACT} profile --hardware {{folder}}/hardware.textproto; "
             f"{PYTHON} scripts/check_roofline.py --refract {REFRACT} "
             f"--hardware {{folder}}/hardware.textproto --json {{out}} {IN_ZOO}"), (),
            (REFRACT,)),
    Subject("partitioner", "Search for the best cut: time and gap",
            ("sh", "-ec", f"{BENCH / 'bench_partitioner'} > {{out}}"), (),
            (BENCH / "bench_partitioner",)),
    Subject("dlrm_v3", "Predicted rates of DLRM-v3 on described hardware",
            cases(small_tables_on_hn=(*DLRM_V3, "--hn-table-mib", "32"),
                  all_tables_on_cn=DLRM_V3),
            (), (REFRACT,), "{folder}/*.json"),
    simulate("fill", "GPUs left unallocated by placement policies", (V2023_INSTANCES,),
             {"policies": (*FILL, "--policy",
                           "fgd,best-fit,dot-prod,packing,clustering,random"),
              "one_pod": FABRIC, "four_pods": (*FABRIC, "--pods", "4")},
             ("--seeds", "1")),
    simulate("replay", "A month's trace, placed", (V2025, V2026),
             {"four_pods": (*REPLAY, "--pods", "4"), "eight_pods": (*REPLAY, "--pods", "8")},
             ()),
    simulate("disaggregation", "Fragments for whole models ÷ for CN and HN instances",
             (V2026,),
             {"all": ("disaggregation", "--nodes", V2026, "--memory-gib-per-core", "8")},
             ("--seeds", "1")),
    survey("survey", "Imported models", only="dcn_v1"),
    survey("survey_drawn", "Imported models that are drawn", "--forms", "pt2,trace",
           "--methods", "optimal", cases="drawn", only="drawn_1000"),
    survey("survey_embedding_bags", "Imported models of TorchRec's collections", "--methods",
           "optimal", cases="embedding_bags", only="torchrec_dlrm_plain", modules=("torchrec", "iopath")),
    survey_packages("survey_packages", "deepctr-torch and torch-rechub", "packages", "deepctr_DIN,rechub_DCN",
                    "deepctr_torch", "torch_rechub"),
    survey_packages("survey_fm", "torchfm", "packages.fm", "fm_FM", "torchfm"),
    survey_packages("survey_bole", "RecBole", "packages.bole", "bole_FM", "recbole"),
    survey_packages("survey_fuxi", "FuxiCTR", "packages.fuxi", "fuxi_SIM", "fuxictr"),
    survey_packages("survey_tabular", "libraries for tables", "packages.tabular", "table_MLP",
                    "pytorch_tabnet", "rtdl_num_embeddings", "tabm"),
    Subject("gpu_check", "Dense layers on a GPU",
            ("scripts/gpu_check.sh", "--out", "{folder}"), ("--quick",), ("nvidia-smi",),
            "{folder}/gpu_check.json"),
)
