"""Runs exported programs with PyTorch itself, whoever exported them.

Both kinds offer the same: `slots` (what the program wants), `bind` (puts table
values in) and `run` (flat list of inputs to flat list of outputs).
"""

import collections
import re
import sys
import warnings
import zipfile
from dataclasses import dataclass

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from models.zoo.cli import InputError

# How far two ways of running one batch may lie apart: kernels round
# differently for one row and for two.
AGREE = {"rtol": 1e-4, "atol": 1e-5}


HALVES = (torch.float16, torch.bfloat16)
DICTS = (dict, collections.OrderedDict)


@dataclass
class Slot:
    """One leaf of a program's inputs.

    kind: "tensor", "int", "float", "bool", "list" (of tensors, TorchScript),
    "tuple" (of tensors; constant: how many), "dict" (of tensors by text),
    "optional" (tensor or nothing) or "constant" (given by the program).
    dtype: None when the program does not say.
    shape: numbers and symbolic sizes, or None.
    """

    name: str
    kind: str
    dtype: torch.dtype | None = None
    shape: tuple | None = None
    constant: object = None


def load(path, op_libraries=()):
    """Loads a .pt2 or TorchScript file, told apart by what is inside."""
    for library in op_libraries:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise InputError(f"{library}: not loadable: {_first(error)}")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable model file: {error}")
    if any("/models/" in name and name.endswith(".json") for name in entries):
        kind = ExportedProgram
    elif any("/code/" in name for name in entries):
        kind = ScriptProgram
    else:
        raise InputError(f"{path}: neither a .pt2 nor a TorchScript file")
    try:
        with warnings.catch_warnings():
            # About weights mapped read-only, which nothing writes to, and
            # about TorchScript being deprecated.
            warnings.simplefilter("ignore")
            return kind(path)
    except Exception as error:  # Damaged files raise whatever they like.
        raise InputError(
            f"{path}: PyTorch cannot load it: {_first(error)} (operators from "
            "a library need --op-library; the module of a class among the "
            "arguments must be in PYTHONPATH, and cannot be __main__)"
        )


