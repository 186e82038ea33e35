"""onnxruntime's symbolic shape inference, contained.

The tool knows the fused ops of ONNX Runtime and computes with shapes, but it prints, logs, asserts,
raises bare Exceptions, writes a file into the working directory when it cannot finish, and in one
place it guesses. With large sizes it may think for hours. None of that may reach a user of this
package.
"""

import contextlib
import ctypes
import io
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any

from onnx import ModelProto, NodeProto

from onnxremat.importer.nodes import attribute, op_key, reads
from onnxremat.importer.values import ValueType, concrete_type

_LOGGER = "onnxruntime.tools.symbolic_shape_infer"
_LARGEST_SIZE = 2**31 - 1
"""What the tool takes an open-ended Slice to mean."""

_LEAST_SECONDS, _SECONDS_EACH = 10.0, 0.02
"""The tool gets so long, and so much for each node, twenty times what it takes."""

_CALLS_TO_STOP, _STOP_SECONDS = 50, 0.1


def symbolic_types(copy: ModelProto, known: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Complete types of values of `copy`, as far as the tool gets and does not guess.

    `known` are types that are certain. About 1 ms for every node.
    """
    found, doubtful = _run(copy)
    certain = {**found, **known}
    for node in copy.graph.node:
        if not doubtful.isdisjoint(reads(node)) or _guesses(node, copy, certain):
            doubtful.update(name for name in node.output if name not in known)
    return {name: kind for name, kind in found.items() if name not in doubtful}


def _run(copy: ModelProto) -> tuple[dict[str, ValueType], set[str]]:
    """What the tool found, and outputs of the node it failed at, which may be half done.

    Its public entry point throws all away when one node is beyond it; so its steps are called.
    """
    # Here, because sympy and onnxruntime take longer to import than most models to read.
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    logger = logging.getLogger(_LOGGER)
    silent, logger.disabled = logger.disabled, True
    make: Any = SymbolicShapeInference
    tool = make(_LARGEST_SIZE, auto_merge=False, guess_output_rank=False, verbose=0)
    attempt = _Attempt(tool, copy)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            attempt.run(_LEAST_SECONDS + _SECONDS_EACH * len(copy.graph.node))
    finally:
        logger.disabled = silent
    failed = not attempt.finished
    values = getattr(tool, "known_vi_", {})
    types = {name: concrete_type(value.type, {}) for name, value in values.items()}
    complete = {name: kind for name, kind in types.items() if kind is not None}
    return complete, _outputs_of_last(copy, list(values)) if failed else set()


class _TooLate(BaseException):
    """Raised in the thread of an attempt when its time is over."""


class _Attempt:
    """The tool at work in a thread of its own, in which it can be stopped wherever it is."""

    def __init__(self, tool: Any, copy: ModelProto) -> None:
        self._tool, self._copy = tool, copy
        self.finished = False

    def run(self, seconds: float) -> None:
        """Work until all is done, the tool fails or time is over."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        thread.join(seconds)
        for _ in range(_CALLS_TO_STOP):
            if not thread.is_alive():
                return
            ident = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_TooLate))
            thread.join(_STOP_SECONDS)

    def _work(self) -> None:
        try:
            self._tool._preprocess(self._copy)
            while self._tool.run_:
                self._tool._infer_impl()
            self.finished = True
        except (Exception, _TooLate):  # noqa: BLE001 - it raises anything; an import can do without
            return


def _outputs_of_last(copy: ModelProto, names: list[str]) -> set[str]:
    """The outputs of the node that was worked on last: names stand in the order of work."""
    for node in reversed(copy.graph.node):
        if names and names[-1] in node.output:
            return set(node.output)
    return set()


def _guesses(node: NodeProto, copy: ModelProto, certain: Collection[str]) -> bool:
    """Whether the tool guesses this node's shape: Squeeze, if it has to see which sizes are 1.

    It then takes unknown sizes for larger than 1, and takes axes that it cannot compute for none.
    """
    if op_key(node) != "Squeeze" or attribute(node, "axes") is not None:
        return False
    if len(node.input) > 1 and node.input[1]:
        return all(tensor.name != node.input[1] for tensor in copy.graph.initializer)
    return node.input[0] not in certain
