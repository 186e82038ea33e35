"""Opening a rewritten file the way it was planned for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, IOBinding

from onnxremat.errors import ModelError, UsageError
from onnxremat.runtimes import recipe as recipes
from onnxremat.runtimes.layout import layout_width
from onnxremat.runtimes.library import RUNTIME_ERRORS, model_content, native_path
from onnxremat.runtimes.process import one_line
from onnxremat.runtimes.record import PlanRecord, file_record
from onnxremat.runtimes.runner import DATA_FOLDER


def open_session(
    path: str | os.PathLike[str],
    providers: Sequence[str] | None = None,
    threads: int | None = None,
) -> "PlannedSession":
    """A session for a file that onnxremat wrote, with the recipe in its metadata.

    `providers` replaces the recipe's execution provider, `threads` its number of threads: the
    memory promised holds for the recorded ones. Nothing is printed. Raises UsageError if there is
    no such file, it has no record of a plan, or it holds optimizations for another provider or
    processor; ModelError if the runtime refuses it.
    """
    file = Path(path)
    record = _record(file)
    _require_fitting(file, record, providers)
    recipe = record.recipe if threads is None else record.recipe.with_threads(threads)
    if providers:
        recipe = replace(recipe, provider=_provider_name(providers[0]))
    options = recipes.session_options(recipe)
    chosen = list(providers) if providers else recipes.providers(recipe)
    try:
        return PlannedSession(file, record, options, chosen)
    except RUNTIME_ERRORS as error:
        raise ModelError(f"ONNX Runtime refuses {file}: {one_line(str(error))}") from error


def _require_fitting(file: Path, record: PlanRecord, providers: Sequence[str] | None) -> None:
    """Raise UsageError if the file holds optimizations that were made for something else."""
    made_for = record.optimized
    if made_for is None:
        return
    if providers and _provider_name(providers[0]) != made_for.provider:
        raise UsageError(
            f"{file} was optimized for {made_for.provider}, not for "
            f"{_provider_name(providers[0])}: rewrite the original for it"
        )
    if made_for.layout_width is not None and made_for.layout_width != layout_width():
        raise UsageError(
            f"{file} holds convolutions laid out in blocks of {made_for.layout_width} channels, "
            f"which this processor does not have: rewrite the original here, or with --optimize "
            "extended"
        )


def _provider_name(provider: Any) -> str:
    """A provider may come with its options."""
    return str(provider if isinstance(provider, str) else provider[0])


class PlannedSession(InferenceSession):
    """An InferenceSession that runs only on the input shapes its plan was made for.

    `plan` is the record. `run` and `run_with_iobinding` raise UsageError for other shapes, for
    with them neither the memory nor the order promised would hold.
    """

    def __init__(
        self, path: Path, plan: PlanRecord, options: Any, providers: Sequence[str]
    ) -> None:
        content = model_content(path)
        if isinstance(content, bytes):
            options.add_session_config_entry(DATA_FOLDER, native_path(path.resolve().parent))
        super().__init__(
            content, sess_options=options, providers=list(providers), enable_fallback=0
        )
        self.plan = plan

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession, on the planned shapes."""
        self._require_all(input_feed)
        return super().run(output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession, on the planned shapes."""
        self._require_all(input_feed)
        return _base(super()).run_async(output_names, input_feed, callback, user_data, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession, on the planned shapes."""
        self._require_all(input_dict_ort_values)
        return _base(super()).run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """As in InferenceSession; the binding comes from this session's `io_binding`."""
        if not isinstance(iobinding, PlannedBinding):
            raise UsageError("make the binding with the session's io_binding(): it checks shapes")
        _base(super()).run_with_iobinding(iobinding, run_options)

    def io_binding(self) -> "PlannedBinding":
        """As in InferenceSession: a binding that takes the planned shapes only."""
        return PlannedBinding(self)

    def _require_all(self, feed: Mapping[str, Any]) -> None:
        for name, value in feed.items():
            self.require_shape(name, _shape(value))

    def require_shape(self, name: str, shape: Sequence[int]) -> None:
        """Raise UsageError unless input `name` was planned for this shape."""
        planned = self.plan.input_shapes.get(name)
        if planned is not None and tuple(shape) != tuple(planned):
            raise UsageError(
                f"input {name!r} has shape {list(shape)}, but this file was planned for "
                f"{list(planned)}: rewrite the original for these sizes"
            )


class PlannedBinding(IOBinding):
    """An IOBinding of a PlannedSession: other input shapes are refused when they are bound."""

    def __init__(self, session: PlannedSession) -> None:
        super().__init__(session)
        self._planned = session

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """As in IOBinding, on the planned shape."""
        self._planned.require_shape(name, _shape(arr_on_cpu))
        _base(super()).bind_cpu_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """As in IOBinding, on the planned shape."""
        self._planned.require_shape(name, shape)
        _base(super()).bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """As in IOBinding, on the planned shape."""
        self._planned.require_shape(name, _shape(ortvalue))
        _base(super()).bind_ortvalue_input(name, ortvalue)


def _base(parent: object) -> Any:
    """The runtime's class behind a `super()`: its methods have no types."""
    return parent


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array, of the runtime's own value, or of nested lists."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return np.shape(value)
    return tuple(shape() if callable(shape) else shape)


def _record(file: Path) -> PlanRecord:
    if not file.is_file():
        raise UsageError(f"{file} is no file" if file.exists() else f"there is no file {file}")
    try:
        model = onnx.load(file, load_external_data=False)
    except DecodeError as error:
        raise ModelError(f"{file} is not an ONNX model") from error
    record = file_record(model, file)
    if record is None:
        raise UsageError(f"{file} holds no onnxremat plan: open it with onnxruntime itself")
    return record
