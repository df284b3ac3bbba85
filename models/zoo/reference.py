"""Runs a model file with PyTorch: the answers that others are compared with.

    python -m models.zoo.reference MODEL.(pt2|pt) --tables DIR \\
        --inputs X.safetensors --outputs Y.safetensors

It shares no code with Refract's own runtime. Works for any model file, not
only for those of the zoo. Tables are mapped, never copied.
"""

import re
import sys
from pathlib import Path

import torch

from models.zoo import cli, programs, safetensors_io


def gather(slots, tensors, path):
    """Returns the inputs in the program's order, or says what is wrong."""
    left = dict(tensors)
    # Dictionaries last: they take every name that begins with theirs.
    order = sorted(range(len(slots)), key=lambda i: slots[i].kind == "dict")
    taken = {i: _take(slots[i], left, path) for i in order}
    leaves = [taken[i] for i in range(len(slots))]
    if left:
        raise cli.InputError(
            f"{path}: the model has no input {min(left)}; it wants "
            f"{', '.join(slot.name for slot in slots)}"
        )
    return leaves


def _take(slot, left, path):
    """Takes the value for `slot` out of the dictionary `left`."""
    if slot.kind == "constant":
        return slot.constant
    if slot.kind == "list":
        pattern = re.compile(re.escape(slot.name) + r"_(\d+)")
        names = [name for name in left if pattern.fullmatch(name)]
        names.sort(key=lambda name: int(pattern.fullmatch(name)[1]))
        return [left.pop(name) for name in names]
    if slot.kind == "tuple":
        names = [f"{slot.name}_{i}" for i in range(slot.constant)]
        for name in names:
            if name not in left:
                raise cli.InputError(f"{path}: input {name} is missing")
        return tuple(left.pop(name) for name in names)
    if slot.kind == "dict":
        prefix = f"{slot.name}_"
        names = sorted(name for name in left if name.startswith(prefix))
        return {name.removeprefix(prefix): left.pop(name) for name in names}
    if slot.name not in left:
        if slot.kind == "optional":
            return None
        raise cli.InputError(f"{path}: input {slot.name} is missing")
    tensor = left.pop(slot.name)
    if slot.kind in ("int", "float", "bool"):
        if tensor.numel() != 1:
            raise cli.InputError(
                f"{path}: input {slot.name} wants one number, not shape "
                f"{list(tensor.shape)}"
            )
        return {"int": int, "float": float, "bool": bool}[slot.kind](tensor)
    if slot.dtype is not None and tensor.dtype != slot.dtype:
        raise cli.InputError(
            f"{path}: input {slot.name} is {tensor.dtype}, the model wants "
            f"{slot.dtype}"
        )
    if slot.shape is not None:
        _check_shape(slot, tensor, path)
    return tensor


def _check_shape(slot, tensor, path):
    # Symbolic sizes are the guards' business.
    fits = len(slot.shape) == tensor.dim() and all(
        wanted == size or not isinstance(wanted, int)
        for wanted, size in zip(slot.shape, tensor.shape)
    )
    if not fits:
        wanted = ", ".join(str(extent) for extent in slot.shape)
        raise cli.InputError(
            f"{path}: input {slot.name} has shape {list(tensor.shape)}, the "
            f"model wants [{wanted}]"
        )


def name_outputs(leaves, names=None):
    """Returns {name: tensor} with the names of import: by default "output_<i>",
    i counting the tensors in pytree order. None and numbers are left out.
    """
    if names is None:
        leaves = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        names = [f"output_{i}" for i in range(len(leaves))]
    return {
        name: leaf
        for name, leaf in zip(names, leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    }


def run(program, inputs, outputs):
    """Runs the file `inputs` and writes the file `outputs`."""
    tensors = safetensors_io.read(inputs)
    named = {program.name_of(name): tensor for name, tensor in tensors.items()}
    leaves = gather(program.slots, named, inputs)
    try:
        with torch.no_grad():
            results = program.run(leaves)
    except cli.InputError as error:
        raise cli.InputError(f"{inputs}: {error}")
    except Exception as error:  # Operators raise many types on bad values.
        # TorchScript puts a traceback before the message, which comes last.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        line = lines[-1] if lines[0].startswith("The following") else lines[0]
        raise cli.InputError(f"{inputs}: the model refuses it: {line}")
    try:
        safetensors_io.write(outputs, name_outputs(results, program.output_names))
    except OSError as error:
        raise cli.InputError(f"{outputs}: {error.strerror}")


def _report(text):
    # A crash of PyTorch must not lose it.
    print(f"refract-reference: {text}", file=sys.stderr, flush=True)


def main():
    parser = cli.Parser(
        prog="python -m models.zoo.reference",
        description="Runs a model file with PyTorch, on one thread.",
    )
    parser.add_argument("model", metavar="MODEL.(pt2|pt)", help="model file")
    parser.add_argument(
        "--tables",
        metavar="DIR",
        help="folder of *.safetensors with values by parameter name",
    )
    parser.add_argument(
        "--inputs",
        metavar="X.safetensors",
        action="append",
        required=True,
        help="inputs by name; may be repeated, each with its --outputs",
    )
    parser.add_argument(
        "--outputs",
        metavar="Y.safetensors",
        action="append",
        required=True,
        help="file to write: output_0, output_1, ..., or the keys of a "
        "dictionary that a .pt2 returns",
    )
    parser.add_argument(
        "--op-library",
        metavar="FILE.so",
        action="append",
        default=[],
        help="operators that the model needs; may be repeated",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="say on stderr when the model is loaded and what each request "
        "gave, for refract run",
    )
    args = parser.parse_args()
    if len(args.inputs) != len(args.outputs):
        raise cli.InputError(
            f"{len(args.inputs)} --inputs but {len(args.outputs)} --outputs"
        )
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)

    program = programs.load(args.model, args.op_library)
    tables = {}
    if args.tables is not None:
        if not Path(args.tables).is_dir():
            raise cli.InputError(f"{args.tables}: no such folder")
        tables = safetensors_io.read_folder(args.tables)
    try:
        program.bind(tables)
    except cli.InputError as error:
        raise cli.InputError(f"{args.model}: {error}")
    report = _report if args.report else lambda text: None
    report("loaded")
    errors = []
    for inputs, outputs in zip(args.inputs, args.outputs):
        try:
            run(program, inputs, outputs)
        except cli.InputError as error:
            errors.append(error)
            report("failed: " + " ".join(str(error).split()))
        else:
            report("ok")
    if len(args.inputs) == 1 and errors:
        raise errors[0]
    if errors:
        raise cli.InputError(
            f"{len(errors)} of {len(args.inputs)} requests failed, the others "
            f"are answered; the first error: {errors[0]}"
        )


if __name__ == "__main__":
    cli.run(main, "models.zoo.reference")
