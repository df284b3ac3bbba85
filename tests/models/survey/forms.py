"""Writes a case in every form that PyTorch can give it."""

import copy
import inspect
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from models.zoo import safetensors_io
from scripts.lib import repository

SAMPLE_BATCH = 5
# As exported; lowered to core ATen; traced; traced and frozen; scripted and
# frozen. Three more forms: "strict" is exported by way of the bytecode, "draft"
# by torch.export.draft_export(), "unfrozen" is scripted and not frozen.
FORMS = ("pt2", "decomposed", "trace", "frozen", "script")
SCRIPTED = ("trace", "frozen", "script", "unfrozen")
TRACED = ("trace", "frozen")
# What a kept model depends on.
SOURCES = [*Path(__file__).parent.glob("*.py")]


@dataclass
class Exported:
    """Files of one form of one case, in a folder of their own."""

    model: Path
    sample: Path
    # By batch: the request, and the original module's answers by name.
    requests: dict[int, Path] = field(default_factory=dict)
    answers: dict[int, dict] = field(default_factory=dict)


class CannotExport(Exception):
    """PyTorch itself refuses the form."""


def named_leaves(prefix, value):
    """(name, tensor) of a TorchScript argument, as the importer names them."""
    if isinstance(value, torch.Tensor):
        return [(prefix, value)]
    if value is None:
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        leaf for key, item in items for leaf in named_leaves(f"{prefix}_{key}", item)
    ]


def output_names(result, keys):
    """One name per tensor; the keys of a dict when `keys`."""
    if keys and isinstance(result, dict):
        return [key for key, value in result.items() if tensors_of(value)]
    return [f"output_{i}" for i in range(len(tensors_of(result)))]


def tensors_of(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_custom(value):
    """A class that PyTorch flattens: a dataclass, a KeyedJaggedTensor."""
    return type(value) in pytree.SUPPORTED_NODES and not isinstance(
        value, (list, tuple, dict)
    )


def parts_of(value):
    return pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]


def dynamic_shapes(case):
    """Marks the sizes that differ between two batches."""

    def mark(a, b):
        if a is None or isinstance(a, (bool, int, float, str)):
            return None
        if is_custom(a):  # as the list of its parts
            return [mark(x, y) for x, y in zip(parts_of(a), parts_of(b))]
        if isinstance(a, (list, tuple)):
            marked = [mark(x, y) for x, y in zip(a, b)]
            return type(a)(*marked) if hasattr(a, "_fields") else type(a)(marked)
        if isinstance(a, dict):
            return {key: mark(a[key], b[key]) for key in a}
        return {
            axis: torch.export.Dim.DYNAMIC
            for axis, (x, y) in enumerate(zip(a.shape, b.shape))
            if x != y
        }

    draw = lambda batch, seed: case.inputs(batch, torch.Generator().manual_seed(seed))
    marked = mark(draw(SAMPLE_BATCH, 1), draw(SAMPLE_BATCH + 12, 2))
    if not case.keywords:
        return marked
    names = list(inspect.signature(case.build.forward).parameters)[1:]
    return dict(zip(names, marked))


def arguments(case, values):
    """Positional ones, and those by name."""
    count = len(values) - len(case.keywords)
    return values[:count], dict(zip(case.keywords, values[count:]))


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def same_shapes(program, module, args, keywords):
    """Raises where PyTorch's own exported program is another function."""
    results = [
        [tuple(t.shape) for t in tensors_of(quietly(call, *copy.deepcopy(args), **keywords))]
        for call in (program, module)
    ]
    if results[0] != results[1]:
        raise CannotExport(f"PyTorch's program gives {results[0]} for {results[1]}")


def same_as_saved(path, case, requests, answers):
    """Raises where PyTorch's own saved file is another function than the module.

    Some scripts raise whatever they are given, and a trace keeps what Python
    computed for its example: sizes, branches, the lengths of lists. Refract cannot
    give back what is no longer in the file; what it must do with such a file is
    asked in refused.py.
    """
    saved = torch.jit.load(str(path))
    for batch, values in requests.items():
        try:
            results = tensors_of(quietly(saved, *copy.deepcopy(values)))
        except Exception as error:
            last = str(error).strip().splitlines()[-1]
            raise CannotExport(f"the saved file fails at batch {batch}: {last}") from error
        wanted = tensors_of(answers[batch])
        if len(results) != len(wanted):
            raise CannotExport(f"the saved file gives {len(results)} tensors for {len(wanted)}")
        for result, want in zip(results, wanted):
            if result.shape != want.shape or result.dtype != want.dtype:
                raise CannotExport(
                    f"the saved file gives {result.dtype} {list(result.shape)} for "
                    f"{want.dtype} {list(want.shape)} at batch {batch}"
                )
            if not torch.allclose(result, want, equal_nan=True, **case.tolerance):
                raise CannotExport(f"the saved file gives other values at batch {batch}")


