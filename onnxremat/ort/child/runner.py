"""A model opened in the child process, ready to be run again and again.

Inputs are bound once and outputs are bound to the CPU before every run, so that a run allocates
what ONNX Runtime needs and nothing else.
"""

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.ort.child.wire import BITS_OUT, REINTERPRETED, Array
from onnxremat.ort.library import RUNTIME_ERRORS, model_content, native_path, ort
from onnxremat.ort.recipe import Recipe, providers, session_options

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_BLOCKS = "NchwcTransformer"
"""The runtime's name of what lays convolutions out in blocks."""


class RuntimeRefusal(Exception):
    """ONNX Runtime will not load or run model number `model`; `reason` is what it says."""

    def __init__(self, model: int, reason: str) -> None:
        super().__init__(reason)
        self.model = model
        self.reason = reason


@contextmanager
def refusals(model: int) -> Iterator[None]:
    """Turn whatever the runtime raises inside the block into a RuntimeRefusal."""
    try:
        yield
    except MemoryError as error:
        raise RuntimeRefusal(model, "out of memory") from error
    except RUNTIME_ERRORS as error:
        raise RuntimeRefusal(model, str(error)) from error


class Runner:
    """One session with its inputs. `number` is the model's place in the request; `load_seconds`:
    what opening the session took."""

    def __init__(
        self,
        number: int,
        model: Mapping[str, Any],
        recipe: Recipe,
        inputs: Mapping[str, Any],
        *,
        config: Mapping[str, str | bytes] | None = None,
        profile_prefix: str | None = None,
    ) -> None:
        self.number = number
        with refusals(number):
            options = session_options(recipe)
            for key, value in (config or {}).items():
                options.add_session_config_entry(key, value)
            if profile_prefix is not None:
                options.enable_profiling = True
                options.profile_file_prefix = profile_prefix
            began = time.perf_counter()
            self.session = runtime_session(model, recipe, options)
            self.load_seconds = time.perf_counter() - began
            self.feeds = self._feeds(inputs)
            self.binding = self._bind()
            self.release()

    def _feeds(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        feeds: dict[str, Any] = {}
        for argument in self.session.get_inputs():
            if argument.name not in inputs:
                raise ValueError(f"no value was given for input {argument.name!r}")
            value = inputs[argument.name]
            feeds[argument.name] = (
                value if isinstance(value, ort.OrtValue) else _ort_value(value, argument.type)
            )
        return feeds

    def _bind(self) -> Any:
        """None where ONNX Runtime cannot bind: text inputs."""
        if any(isinstance(value, np.ndarray) for value in self.feeds.values()):
            return None
        binding = self.session.io_binding()
        for name, value in self.feeds.items():
            binding.bind_ortvalue_input(name, value)
        return binding

    def release(self) -> None:
        """Let go of the outputs of the last run and get ready for the next."""
        if self.binding is not None:
            self.binding.clear_binding_outputs()
            for argument in self.session.get_outputs():
                self.binding.bind_output(argument.name, "cpu")

    def run(self) -> None:
        """One run. Outputs are held until `release`."""
        with refusals(self.number):
            if self.binding is None:
                self.session.run(None, self.feeds)
            else:
                self.session.run_with_iobinding(self.binding)

    def values(self) -> dict[str, Any]:
        """Inputs and the outputs of a run of its own, as the runtime's values, by name."""
        if self.binding is None:
            raise RuntimeRefusal(self.number, "text inputs cannot be bound")
        self.run()
        names = (argument.name for argument in self.session.get_outputs())
        return {**self.feeds, **dict(zip(names, self.binding.get_outputs(), strict=True))}

    def outputs(self) -> dict[str, Any]:
        """The outputs of a run of its own: arrays, or lists of arrays for sequences."""
        arguments = self.session.get_outputs()
        special = any(_element(one.type) in REINTERPRETED | BITS_OUT for one in arguments)
        with refusals(self.number):
            if not special:
                values = self.session.run(None, self.feeds)
                return {a.name: value for a, value in zip(arguments, values, strict=True)}
            if self.binding is None:
                raise ValueError("text inputs together with bfloat16 outputs are not supported")
            self.run()
            made = self.binding.get_outputs()
            return {a.name: _to_numpy(value) for a, value in zip(arguments, made, strict=True)}


def runtime_session(model: Mapping[str, Any], recipe: Recipe, options: Any) -> Any:
    """The runtime's session of a model of a request. Raises what the runtime raises."""
    path, data_folder = Path(model["path"]), model["data_folder"]
    content = model_content(path) if data_folder is None else path.read_bytes()
    if isinstance(content, bytes):
        folder = path.parent if data_folder is None else data_folder
        options.add_session_config_entry(DATA_FOLDER, native_path(folder))
    left_out = set() if recipe.blocks else {_BLOCKS}
    # Without enable_fallback=0 a refusal would be printed and tried again.
    return ort.InferenceSession(
        content,
        options,
        providers=providers(recipe),
        disabled_optimizers=left_out,
        enable_fallback=0,
    )


def _element(type_name: str) -> str:
    """`float` of `tensor(float)`."""
    return type_name.removeprefix("tensor(").removesuffix(")")


def _ort_value(array: Array, type_name: str) -> Any:
    if array.dtype.kind == "U":
        return array.astype(object)
    array = array if array.flags.c_contiguous else array.copy("C")
    special = REINTERPRETED.get(_element(type_name))
    if special is not None:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, special)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _to_numpy(value: Any) -> Array:
    """A copy of a tensor; types that numpy does not know become unsigned integers, and those with
    several elements in a byte a row of bytes."""
    if not value.is_tensor():
        raise ValueError("outputs that are no tensors beside bfloat16 outputs are not supported")
    element = _element(value.data_type())
    if element not in REINTERPRETED and element not in BITS_OUT:
        return np.array(value.numpy())
    shape = tuple(value.shape())
    count = value.tensor_size_in_bytes()
    content = (ctypes.c_ubyte * count).from_address(value.data_ptr()) if count else b""
    if BITS_OUT.get(element, 8) < 8:
        packed = np.array(np.frombuffer(content, np.uint8))
        packed[-1:] &= _used_bits(prod(shape) * BITS_OUT[element])
        return packed
    item = np.uint16 if count == 2 * prod(shape) else np.uint8
    return np.frombuffer(bytes(content), dtype=item).reshape(shape)


def _used_bits(bits: int) -> np.uint8:
    """Which bits of the last byte belong to elements, of so many bits in all."""
    return np.uint8((1 << (bits % 8 or 8)) - 1)
