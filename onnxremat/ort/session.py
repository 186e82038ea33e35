"""Opening a rewritten file the way it was planned for.

A file that holds for certain sizes only declares them. Any other one runs at all sizes that its
inputs leave open; its memory is promised for the planned ones alone. The session for those knows
them when it is opened, for the runtime writes in place only where it can prove that sizes are
equal. The first run at other sizes opens a second one beside it, which knows none: the promise is
kept for the planned sizes, and the weights are held twice.
"""

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, IOBinding

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.units import format_bytes
from onnxremat.importer import open_inputs
from onnxremat.importer.load import parsed, read_content
from onnxremat.ort import recipe as recipes
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.child.process import one_line
from onnxremat.ort.child.runner import DATA_FOLDER
from onnxremat.ort.library import RUNTIME_ERRORS, model_content, native_path
from onnxremat.ort.recipe import Recipe
from onnxremat.ort.record import PlanRecord, file_record

_Open = Mapping[str, tuple[int | None, ...]]


def open_session(
    path: str | os.PathLike[str],
    providers: Sequence[str] | None = None,
    threads: int | None = None,
) -> "PlannedSession":
    """A session for a file that onnxremat wrote, with the recipe in its metadata.

    `providers` replaces the recipe's execution provider, `threads` its number of threads: the
    memory promised holds for the recorded ones, and for the planned sizes. Nothing is printed.
    Raises UsageError if there is no such file, it has no record of a plan, or it holds
    optimizations for another provider or processor; ModelError if the runtime refuses it.
    """
    file = Path(path)
    record, left_open = _read(file)
    _require_fitting(file, record, providers)
    recipe = record.recipe if threads is None else record.recipe.with_threads(threads)
    if providers:
        recipe = replace(recipe, provider=_provider_name(providers[0]))
    chosen = list(providers) if providers else recipes.providers(recipe)
    return PlannedSession(file, record, recipe, chosen, left_open)


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
    """An InferenceSession for the input shapes that its plan was made for.

    `plan` is the record; `left_open` has the inputs with sizes that may be others, as None. The
    first other size is a warning: its memory was not promised. UsageError is raised for shapes that
    the file does not take.
    """

    def __init__(
        self,
        path: Path,
        plan: PlanRecord,
        recipe: Recipe,
        providers: Sequence[str],
        left_open: _Open,
    ) -> None:
        self.plan = plan
        self._file, self._recipe, self._chosen = path, recipe, list(providers)
        self._left_open = left_open
        self._lock = threading.Lock()
        self._any_size: InferenceSession | None = None
        _open(path, recipe, providers, super().__init__)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession."""
        run = self._suited(input_feed, super()).run
        return run(output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession."""
        run = self._suited(input_feed, super()).run_async
        return run(output_names, input_feed, callback, user_data, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> Any:
        """As in InferenceSession."""
        run = self._suited(input_dict_ort_values, super()).run_with_ort_values
        return run(output_names, input_dict_ort_values, run_options)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """As in InferenceSession; the binding comes from this session's `io_binding`."""
        if not isinstance(iobinding, PlannedBinding):
            raise UsageError("make the binding with the session's io_binding(): it checks shapes")
        session = iobinding.any_size or _base(super())
        session.run_with_iobinding(iobinding, run_options)

    def io_binding(self) -> "PlannedBinding":
        """As in InferenceSession: a binding that checks shapes."""
        return PlannedBinding(self)

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> InferenceSession | None:
        """The session beside this one that runs at these input shapes; None if it is this one.

        Warns where they are the first that the memory was not promised for. Raises UsageError for
        shapes that the file does not take, ModelError if the runtime refuses to open it again.
        """
        planned = self.plan.input_shapes
        others = {name: s for name, s in shapes.items() if s != tuple(planned.get(name, s))}
        for name, shape in others.items():
            if not _takes(self._left_open.get(name), shape):
                raise UsageError(
                    f"input {name!r} has shape {list(shape)}, but this file was planned for "
                    f"{list(planned[name])}: rewrite the original for these sizes"
                )
        if not others:
            return None
        with self._lock:
            if self._any_size is None:
                name = next(iter(others))
                warnings.warn(
                    f"input {name!r} of {self._file} has shape {list(others[name])}: its "
                    f"{self.plan.figure} of {format_bytes(self.plan.measured_peak_bytes)} was "
                    f"promised for {list(planned[name])} only",
                    stacklevel=4,
                )
                self._any_size = self._without_sizes()
        return self._any_size

    def _without_sizes(self) -> InferenceSession:
        """A session that proves nothing from the planned sizes, or this one if it does not."""
        if not self._recipe.free_dimensions:
            return self
        recipe = self._recipe.with_dimensions({})
        made: InferenceSession = _open(self._file, recipe, self._chosen, InferenceSession)
        return made

    def _suited(self, feed: Mapping[str, Any], base: object) -> Any:
        """The session that runs with this feed; `base` is this one, without its checks."""
        other = self.for_shapes({name: _shape(value) for name, value in feed.items()})
        return base if other is None or other is self else other


class PlannedBinding(IOBinding):
    """An IOBinding of a PlannedSession, which checks input shapes when they are bound.

    `any_size` is the session that it has moved to, as the first other size came: a binding belongs
    to one session. None before.
    """

    def __init__(self, session: PlannedSession) -> None:
        super().__init__(session)
        self.any_size: InferenceSession | None = None
        self._planned = session
        self._bound: dict[tuple[str, str], Callable[[], None]] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """As in IOBinding."""
        bind = _base(super()).bind_cpu_input
        self._bind_input(name, _shape(arr_on_cpu), partial(bind, name, arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """As in IOBinding."""
        bind = _base(super()).bind_input
        arguments = (name, device_type, device_id, element_type, shape, buffer_ptr)
        self._bind_input(name, tuple(shape), partial(bind, *arguments))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """As in IOBinding."""
        bind = _base(super()).bind_ortvalue_input
        self._bind_input(name, _shape(ortvalue), partial(bind, name, ortvalue))

    def bind_output(self, name: str, *arguments: Any, **named: Any) -> None:
        """As in IOBinding."""
        self._bind("output", name, partial(_base(super()).bind_output, name, *arguments, **named))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """As in IOBinding."""
        self._bind("output", name, partial(_base(super()).bind_ortvalue_output, name, ortvalue))

    def clear_binding_inputs(self) -> None:
        """As in IOBinding."""
        _base(super()).clear_binding_inputs()
        self._bound = {key: bind for key, bind in self._bound.items() if key[0] != "input"}

    def clear_binding_outputs(self) -> None:
        """As in IOBinding."""
        _base(super()).clear_binding_outputs()
        self._bound = {key: bind for key, bind in self._bound.items() if key[0] != "output"}

    def _bind_input(self, name: str, shape: tuple[int, ...], bind: Callable[[], None]) -> None:
        session = self._planned.for_shapes({name: shape})
        if session is not None and session is not self._planned and self.any_size is None:
            self.any_size = session
            _base(super()).__init__(session)
            for again in self._bound.values():
                again()
        self._bind("input", name, bind)

    def _bind(self, kind: str, name: str, bind: Callable[[], None]) -> None:
        bind()
        self._bound[kind, name] = bind


def _open(file: Path, recipe: Recipe, providers: Sequence[str], session: Callable[..., Any]) -> Any:
    """`session` called for a file, with the options of a recipe. Raises ModelError if the runtime
    refuses it."""
    try:
        options = recipes.session_options(recipe)
        content = model_content(file)
        if isinstance(content, bytes):
            options.add_session_config_entry(DATA_FOLDER, native_path(file.resolve().parent))
        return session(content, sess_options=options, providers=list(providers), enable_fallback=0)
    except RUNTIME_ERRORS as error:
        raise ModelError(f"ONNX Runtime refuses {file}: {one_line(str(error))}") from error


def _takes(declared: tuple[int | None, ...] | None, shape: Sequence[int]) -> bool:
    """Whether a shape is one of those that an input with open sizes declares."""
    return (
        declared is not None
        and len(declared) == len(shape)
        and all(size in (None, given) for size, given in zip(declared, shape, strict=True))
    )


def _base(parent: object) -> Any:
    """The runtime's class behind a `super()`: its methods have no types."""
    return parent


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array, of the runtime's own value, or of nested lists."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return np.shape(value)
    return tuple(shape() if callable(shape) else shape)


def _read(file: Path) -> tuple[PlanRecord, _Open]:
    """The record of a file, and its inputs that may have other sizes than the planned ones."""
    model = parsed(read_content(file), file)
    record = file_record(model, file)
    if record is None:
        raise UsageError(f"{file} holds no onnxremat plan: open it with onnxruntime itself")
    return record, open_inputs(model) if record.any_size else {}
