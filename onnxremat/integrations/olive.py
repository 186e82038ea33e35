"""A pass for Microsoft Olive (`pip install 'onnxremat[olive]'`): models run in less memory.

Olive finds passes in a package configuration. `package_config` is the one of the Olive that is
installed, with this pass in it; `write_package_config` puts it into a file:

    from onnxremat.integrations.olive import write_package_config
    write_package_config("olive_package.json")

    olive run --config workflow.json --package-config olive_package.json

In a workflow the pass is of type `OnnxrematRewrite`. Its parameters are the fields of
`onnxremat.Options` and `mem`, the limit. Olive opens models with default session options, so the
files are for those (`--session stock`), on the CPU.
"""

import json
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from olive.exception import OlivePassError
from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.resource_path import LocalFile, LocalFolder
from olive.search.search_parameter import Categorical, SearchParameter

from onnxremat.commands.rewrite import RewriteResult, rewrite
from onnxremat.core.errors import OnnxrematError, UsageError
from onnxremat.importer.external import data_files
from onnxremat.options import Options

logger = logging.getLogger(__name__)

NAME = "OnnxrematRewrite"
_CPU = "CPUExecutionProvider"
_MEM = PassConfigParam(
    type_=str,
    default_value="min",
    search_defaults=Categorical(["min", "60%", "80%"]),
    description=(
        "The limit: 4MB, 4MiB, 60% of what the model takes now, or min for the least. A list is"
        " searched, if the workflow has a search strategy."
    ),
)
_PARAMETERS: Mapping[str, tuple[Any, str]] = {
    "mem_of": (str, "What is limited: runs (what they add to the loaded session) or process."),
    "max_slowdown": (float, "The share of time that the model may take longer (0.1: 10%)."),
    "portable": (bool, "For any processor; or in the form that this kind of processor loads best."),
    "embed_weights": (bool, "Weights in the model file instead of a file beside it."),
    "dims": (dict[str, int], "Sizes that the model leaves open, by their names or as INPUT:AXIS."),
    "inputs": (str, "An .npz file with inputs to measure with; random ones otherwise."),
    "threads": (int, "Threads of the session, here and wherever the model runs."),
    "seed": (int, "Of the planner and of random inputs."),
    "planner": (str, "A name from `onnxremat planners`."),
    "recompute": (bool, "Whether nodes may run again."),
    "tiling": (bool, "Whether ops may be cut into tiles."),
    "allow_rounding": (bool, "Whether ops may be replaced by others that round differently."),
    "time_limit": (float, "Seconds of planning; measuring comes on top."),
    "iterations": (int, "Of each search, instead of seconds: the same model in each run."),
    "measure_limit": (float, "Seconds of measuring, beyond the runs that have to be made."),
    "run_limit": (float, "Seconds after which a process that runs the model is ended."),
    "verify": (bool, "Whether both models are run and every bit is compared."),
}


class OnnxrematRewrite(Pass):
    """Write a model that runs within a memory limit, with results that are identical bit for bit.

    What was measured is in `model_attributes["onnxremat"]` of the model that comes out.
    """

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        default = Options()
        own = {
            name: PassConfigParam(
                type_=kind, default_value=getattr(default, name), description=description
            )
            for name, (kind, description) in _PARAMETERS.items()
        }
        return {"mem": _MEM, **own}

    @classmethod
    def get_config_params(
        cls,
        accelerator_spec: AcceleratorSpec,
        config: dict[str, Any] | None = None,
        disable_search: bool | None = False,
    ) -> tuple[type[BasePassConfig], dict[str, Any], dict[str, SearchParameter]]:
        """As Olive has it, but a parameter that there is none of is a ValueError: Olive leaves it
        out, and what it was to say is not done."""
        known = cls.default_config(accelerator_spec)
        for name in config or {}:
            if name not in known:
                nearest = get_close_matches(name, known, n=1, cutoff=0.0)[0]
                raise ValueError(f"{NAME}: there is no parameter {name!r}; {nearest!r} is nearest")
        params: tuple[type[BasePassConfig], dict[str, Any], dict[str, SearchParameter]]
        params = super().get_config_params(accelerator_spec, config, disable_search)
        return params

    @classmethod
    def validate_config(cls, config: BasePassConfig, accelerator_spec: AcceleratorSpec) -> bool:
        """Only the CPU is measured and planned for."""
        if not super().validate_config(config, accelerator_spec):
            return False
        provider = accelerator_spec.execution_provider
        if provider is not None and str(provider) != _CPU:
            logger.warning("%s is for %s only, not for %s.", NAME, _CPU, provider)
            return False
        return True

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        if model.external_initializers_path or model.constant_inputs_path:
            raise ValueError(f"{NAME}: weights in a file of Olive's own are not read; save the "
                             "model with its weights before")  # fmt: skip
        output = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        given = {name: getattr(config, name) for name in _PARAMETERS}
        given["dims"] = given["dims"] or {}
        given["inputs"] = None if given["inputs"] is None else Path(given["inputs"])
        try:
            result = rewrite(model.model_path, config.mem, Options(**given), output=output)
        except UsageError as error:
            raise ValueError(f"{NAME}: {error}") from error
        except OnnxrematError as error:
            raise OlivePassError(f"{NAME}: {error}") from error
        return _handler(model, result, output)


def package_config() -> dict[str, Any]:
    """The package configuration of the Olive that is installed, with this pass in it."""
    content = Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(content)
    config["passes"][NAME] = {
        "module_path": f"{__name__}.{NAME}",
        "supported_providers": [_CPU],
        "supported_accelerators": ["cpu"],
        "supported_precisions": ["*"],
        "supported_algorithms": [],
        "supported_quantization_encodings": [],
    }
    return config


def write_package_config(path: str | Path) -> Path:
    """Write `package_config` to a file, for `olive run --package-config`."""
    written = Path(path)
    written.write_text(json.dumps(package_config(), indent=4) + "\n", encoding="utf-8")
    return written


def _handler(model: ONNXModelHandler, result: RewriteResult, output: Path) -> ONNXModelHandler:
    """The file as Olive has models: a folder, where weights lie beside it."""
    settings = dict(model.inference_settings or {})
    threads = result.recipe.threads
    if threads is not None:
        options = {**settings.get("session_options", {}), "intra_op_num_threads": threads}
        settings["session_options"] = options
    beside = bool(data_files(result.model))
    return ONNXModelHandler(
        model_path=LocalFolder({"path": output.parent}) if beside else LocalFile({"path": output}),
        onnx_file_name=output.name if beside else None,
        inference_settings=settings or None,
        use_ort_extensions=model.use_ort_extensions,
        model_attributes={**(model.model_attributes or {}), "onnxremat": _figures(result)},
    )


def _figures(result: RewriteResult) -> dict[str, Any]:
    """What is worth keeping of a result, as plain data."""
    compared = result.verification
    return {
        "figure": result.figure,
        "limit": result.limit_text,
        "limit_bytes": result.limit_bytes,
        "original_bytes": result.original.peak_bytes,
        "rewritten_bytes": result.rewritten.peak_bytes,
        "identical": None if compared is None else compared.identical,
        "time_ratio": None if compared is None else compared.time_ratio,
    }