def _first(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _is_stand_in(tensor):
    """A table exported without values: it has fewer bytes than elements."""
    return tensor.is_meta or (
        tensor.untyped_storage().nbytes() < tensor.numel() * tensor.itemsize
    )


def _check_bindings(parameters, values, unread=()):
    """Refuses values that fit no parameter, and stand-ins left without one.

    Halves of a float32 parameter are widened in `values`. `unread`: parameters
    that need no values.
    """
    for name, value in list(values.items()):
        if name not in parameters:
            raise InputError(f"tables: the model has no parameter {name}")
        wanted = parameters[name]
        if wanted.dtype == torch.float32 and value.dtype in HALVES:
            value = values[name] = value.float()
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            raise InputError(
                f"tables: {name} is {value.dtype} {list(value.shape)}, the "
                f"model wants {wanted.dtype} {list(wanted.shape)}"
            )
    for name, parameter in parameters.items():
        if name not in values and name not in unread and _is_stand_in(parameter):
            raise InputError(
                f"tables: {name} has no values in the model file and none in "
                "the tables (--tables DIR)"
            )


class ExportedProgram:
    """A .pt2 file."""

    def __init__(self, path):
        self._program = torch.export.load(path)
        values = {
            node.name: node.meta.get("val")
            for node in self._program.graph.find_nodes(op="placeholder")
        }
        self.slots = [
            self._slot(spec.arg, values)
            for spec in self._program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        ]
        self.output_names = _dict_names(self._program.call_spec.out_spec)

    def name_of(self, name):
        """The slot's name for a name as forward() spells it.

        torch.export writes names of arguments, keys and parts in lower case,
        with "_" in the place of other characters.
        """
        names = {slot.name for slot in self.slots}
        word = re.sub(r"[^a-z0-9]", "_", name.lower())
        return word if name not in names and word in names else name

    @staticmethod
    def _slot(argument, values):
        if isinstance(argument, TensorArgument):
            value = values[argument.name]
            shape = tuple(value.shape)
            return Slot(argument.name, "tensor", value.dtype, shape)
        for kind, name in [
            (SymIntArgument, "int"),
            (SymFloatArgument, "float"),
            (SymBoolArgument, "bool"),
        ]:
            if isinstance(argument, kind):
                return Slot(argument.name, name)
        if isinstance(argument, ConstantArgument):
            value = argument.value
            return Slot(argument.name, "constant", constant=value)
        raise InputError(f"input {argument.name}: neither tensor nor number")

    def bind(self, values):
        state = self._program.state_dict
        placeholders = self._program.graph.find_nodes(op="placeholder")
        specs = self._program.graph_signature.input_specs
        unread = {
            spec.target for spec, node in zip(specs, placeholders) if not node.users
        }
        _check_bindings(state, values, unread)
        for name, value in values.items():
            if isinstance(state[name], torch.nn.Parameter):
                value = torch.nn.Parameter(value, requires_grad=False)
            state[name] = value
        self._guarded = self._program.module()
        self._unguarded = self._program.module(check_guards=False)
        # The validation would check the ranges of sizes instead.
        self._unguarded.validate_inputs = False

    def run(self, leaves):
        try:
            return self._call(self._guarded, leaves)
        except (AssertionError, RuntimeError) as error:
            # The second: ranges of sizes, where the file has no guards.
            if not str(error).startswith(("Guard failed", "Expected input at")):
                raise
            return self._run_past_guards(leaves, error)

    def _call(self, module, leaves):
        spec = self._program.call_spec.in_spec
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return pytree.tree_leaves(module(*args, **kwargs), is_leaf=_is_none)

    def _run_past_guards(self, leaves, error):
        """Runs a batch that guards refuse because a size is 1.

        torch.export adds such guards to nearly every model, although the
        graph is right for 1. Two answers must agree before one is believed:
        the graph run without its guards, and the batch padded to 2 with a copy
        of its last row, which the guards allow. They disagree when rows depend
        on each other; then the guard's refusal stands.
        """
        sizes = self._sizes(leaves)
        padded = {s: 2 if size == 1 else size for s, size in sizes.items()}
        if padded == sizes:
            raise error
        wide = [
            _pad(leaf, slot.shape, padded) if slot.kind == "tensor" else leaf
            for leaf, slot in zip(leaves, self.slots)
        ]
        reference = self._call(self._guarded, wide)
        reference = [
            _cut(leaf, shape, sizes)
            for leaf, shape in zip(reference, self._output_shapes())
        ]
        result = self._call(self._unguarded, leaves)
        if not all(map(_agree, result, reference)):
            raise InputError(
                f"{_first(error)}; and padded to 2 the batch gives other "
                "values, so its rows depend on each other"
            )
        return result

    def _sizes(self, leaves):
        """Returns {symbol: size} of the sizes that stand alone, or plus a
        number, as an axis of an input."""
        sizes = {}
        for leaf, slot in zip(leaves, self.slots):
            for size, extent in zip(
                leaf.shape if slot.kind == "tensor" else (), slot.shape or ()
            ):
                expression = _expression(extent)
                symbols = getattr(expression, "free_symbols", ())
                for symbol in symbols:
                    plus = expression - symbol
                    if plus.is_Integer:
                        sizes[symbol] = size - int(plus)
        return sizes

    def _output_shapes(self):
        (output,) = self._program.graph.find_nodes(op="output")
        for leaf in pytree.tree_leaves(output.args[0], is_leaf=_is_none):
            value = getattr(leaf, "meta", {}).get("val")
            yield tuple(getattr(value, "shape", ()))


def _dict_names(spec):
    """Returns the leaves' keys of a returned dictionary, else None. As import
    names them (models/torch_export/tree_names.cc)."""
    if spec.type not in DICTS:
        return None
    names = _leaf_names(spec, "")
    unique = len(set(names)) == len(names) and "" not in names
    return names if unique and None not in names else None


def _leaf_names(spec, above):
    """Names of the leaves below `spec`; [None] where a key is neither text nor
    a whole number."""
    if spec.is_leaf():
        return [above]
    keys = range(spec.num_children)
    if spec.type in DICTS:
        keys = spec.context
        if any(type(key) not in (str, int) for key in keys):
            return [None]
    names = []
    for key, child in zip(keys, spec.children()):
        key = re.sub(r"[^a-zA-Z0-9_.-]", "_", str(key))
        names += _leaf_names(child, f"{above}_{key}" if above else key)
    return names


def _is_none(leaf):
    return leaf is None


def _expression(extent):
    return extent.node.expr if isinstance(extent, torch.SymInt) else extent


def _extent(extent, sizes):
    """Returns the number that a symbolic size is, or None if unknown."""
    expression = _expression(extent)
    if isinstance(expression, int):
        return expression
    value = expression.subs(sizes)
    return int(value) if value.is_Integer else None


def _pad(tensor, shape, sizes):
    """Repeats the end of each axis up to its size in `sizes`.

    For offsets of batch + 1 entries that is one more empty bag.
    """
    for axis, extent in enumerate(shape):
        missing = (_extent(extent, sizes) or 0) - tensor.shape[axis]
        if missing > 0:
            end = tensor.narrow(axis, tensor.shape[axis] - missing, missing)
            tensor = torch.cat([tensor, end], dim=axis)
    return tensor


def _cut(leaf, shape, sizes):
    for axis, extent in enumerate(shape):
        size = _extent(extent, sizes)
        if size is not None and size < leaf.shape[axis]:
            leaf = leaf.narrow(axis, 0, size)
    return leaf


def _agree(a, b):
    if not isinstance(a, torch.Tensor):
        return a == b
    return a.shape == b.shape and torch.allclose(a, b, equal_nan=True, **AGREE)


class ScriptProgram:
    """A TorchScript file, traced or scripted, frozen or not."""

    _KINDS = {
        "Tensor": "tensor",
        "int": "int",
        "float": "float",
        "bool": "bool",
        "List[Tensor]": "list",
        "Optional[Tensor]": "optional",
        "Dict[str, Tensor]": "dict",
    }
    output_names = None

    def __init__(self, path):
        self._module = torch.jit.load(str(path), map_location="cpu").eval()
        self.slots = []
        for argument in self._module.forward.schema.arguments[1:]:
            text = argument.type.annotation_str
            if argument.has_default_value() and "Tensor" not in text:
                # As import takes it.
                default = argument.default_value
                self.slots.append(Slot(argument.name, "constant", constant=default))
                continue
            kind = self._KINDS.get(text)
            tuple_of = re.fullmatch(r"Tuple\[(Tensor(?:, Tensor)*)\]", text)
            if tuple_of:
                count = len(tuple_of[1].split(","))
                self.slots.append(Slot(argument.name, "tuple", constant=count))
                continue
            if kind is None:
                raise InputError(
                    f"input {argument.name}: type {argument.type} is not "
                    "supported"
                )
            self.slots.append(Slot(argument.name, kind))

    def name_of(self, name):
        return name

    def bind(self, values):
        parameters = dict(self._module.named_parameters())
        parameters.update(self._module.named_buffers())
        _check_bindings(parameters, values)
        for name, value in values.items():
            # In place of the storage, not a copy into it.
            parameters[name].data = value

    def run(self, leaves):
        result = self._module(*leaves)
        return pytree.tree_leaves(result, is_leaf=_is_none)
