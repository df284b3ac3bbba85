"""Manifests of every flavour against Kubernetes' published JSON schemas (package
kubernetes-validate), and whether their parts refer to each other.

The schemas of Kueue, KAI and Grove are in their custom resource definitions, which
are not kept here: REFRACT_CRDS names a folder with them (docs/how-to/kubernetes.md).
Without it the test checks the fields that it knows, and that pod specs inside these
objects are pod specs.
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as error:
    print(f"skipped: {error} (scripts/test.sh installs kubernetes-validate)")
    sys.exit(77)

# Else each validation parses the megabyte of definitions of its release anew.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)

SOURCE = pathlib.Path(os.environ["REFRACT_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["REFRACT_BUILD_DIR"])
FLAVOURS = ("plain", "kueue", "kai", "grove")
# The release that the plain flavour promises, and the newest with schemas.
VERSIONS = ("1.35", "1.37")
# Generally available at the first of them.
STABLE = {
    "v1", "apps/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1",
    "resource.k8s.io/v1",
}
# Group/version/kind of others: fields of their spec.
FOREIGN = {
    ("kueue.x-k8s.io/v1beta2", "Topology"): {"levels"},
    ("kai.scheduler/v1alpha1", "Topology"): {"levels"},
    ("grove.io/v1alpha1", "ClusterTopologyBinding"): {"levels"},
    ("grove.io/v1alpha1", "PodCliqueSet"): {"replicas", "template"},
}


def closed(schema):
    """A custom resource's schema that refuses fields it does not name, as the API
    server's strict field validation does."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True:
        schema = {"type": ["integer", "string"]}
    elif (
        isinstance(schema.get("properties"), dict)
        and schema.get("x-kubernetes-preserve-unknown-fields") is not True
    ):
        schema.setdefault("additionalProperties", False)
    return schema


def custom_resources(folder):
    """Schemas of the served versions by (group/version, kind)."""
    schemas = {}
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            spec = document["spec"]
            for version in spec["versions"]:
                if not version["served"]:
                    continue
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                name = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                schemas[name] = jsonschema.Draft202012Validator(schema)
    return schemas


