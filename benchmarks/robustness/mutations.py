"""Damage to model files: of bytes, of any part of the protobuf, and of what models are about.

`mutate` is a function of a model's bytes and a random generator, so that a seed and a number give
the same mutant again.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

RECORD = "onnxremat.plan"

_LARGE = 1 << 20

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 99, 1 << 20, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1)
INTEGERS += (-(2**63),)
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "a", "\x1b[2J\x1b]0;t\x07", "line\nbreak", "\x00", "é\u202e", "n" * 6000)
TEXTS += (
    "../../x",
    "/dev/zero",
    "/dev/full",
    "weights.bin",
    ".",
    "ai.onnx",
    "com.microsoft",
    "own",
)
OPS = (
    "Relu",
    "Identity",
    "Add",
    "MatMul",
    "Concat",
    "Split",
    "Reshape",
    "Cast",
    "Conv",
    "Constant",
)
OPS += (
    "Loop",
    "If",
    "Scan",
    "RandomNormalLike",
    "Dropout",
    "NonZero",
    "Optional",
    "Shape",
    "Swish",
)
OPS += (
    "SequenceConstruct",
    "Softmax",
    "Resize",
    "Einsum",
    "NoSuchOp",
    "Transpose",
    "Expand",
    "Tile",
)
LOCATIONS = ("../weights.bin", "/dev/zero", "/etc/hostname", "missing.bin", "", ".", "l" * 6000)
LOCATIONS += ("model.onnx", "weights.bin", "a/../weights.bin", "\x00", "/proc/self/mem")

Random = np.random.Generator
Field = tuple[Message, FieldDescriptor]


def mutate(model: bytes, rng: Random) -> tuple[bytes, str]:
    """A damaged model file, and in words what was done to it."""
    if rng.random() < 0.25:
        return _bytes_mutant(model, rng)
    proto = onnx.ModelProto.FromString(model)
    done = []
    data = model
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4, 6])):
        mutation = _pick(rng, MUTATIONS if rng.random() < 0.6 else (any_field,))
        try:
            done.append(mutation(proto, rng) or "nothing")
            data = proto.SerializeToString()
        except (ValueError, EncodeError, DecodeError):
            break  # too deep for the library, what was done before it stays
        if "deep body" in done:
            break
    if rng.random() < 0.05:
        data, words = _not_utf8(data, rng)
        done.append(words)
    return data, "; ".join(done)


def _pick(rng: Random, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


# Bytes


def _bytes_mutant(model: bytes, rng: Random) -> tuple[bytes, str]:
    data = bytearray(model)
    done = []
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        at = int(rng.integers(len(data)))
        length = int(min(rng.choice([1, 1, 2, 4, 8, 64, 1024]), len(data) - at))
        kind = str(rng.choice(["flip", "set", "cut", "insert", "copy", "truncate", "zero"]))
        if kind == "flip":
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == "set":
            data[at] = int(rng.integers(256))
        elif kind == "cut":
            del data[at : at + length]
        elif kind == "insert":
            data[at:at] = rng.bytes(length)
        elif kind == "copy":
            start = int(rng.integers(len(data)))
            data[at : at + length] = data[start : start + length]
        elif kind == "truncate" and rng.random() < 0.3:
            del data[at:]
        elif kind == "zero":
            data[at : at + length] = bytes(length)
        done.append(f"{kind} at {at}")
    return bytes(data), "bytes: " + ", ".join(done[:4])


def _not_utf8(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One letter of a name turned into a byte that is no text."""
    letters = [i for i, byte in enumerate(data) if chr(byte).isalpha()]
    if not letters:
        return data, "no text"
    at = _pick(rng, letters)
    return data[:at] + b"\xff" + data[at + 1 :], f"byte {at} is no text"


# Any field of any message


