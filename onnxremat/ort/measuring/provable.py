"""What ONNX Runtime can prove of a value's size when it opens a session: it is asked.

In-place execution and the reuse of dead buffers need proof that two buffers have the same size. The
runtime has the declared shapes, with `free_dimensions` put into those of the inputs, and what its
own shape inference makes of them; sizes of a run do not count. Its inference differs from onnx's
(in what it computes from values of shapes, in operators of its own, in how a declared symbol and an
overridden one are merged), so it is not emulated: a session is opened on a copy of the model in
which every value is an output, and tells their shapes.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.importer.nodes import is_constant
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.measuring.profile import RunProfile
from onnxremat.ort.recipe import Recipe

_TENSOR = re.compile(r"tensor\((\w+)\)")
_STRING = "string"
_BYTES = {"double": 8, "float": 4, "bool": 1, "complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class ProvableType:
    """An element type (an ONNX name such as `float`) and a shape: numbers, names of symbols, and
    None for a dimension of which nothing is known."""

    dtype: str
    shape: tuple[int | str | None, ...]


def same_size(a: ProvableType, b: ProvableType) -> bool:
    """Whether two buffers provably have the same size, by the runtime's rule: elements of the same
    number of bytes, the same rank, and dimensions that are the same number or the same symbol.

    [4, 2] and [8] are different. An unknown dimension equals nothing, text is never the same.
    """
    if _STRING in (a.dtype, b.dtype) or len(a.shape) != len(b.shape):
        return False
    if element_bytes(a.dtype) != element_bytes(b.dtype):
        return False
    return all(x is not None and x == y for x, y in zip(a.shape, b.shape, strict=True))


def element_bytes(dtype: str) -> int:
    """Bytes of an element of the runtime's type; those below a byte are kept as whole bytes."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1


def provable_types(
    model: onnx.ModelProto, base_dir: Path | str, recipe: Recipe, profile: RunProfile
) -> dict[str, ProvableType]:
    """What the runtime proves of every value that a top-level node makes, by name.

    `base_dir` is the folder of external data. The model is opened in a child, but not run. Values
    are left out if their rank is unknown or they are no tensors; the runtime tells unknown rank and
    rank 0 alike, so `profile` is asked which it is. Raises ModelError if the runtime refuses.
    """
    scalars = {
        name
        for v, node in profile.nodes.items()
        for name, made in zip(model.graph.node[v].output, node.outputs, strict=True)
        if made is not None and not made.shape
    }
    source = ModelSource(model=_all_outputs(model), base_dir=Path(base_dir))
    with run_job(worker_actions.shapes, [source], [recipe], {}) as job:
        outputs: list[dict[str, Any]] = job.answer["outputs"]
    types = {}
    for told in outputs:
        match = _TENSOR.fullmatch(told["type"])
        shape = tuple(told["shape"])
        if match and (shape or told["name"] in scalars):
            types[told["name"]] = ProvableType(match[1], shape)
    return types


def _all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    for node in model.graph.node:
        if not is_constant(node):
            for name in node.output:
                if name and name not in present:
                    copy.graph.output.add(name=name)
    return copy