def expand(value, at=()):
    """(path, value) of everything in a document."""
    yield at, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from expand(part, (*at, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from expand(part, (*at, number))


class Manifests:
    """The documents of one folder."""

    def __init__(self, folder):
        self.name = folder.name
        self.flavour = folder.name.rpartition("-")[2]
        self.text = "".join(
            path.read_text() for path in sorted(folder.iterdir())
        )
        self.documents = [
            document
            for path in sorted(folder.iterdir())
            for document in yaml.safe_load_all(path.read_text())
            if document is not None
        ]

    def of(self, kind):
        return [d for d in self.documents if d["kind"] == kind]

    def pods(self):
        """(name, labels, pod spec) of every workload."""
        for workload in self.of("Deployment") + self.of("StatefulSet"):
            template = workload["spec"]["template"]
            yield (
                workload["metadata"]["name"],
                template["metadata"]["labels"],
                template["spec"],
            )
        for group in self.of("PodCliqueSet"):
            for clique in group["spec"]["template"]["cliques"]:
                yield clique["name"], clique["labels"], clique["spec"]["podSpec"]


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


class SchemaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-manifests-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        subprocess.run([BUILD / "tests/manifest_cases", folder], check=True)
        cls.cases = [Manifests(case) for case in sorted(folder.iterdir())]

    def each(self):
        for case in self.cases:
            with self.subTest(case.name):
                yield case

    def test_there_are_cases_of_every_flavour(self):
        self.assertEqual({case.flavour for case in self.cases}, set(FLAVOURS))
        kinds = {d["kind"] for case in self.cases for d in case.documents}
        self.assertLessEqual(
            {
                "Deployment", "StatefulSet", "Service", "PodDisruptionBudget",
                "HorizontalPodAutoscaler", "NetworkPolicy",
                "ResourceClaimTemplate", "PodCliqueSet", "Topology",
                "ClusterTopologyBinding",
            },
            kinds,
        )

    def validate(self, document):
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                self.fail(f"{version}: {error}\n{yaml.safe_dump(document)}")

    def test_the_schemas_hold(self):
        for case in self.each():
            for document in case.documents:
                kind = (document["apiVersion"], document["kind"])
                if kind in FOREIGN:
                    self.assertEqual(set(document["spec"]), FOREIGN[kind])
                else:
                    self.validate(document)

    @unittest.skipUnless(
        os.environ.get("REFRACT_CRDS"),
        "REFRACT_CRDS names no folder of custom resource definitions",
    )
    def test_the_schemas_of_other_schedulers_hold(self):
        schemas = custom_resources(pathlib.Path(os.environ["REFRACT_CRDS"]))
        seen = set()
        for case in self.each():
            for document in case.documents:
                kind = (document["apiVersion"], document["kind"])
                if kind not in FOREIGN:
                    continue
                self.assertIn(kind, schemas, "no such version is served")
                errors = [
                    f"{list(error.absolute_path)}: {error.message}"
                    for error in schemas[kind].iter_errors(document)
                ]
                self.assertEqual(errors, [])
                seen.add(kind)
                # The check finds mistakes.
                document["spec"]["levelss"] = []
                self.assertFalse(schemas[kind].is_valid(document))
                del document["spec"]["levelss"]
        self.assertEqual(seen, set(FOREIGN))

    def test_the_deployment_of_the_extender(self):
        text = (SOURCE / "deploy/kubernetes/extender.yaml").read_text()
        documents = list(yaml.safe_load_all(text))
        for document in documents:
            self.validate(document)
        (config,) = (d for d in documents if d["kind"] == "ConfigMap")
        config = yaml.safe_load(config["data"]["scheduler.yaml"])
        (extender,) = config["extenders"]
        # The verbs that the command serves.
        source = (SOURCE / "tools/extender/extender_command.cc").read_text()
        for verb in ("filter", "prioritize", "bind"):
            self.assertEqual(extender[verb + "Verb"], verb)
            self.assertIn(f'"/{verb}"', source)
        (deployment,) = (d for d in documents if d["kind"] == "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        (command,) = (
            c["command"] for c in pod["containers"] if c["name"] == "extender"
        )
        self.assertIn(f'"{command[2]}"', source)

    def test_the_check_finds_mistakes(self):
        (case,) = (c for c in self.cases if c.name == "ranker-plain")
        (claim,) = (
            c
            for c in case.of("ResourceClaimTemplate")
            if c["metadata"]["name"] == "ranker-hn"
        )
        claim["spec"]["spec"]["devices"]["requests"][0]["exactlyy"] = {}
        with self.assertRaises(AssertionError):
            self.validate(claim)
        del claim["spec"]["spec"]["devices"]["requests"][0]["exactlyy"]
        claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = "1"
        with self.assertRaises(AssertionError):
            self.validate(claim)
        claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 1
        self.validate(claim)

    def test_the_plain_flavour_has_stable_fields_alone(self):
        for case in self.each():
            foreign = {d["apiVersion"] for d in case.documents} - STABLE
            words = {
                part
                for document in case.documents
                for path, value in expand(document)
                for part in (*path[-1:], value)
                if isinstance(part, str)
                and re.search(r"kueue|kai[.-]scheduler|grove", part)
            }
            if case.flavour == "plain":
                self.assertEqual(foreign, set())
                self.assertEqual(words, set())
            else:
                self.assertNotEqual(words, set(), "the flavour shows")
                # Versions of what is not stable are named in a comment.
                self.assertRegex(
                    case.text, r"# .*(Kueue 0\.14|KAI 0\.12|grove\.io/v1alpha1)"
                )

    def test_pod_specs_in_other_objects_are_pod_specs(self):
        for case in self.each():
            if case.flavour != "grove":
                continue
            for name, labels, spec in case.pods():
                self.validate(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"name": name, "labels": labels},
                        "spec": spec,
                    }
                )

    def test_parts_refer_to_each_other(self):
        for case in self.each():
            pods = {name: (labels, spec) for name, labels, spec in case.pods()}
            claims = {
                c["metadata"]["name"] for c in case.of("ResourceClaimTemplate")
            }
            for name, (labels, spec) in pods.items():
                used = {
                    c["resourceClaimTemplateName"]
                    for c in spec.get("resourceClaims", ())
                }
                self.assertLessEqual(used, claims)
                named = {c["name"] for c in spec.get("resourceClaims", ())}
                (container,) = spec["containers"]
                self.assertEqual(
                    {
                        c["name"]
                        for c in container["resources"].get("claims", ())
                    },
                    named,
                )
                volumes = {v["name"] for v in spec["volumes"]}
                self.assertEqual(
                    {m["name"] for m in container["volumeMounts"]}, volumes
                )
                self.assertEqual(
                    container["resources"]["requests"],
                    container["resources"]["limits"],
                )
            for workload in case.of("Deployment") + case.of("StatefulSet"):
                labels, _ = pods[workload["metadata"]["name"]]
                selector = workload["spec"]["selector"]["matchLabels"]
                self.assertTrue(matches(selector, labels))
            for kind, path in (
                ("Service", ("selector",)),
                ("PodDisruptionBudget", ("selector", "matchLabels")),
                ("NetworkPolicy", ("podSelector", "matchLabels")),
            ):
                for item in case.of(kind):
                    selector = item["spec"]
                    for step in path:
                        selector = selector[step]
                    selected = [
                        name
                        for name, (labels, _) in pods.items()
                        if matches(selector, labels)
                    ]
                    self.assertEqual(selected, [item["metadata"]["name"]])
            for service in case.of("Service"):
                _, spec = pods[service["metadata"]["name"]]
                ports = {p["name"] for p in spec["containers"][0]["ports"]}
                for port in service["spec"]["ports"]:
                    self.assertIn(port["targetPort"], ports)
            for scaler in case.of("HorizontalPodAutoscaler"):
                target = scaler["spec"]["scaleTargetRef"]
                (workload,) = (
                    w
                    for w in case.of(target["kind"])
                    if w["metadata"]["name"] == target["name"]
                )
                self.assertNotIn("replicas", workload["spec"])

    def test_cpu_nodes_look_for_services_that_there_are(self):
        for case in self.each():
            headless = {
                s["metadata"]["name"]: s
                for s in case.of("Service")
                if s["spec"].get("clusterIP") == "None"
            }
            found = set()
            for _, labels, spec in case.pods():
                for argument in spec["containers"][0]["args"]:
                    for name in re.findall(
                        r"srv:_refract\._tcp\.([a-z0-9-]+)\.serving\.svc",
                        argument,
                    ):
                        found.add(name)
                        (port,) = headless[name]["spec"]["ports"]
                        self.assertEqual(port["name"], "refract")
                        selector = headless[name]["spec"]["selector"]
                        self.assertEqual(
                            selector["app.kubernetes.io/part-of"],
                            labels["app.kubernetes.io/part-of"],
                        )
            self.assertEqual(found, set(headless))

    def test_the_daemons_know_the_flags(self):
        known = {}
        for case in self.each():
            for _, _, spec in case.pods():
                (container,) = spec["containers"]
                (program,) = container["command"]
                if program not in known:
                    done = subprocess.run(
                        [BUILD / "bin" / program, "--help"],
                        capture_output=True, text=True, check=True,
                    )
                    known[program] = set(
                        re.findall(r"--[a-z][a-z-]+", done.stdout)
                    )
                for argument in container["args"]:
                    self.assertIn(argument.partition("=")[0], known[program])

    def test_autoscalers_read_metrics_that_the_nodes_serve(self):
        rules = yaml.safe_load(
            (SOURCE / "deploy/kubernetes/prometheus-adapter.yaml").read_text()
        )["rules"]["custom"]
        sources = "".join(
            (SOURCE / path).read_text()
            for path in ("cpu_node/metrics.cc", "gpu_node/metrics.cc")
        )
        # Pieces of names that the code puts together.
        pieces = set(re.findall(r'"([a-z_]+)"', sources))
        served = pieces | {
            f"refract_gpu_node_{piece}_total" for piece in pieces
        } | {f"{piece}_sum" for piece in pieces}
        for rule in rules:
            self.assertIn(rule["seriesQuery"].partition("{")[0], served)
        names = {rule["name"]["as"] for rule in rules}
        used = set()
        for case in self.cases:
            for document in case.documents:
                for path, value in expand(document):
                    if path[-3:] == ("pods", "metric", "name"):
                        used.add(value)
        self.assertEqual(used, names)

    def test_nodes_find_the_files_of_tls(self):
        with_tls = set()
        for case in self.each():
            for _, labels, spec in case.pods():
                (container,) = spec["containers"]
                flags = dict(
                    argument[2:].partition("=")[::2] for argument in container["args"]
                )
                flags = {k: v for k, v in flags.items() if k.startswith("node-tls")}
                secrets = {
                    volume["name"]: volume["secret"]["secretName"]
                    for volume in spec["volumes"] if "secret" in volume
                }
                mounts = {
                    mount["name"]: mount for mount in container["volumeMounts"]
                    if mount["name"] in secrets
                }
                self.assertEqual(len(mounts), len(secrets))
                self.assertEqual(bool(flags), bool(secrets))
                if not flags:
                    continue
                self.assertEqual(set(secrets.values()), {"refract-nodes"})
                (mount,) = mounts.values()
                self.assertTrue(mount["readOnly"])
                self.assertNotIn("subPath", mount)
                path = mount["mountPath"]
                wanted = {
                    "node-tls-cert": f"{path}/tls.crt",
                    "node-tls-key": f"{path}/tls.key",
                    "node-tls-ca": f"{path}/ca.crt",
                }
                if labels["app.kubernetes.io/component"] == "cpu-node":
                    wanted["node-tls-name"] = "refract-gpu-node"
                self.assertEqual(flags, wanted)
                with_tls.add(case.name)
        # Whole models have no other node to talk to.
        self.assertEqual(with_tls, {f"two-{flavour}" for flavour in FLAVOURS})

    def test_gpu_and_nic_share_a_pcie_root(self):
        for case in self.each():
            for claim in case.of("ResourceClaimTemplate"):
                devices = claim["spec"]["spec"]["devices"]
                requests = [r["name"] for r in devices["requests"]]
                joined = {
                    c["matchAttribute"]: c["requests"]
                    for c in devices.get("constraints", ())
                }
                if requests == ["gpu", "nic"]:
                    wanted = {"resource.kubernetes.io/pcieRoot": requests}
                elif "nic" in requests:
                    wanted = {"resource.kubernetes.io/numaNode": requests}
                else:
                    wanted = {}
                self.assertEqual(joined, wanted)


if __name__ == "__main__":
    unittest.main()