def exported_names(program, args, keywords):
    """forward()'s own spelling of the inputs that torch.export made lower case."""
    specs = [
        spec.arg
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]
    forward = program.module_call_graph[0].signature.forward_arg_names
    paths = [path for path, _ in pytree.tree_flatten_with_path((args, keywords))[0]]
    names = []
    for path, arg in zip(paths, specs, strict=True):
        if not isinstance(arg, TensorArgument):
            continue
        positional = path[0].idx == 0
        words = [forward[path[1].idx] if positional else path[1].key]
        for step in path[2:]:
            if isinstance(step, pytree.MappingKey):
                words.append(step.key)
            elif isinstance(step, pytree.SequenceKey):
                words.append(step.idx)
            else:  # of an object: torch.export's name goes on alone
                break
        spelled = re.sub(r"\W", "_", "_".join(map(str, words)))
        same = arg.name.startswith(spelled.lower())
        names.append(spelled + arg.name[len(spelled) :] if same else arg.name)
    return names


def make(case, form, module, example, path):
    """Writes `path`; returns the names of the flattened inputs."""
    if form not in SCRIPTED:
        export = torch.export.export
        options = {"strict": True} if form == "strict" else {}
        if form == "draft":
            export = torch.export.draft_export
        args, keywords = arguments(case, example)
        program = quietly(
            export, module, args, keywords, dynamic_shapes=dynamic_shapes(case), **options
        )
        if form == "decomposed":
            program = program.run_decompositions()
        same_shapes(program.module(), module, args, keywords)
        quietly(torch.export.save, program, path)
        return exported_names(program, args, keywords)
    if form in ("script", "unfrozen"):
        made = quietly(torch.jit.script, module)
        if form == "script":
            made = quietly(torch.jit.freeze, made)
    else:
        made = quietly(
            torch.jit.trace, module, example, check_trace=False, strict=False
        )
        if form == "frozen":
            made = quietly(torch.jit.freeze, made)
    torch.jit.save(made, str(path))
    names = [a.name for a in made.forward.schema.arguments[1:]]
    leaves = []
    for prefix, value in zip(names, example):
        for name, _ in named_leaves(prefix, value):
            # An argument and a key of another one: the second is NAME_1.
            leaves.append(name if name not in leaves else f"{name}_1")
    return leaves


def make_or_copy(case, form, module, example, path, seed):
    """make(), or a copy of what it wrote in an earlier run: torch.export's symbolic
    sizes take nine tenths of the processor time of a case."""
    if form in SCRIPTED:
        return make(case, form, module, example, path)

    def fresh(folder):
        names = make(case, form, module, example, folder / path.name)
        (folder / "names.json").write_text(json.dumps(names))

    repository.kept_export(
        f"survey-{case.name}-{form}", [case.name, form, seed], SOURCES, path.parent, fresh
    )
    return json.loads((path.parent / "names.json").read_text())


def export(case, form, folder, batches, seed, keep=False):
    """Writes model, sample and requests. CannotExport: PyTorch refuses.

    keep: the model is kept for later runs, for cases of this folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    module = quietly(case.build).eval()
    scramble(module)
    generator = torch.Generator().manual_seed(seed)
    example = case.inputs(SAMPLE_BATCH, generator)
    path = folder / ("model.pt" if form in SCRIPTED else "model.pt2")
    try:
        arguments_of_make = case, form, copy.deepcopy(module), example, path
        names = make_or_copy(*arguments_of_make, seed) if keep else make(*arguments_of_make)
    except Exception as error:  # PyTorch raises whatever it likes.
        raise CannotExport(str(error).strip() or type(error).__name__) from error
    files = Exported(path, folder / "sample.safetensors")

    def write(target, args):
        leaves = tensors_of(args)
        safetensors_io.write(target, dict(zip(names, leaves, strict=True)))

    write(files.sample, example)
    requests, results = {}, {}
    for batch in batches:
        args = case.inputs(batch, generator)
        files.requests[batch] = folder / f"request-{batch}.safetensors"
        write(files.requests[batch], args)
        requests[batch] = copy.deepcopy(args)
        # A model may write into its arguments.
        positional, keywords = arguments(case, args)
        results[batch] = quietly(module, *positional, **keywords)
        if form in TRACED:
            # A trace returns sizes as tensors.
            results[batch] = pytree.tree_map_only(int, torch.tensor, results[batch])
        keys = output_names(results[batch], form not in SCRIPTED)
        files.answers[batch] = {
            key: tensor.clone() for key, tensor in zip(keys, tensors_of(results[batch]))
        }
    if form in SCRIPTED:
        same_as_saved(path, case, requests, results)
    return files


def scramble(module):
    """Gives running statistics values that normalising shows."""
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
