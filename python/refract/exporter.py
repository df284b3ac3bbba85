"""`refract.export`: a PyTorch model as the files that `refract import` reads."""

import contextlib
import inspect
import os
import pathlib
import shutil
import tempfile
import warnings

import torch
from safetensors.torch import save_file
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from refract import table_files


def export(model, sample, path, *, tables=None, dynamic_shapes=None):
    """Writes `model` into the new folder `path` and returns it as a pathlib.Path.

    The folder holds model.pt2 without the values of tables, tables/NAME.safetensors
    for each table, and sample.safetensors. `refract import PATH/model.pt2 --tables
    PATH/tables --repo DIR --name NAME` adds it to a repository.

    model: a torch.nn.Module in eval() whose parameters are on the CPU. A table
        that does not fit in memory may be on the device "meta". Tables are the
        weights of torch.nn.Embedding and torch.nn.EmbeddingBag, and the
        parameters that `tables` names. The model is left as it was.
    sample: the arguments of one call, {name: tensor} or a tuple; dictionaries,
        lists and tuples of tensors may be among them.
    tables: {parameter: values} for tables whose values are not in the model. The
        values are a tensor, an array (numpy.memmap, for example) or an iterable
        of pieces [n, columns]; at most a piece is in memory at a time. Values of
        float16 and bfloat16 are stored as such.
    dynamic_shapes: as torch.export.export takes them. By default the first
        dimension of every input varies.

    Raises ValueError, which names the parameter or input, where something does not
    fit, and FileExistsError where `path` holds files. `path` appears when it is
    complete.
    """
    path = pathlib.Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path}: not an empty folder")
    if model.training:
        raise ValueError("the model is in training mode; call model.eval() first")
    values = _table_values(model, dict(tables or {}))
    arguments = _arguments(model, sample)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        with _stand_ins(model, values):
            program = _program(model, arguments, dynamic_shapes)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="No complete tensor found")
                torch.export.save(program, fresh / "model.pt2")
        flat = {
            name: tensor.detach().contiguous().clone() for name, tensor in _flat(arguments)
        }
        save_file(flat, fresh / "sample.safetensors")
        (fresh / "sample.safetensors").chmod(0o666 & ~_umask())  # written as 0600
        folder = fresh / "tables"
        folder.mkdir()
        # model.pt2 has each name of a shared table, and a name that forward() does
        # not read; pieces can be read once.
        for names, (shape, dtype, source) in values.items():
            for name in names:
                file = folder / f"{name}.safetensors"
                table_files.write_table(file, name, shape, dtype, source)
                source = table_files.read_pieces(file, name)
        fresh.chmod(0o777 & ~_umask())
        os.replace(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return path


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _table_values(model, given):
    """Returns {names of one table: (shape, dtype, values)}; checks where tensors are."""
    names_of = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    is_table = set(given)
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            is_table.add(f"{prefix}.weight" if prefix else "weight")
    values = {}
    for parameter, names in names_of.items():
        found = [given.pop(name) for name in names if name in given]
        if is_table.isdisjoint(names):
            _check_device(names[0], parameter.device)
            continue
        if parameter.dtype not in table_files.DTYPE_NAMES or parameter.ndim != 2:
            raise ValueError(
                f"table {names[0]} is {parameter.dtype} {list(parameter.shape)}, "
                "not [rows, columns] of floats"
            )
        if not found and parameter.device.type == "meta":
            raise ValueError(
                f"table {names[0]} has no values (device meta): give them by tables={{...}}"
            )
        source = found[0] if found else parameter.detach()
        values[tuple(names)] = tuple(parameter.shape), parameter.dtype, source
    for name in given:
        raise ValueError(f"tables: the model has no parameter {name!r}")
    for name, buffer in model.named_buffers():
        _check_device(name, buffer.device)
    return values


def _check_device(name, device):
    if device.type != "cpu":
        raise ValueError(f"{name} is on the device {device}, not on the CPU")


def _arguments(model, sample):
    """Returns the sample as {argument of forward(): tensors}."""
    if not isinstance(sample, dict):
        bound = inspect.signature(model.forward).bind(*sample)
        sample = bound.arguments
    for name, tensor in _flat(sample):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"sample {name!r} is a {type(tensor).__name__}, not a tensor")
        _check_device(f"sample {name!r}", tensor.device)
    return dict(sample)


def _flat(arguments):
    """Yields (name, tensor), named as import names inputs."""
    for name, value in arguments.items():
        if isinstance(value, dict):
            inner = value
        elif isinstance(value, (list, tuple)):
            inner = dict(enumerate(value))
        else:
            yield name, value
            continue
        yield from _flat({f"{name}_{key}": item for key, item in inner.items()})


@contextlib.contextmanager
def _stand_ins(model, values):
    """Context in which each table is one float, expanded to [rows, columns]."""
    former = []
    try:
        for names, (shape, dtype, _) in values.items():
            zero = torch.zeros(1, dtype=dtype)
            stand_in = torch.nn.Parameter(zero.expand(shape), requires_grad=False)
            for name in names:
                owner, _, attribute = name.rpartition(".")
                module = model.get_submodule(owner)
                former.append((module, attribute, getattr(module, attribute)))
                setattr(module, attribute, stand_in)
        yield
    finally:
        for module, attribute, parameter in former:
            setattr(module, attribute, parameter)


def _program(model, arguments, dynamic_shapes):
    chosen = dynamic_shapes
    if chosen is None:
        chosen = torch.utils._pytree.tree_map(
            lambda tensor: {0: torch.export.Dim.AUTO} if tensor.ndim else {}, arguments
        )
    # Without the assumption that no size is 0 or 1, which would refuse one item.
    with shape_config.patch(backed_size_oblivious=True):
        program = torch.export.export(model, (), arguments, dynamic_shapes=chosen)
    if dynamic_shapes is None:
        placeholders = program.graph.find_nodes(op="placeholder")
        for spec, node in zip(program.graph_signature.input_specs, placeholders):
            shape = getattr(node.meta.get("val"), "shape", ())
            if spec.kind != InputKind.USER_INPUT or not shape:
                continue
            if is_concrete_int(shape[0]):
                raise ValueError(
                    f"input {node.target!r}: its first dimension is the constant {shape[0]} "
                    "in the export, because forward() computes with that number; where it is "
                    "meant to be constant, give dynamic_shapes"
                )
    return program