def _messages(message: Message) -> Iterator[Message]:
    """A message and all in it, however deep they are."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        yield message
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting.extend(value if _repeated(field) else (value,))


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == 3


def any_field(proto: onnx.ModelProto, rng: Random) -> str:
    """Change one field, of one message, somewhere."""
    message = _pick(rng, list(_messages(proto)))
    kind = message.DESCRIPTOR
    present = [field for field, _ in message.ListFields()]
    fields = present if present and rng.random() < 0.85 else list(kind.fields)
    field = _pick(rng, fields)
    words = f"{kind.name}.{field.name}"
    if _repeated(field):
        return f"{_change_list(proto, message, field, rng)} {words}"
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return f"{_change_message(proto, message, field, rng)} {words}"
    if rng.random() < 0.15:
        message.ClearField(field.name)
        return f"clear {words}"
    setattr(message, field.name, _value(field, getattr(message, field.name), rng))
    return f"set {words}"


def _value(field: FieldDescriptor, old: Any, rng: Random) -> Any:
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        return _pick(rng, TEXTS)
    if kind == FieldDescriptor.TYPE_BYTES:
        return old[: int(rng.integers(len(old) + 1))] + rng.bytes(int(rng.integers(4)))
    if kind in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return _pick(rng, FLOATS)
    if kind == FieldDescriptor.TYPE_ENUM:
        return int(_pick(rng, [value.number for value in field.enum_type.values]))
    chosen = _pick(rng, INTEGERS) if rng.random() < 0.7 else old + int(rng.choice([-1, 1]))
    wide = kind in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)
    low, high = (-(2**63), 2**63 - 1) if wide else (-(2**31), 2**31 - 1)
    if kind in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32):
        low = 0
    return min(max(chosen, low), high)


def _change_list(proto: Message, message: Message, field: FieldDescriptor, rng: Random) -> str:
    values = getattr(message, field.name)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if not len(values):
        if is_message:
            others = [m for m in _messages(proto) if m.DESCRIPTOR is field.message_type]
            made = _copied(_pick(rng, others)) if others else None
            values.add().CopyFrom(made) if made is not None else values.add()
        else:
            values.append(_value(field, _zero(field), rng))
        return "first of"
    at = int(rng.integers(len(values)))
    kind = str(
        rng.choice(["delete", "double", "swap", "clear", "change"], p=[0.3, 0.2, 0.2, 0.1, 0.2])
    )
    if kind == "delete":
        del values[at]
    elif kind == "double":
        values.add().CopyFrom(_copied(values[at])) if is_message else values.append(values[at])
    elif kind == "swap":
        to = int(rng.integers(len(values)))
        kept = list(values)
        kept[at], kept[to] = kept[to], kept[at]
        copies = [_copied(one) for one in kept] if is_message else kept
        del values[:]
        values.extend(copies)
    elif kind == "clear":
        del values[:]
    elif is_message:
        _become(values[at], proto, rng)
    else:
        values[at] = _value(field, values[at], rng)
    return kind


def _zero(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return ""
    return b"" if field.type == FieldDescriptor.TYPE_BYTES else 0


def _copied(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _become(message: Message, proto: Message, rng: Random) -> None:
    """Take the content of another message of the same kind: bodies end up in each other."""
    others = [m for m in _messages(proto) if m.DESCRIPTOR is message.DESCRIPTOR]
    message.CopyFrom(_copied(_pick(rng, others)))


def _change_message(proto: Message, message: Message, field: FieldDescriptor, rng: Random) -> str:
    if message.HasField(field.name) and rng.random() < 0.4:
        message.ClearField(field.name)
        return "clear"
    others = [m for m in _messages(proto) if m.DESCRIPTOR is field.message_type]
    if others:
        getattr(message, field.name).CopyFrom(_copied(_pick(rng, others)))
    else:
        getattr(message, field.name).SetInParent()
    return "exchange"


# What models are about


def _all(proto: Message, kind: type[Message]) -> list[Any]:
    return [m for m in _messages(proto) if isinstance(m, kind)]


def rewire(proto: onnx.ModelProto, rng: Random) -> str:
    """A node reads another value, or one that does not exist, or its own output."""
    nodes = [n for n in _all(proto, onnx.NodeProto) if n.input]
    if not nodes:
        return ""
    node = _pick(rng, nodes)
    names = [name for n in nodes for name in (*n.input, *n.output)]
    node.input[int(rng.integers(len(node.input)))] = str(_pick(rng, [*names, "nowhere", ""]))
    return "rewire"


def rename(proto: onnx.ModelProto, rng: Random) -> str:
    """A value made under another name: the one of another value, an empty or a strange one."""
    nodes = [n for n in _all(proto, onnx.NodeProto) if n.output]
    if not nodes:
        return ""
    node = _pick(rng, nodes)
    old = _pick(rng, list(node.output))
    new = str(_pick(rng, [*(name for n in nodes for name in n.output), *TEXTS]))
    everywhere = rng.random() < 0.5
    for one in nodes if everywhere else (node,):
        for names in (one.input, one.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    return "rename everywhere" if everywhere else "rename"


def other_op(proto: onnx.ModelProto, rng: Random) -> str:
    """A node of another type or domain."""
    nodes = _all(proto, onnx.NodeProto)
    if not nodes:
        return ""
    node = _pick(rng, nodes)
    if rng.random() < 0.8:
        node.op_type = str(_pick(rng, OPS))
    else:
        node.domain = str(_pick(rng, TEXTS))
    return f"op {node.op_type[:20]!r}"


def other_shape(proto: onnx.ModelProto, rng: Random) -> str:
    """Sizes, ranks and element types of a tensor or of what is declared of one."""
    targets = [*_all(proto, onnx.TensorProto), *_all(proto, onnx.TypeProto.Tensor)]
    if not targets:
        return ""
    target = _pick(rng, targets)
    is_tensor = isinstance(target, onnx.TensorProto)
    if rng.random() < 0.3:
        kind = int(rng.integers(0, 30))
        if is_tensor:
            target.data_type = kind
        else:
            target.elem_type = kind
        return f"element type {kind}"
    dims = target.dims if is_tensor else target.shape.dim
    size = int(_pick(rng, INTEGERS))
    if rng.random() < 0.1:
        more = int(rng.choice([1, 8, 100]))
        dims.extend(
            [1] * more if is_tensor else [onnx.TensorShapeProto.Dimension(dim_value=1)] * more
        )
        return f"{more} dimensions more"
    if not len(dims):
        return ""
    at = int(rng.integers(len(dims)))
    if is_tensor:
        dims[at] = size
    elif rng.random() < 0.3:
        dims[at].dim_param = str(_pick(rng, TEXTS))
    else:
        dims[at].dim_value = size
    return f"size {size}"


def other_value(proto: onnx.ModelProto, rng: Random) -> str:
    """Numbers inside a tensor."""
    tensors = [t for t in _all(proto, onnx.TensorProto) if t.raw_data]
    if not tensors:
        return ""
    tensor = _pick(rng, tensors)
    data = bytearray(tensor.raw_data)
    at = int(rng.integers(len(data)))
    data[at] = int(rng.choice([0, 1, 127, 128, 255]))
    tensor.raw_data = bytes(data)
    return f"value of {tensor.name[:20]!r}"


def other_attribute(proto: onnx.ModelProto, rng: Random) -> str:
    """An attribute gone, doubled, of another kind, absurd, or a reference."""
    nodes = [n for n in _all(proto, onnx.NodeProto) if n.attribute]
    if not nodes:
        return ""
    node = _pick(rng, nodes)
    at = int(rng.integers(len(node.attribute)))
    attribute = node.attribute[at]
    kind = str(rng.choice(["delete", "double", "kind", "number", "list", "reference"]))
    if kind == "delete":
        del node.attribute[at]
    elif kind == "double":
        node.attribute.add().CopyFrom(attribute)
    elif kind == "kind":
        attribute.type = int(rng.integers(0, 15))
    elif kind == "number":
        attribute.i = int(_pick(rng, INTEGERS))
        attribute.type = onnx.AttributeProto.INT
    elif kind == "list":
        del attribute.ints[:]
        attribute.ints.extend(int(_pick(rng, INTEGERS)) for _ in range(int(rng.integers(0, 5))))
        attribute.type = onnx.AttributeProto.INTS
    else:
        attribute.ref_attr_name = str(_pick(rng, ["slope", "alpha", ""]))
    return f"attribute: {kind}"


def other_opset(proto: onnx.ModelProto, rng: Random) -> str:
    """Another version of the operators or of the format."""
    if proto.opset_import and rng.random() < 0.7:
        chosen = _pick(rng, list(proto.opset_import))
        chosen.version = int(_pick(rng, [0, 1, 6, 7, 9, 11, 13, 15, 18, 20, 22, 24, 40, -1, 2**40]))
        return f"opset {chosen.version}"
    proto.ir_version = int(_pick(rng, [0, 1, 3, 4, 8, 10, 11, 14, 99, -1]))
    return f"format {proto.ir_version}"


def outside_data(proto: onnx.ModelProto, rng: Random) -> str:
    """A tensor that says its data is in another file, or other words about where."""
    tensors = _all(proto, onnx.TensorProto)
    if not tensors:
        return ""
    tensor = _pick(rng, tensors)
    if not tensor.external_data or rng.random() < 0.3:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=str(_pick(rng, LOCATIONS)))
        if rng.random() < 0.5:
            tensor.ClearField("raw_data")
        return "outside data"
    entry = _pick(rng, list(tensor.external_data))
    if entry.key == "location":
        entry.value = str(_pick(rng, LOCATIONS))
    elif rng.random() < 0.2:
        entry.key = str(_pick(rng, TEXTS))
    else:
        entry.value = str(_pick(rng, (*INTEGERS, "x", "", "1e3", "0x10", " 1")))
    return f"outside data: {entry.key[:20]!r}"


def deep_body(proto: onnx.ModelProto, rng: Random) -> str:
    """A graph that holds itself in an If, many times over, or a function that calls itself. (The
    protobuf library reads up to 100 messages in each other; an If is three.)"""
    if proto.functions and rng.random() < 0.4:
        function = _pick(rng, list(proto.functions))
        function.node.add(op_type=function.name, domain=function.domain, input=function.input[:1])
        return "function of itself"
    graph = _pick(rng, _all(proto, onnx.GraphProto) or [proto.graph])
    if len(proto.SerializeToString()) > _LARGE:
        return ""
    for _ in range(int(rng.choice([1, 3, 20, 40]))):
        inner = _copied(graph)
        del graph.node[:]
        node = graph.node.add(op_type="If", input=["c"], output=["o"])
        for name in ("then_branch", "else_branch"):
            branch = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            branch.g.CopyFrom(inner) if name == "then_branch" else branch.g.SetInParent()
    return "deep body"


def other_record(proto: onnx.ModelProto, rng: Random) -> str:
    """Another value somewhere in the record of a plan."""
    for entry in proto.metadata_props:
        if entry.key == RECORD:
            try:
                data = json.loads(entry.value)
            except ValueError:
                data = None
            if not isinstance(data, (dict, list)) or not data:
                return ""
            words = _change_json(data, rng)
            entry.value = json.dumps(data)
            return f"record: {words}"
    proto.metadata_props.add(
        key=RECORD, value=str(_pick(rng, ["{}", "[]", "1", "null", '{"version": 2}']))
    )
    return "record added"


def _change_json(data: Any, rng: Random) -> str:
    """Change one value of nested dictionaries and lists, if there is any; its key."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                collect(node[key])

    if isinstance(data, (dict, list)):
        collect(data)
    if not places:
        return "nothing to change"
    node, key = _pick(rng, places)
    absurd = [*INTEGERS, 10**400, *FLOATS, *TEXTS, None, True, [], {}, [[]], {"x": -1}, [1] * 200]
    if rng.random() < 0.15 and isinstance(node, dict):
        del node[key]
        return f"no {key}"
    node[key] = _pick(rng, absurd)
    return str(key)


MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], str], ...] = (
    rewire, rename, other_op, other_shape, other_shape, other_value, other_attribute,
    other_attribute, other_opset, outside_data, deep_body, other_record,
)  # fmt: skip
