"""The smallest sensible options of every builder, and how the tests run a model."""

from typing import Any

import numpy as np
import onnx
import onnxruntime

ort: Any = onnxruntime  # it has no types
Feeds = dict[str, np.ndarray[Any, np.dtype[Any]]]

TINY: dict[str, dict[str, Any]] = {
    "densenet": {"blocks": (2, 2), "growth": 4, "size": 32, "classes": 5},
    "dncnn": {"size": 16, "depth": 3, "width": 4},
    "espcn": {"size": 8, "widths": (8, 4)},
    "ffn": {"depth": 2, "width": 8, "batch": 2},
    "inception": {"width": 0.1, "size": 32, "classes": 5},
    "mlp": {"depth": 2, "width": 8, "features": 6, "classes": 5, "batch": 2},
    "mobilenet": {"width": 0.25, "size": 32, "classes": 5},
    "nasnet": {"cells": 1, "channels": 4, "size": 32, "classes": 5},
    "randwire": {"nodes": 8, "channels": 4, "size": 32, "classes": 5},
    "resnet": {"blocks": (1, 1), "base": 4, "size": 16, "classes": 5},
    "transformer": {"depth": 1, "width": 8, "heads": 2, "sequence": 4},
    "unet": {"size": 16, "levels": 2, "base": 4},
    "vae_decoder": {"size": 16, "levels": 1, "blocks": 1, "base": 4, "groups": 2},
    "vgg": {"size": 32, "base": 2, "hidden": 8, "classes": 5},
}

TINY_DEPLOYED: dict[str, dict[str, Any]] = {
    "deeplab": {"size": 64, "base": 4, "blocks": (1, 1, 1, 1), "classes": 5},
    "demucs": {"seconds": 0.02, "levels": 2, "base": 4},
    "matting": {"size": 32, "patch": 8, "width": 8, "depth": 1, "detail": 4},
    "srvgg": {"size": 8, "scale": 2, "depth": 2, "width": 4},
    "u2net": {"size": 512},
    "unet3d": {"size": (8, 8, 4), "levels": 2, "base": 2},
    "wav2vec2": {"seconds": 0.1, "features": 8, "width": 16, "depth": 1},
}

TINY_EXPORTED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "gpt_cache": (
        {"depth": 1, "width": 16, "heads": 2, "vocabulary": 8, "context": 32},
        {"batch": 2, "sequence": 5, "past": 3},
    ),
    "half_attention": ({"width": 16, "heads": 2, "sequence": 8}, {}),
    "open_encoder": ({"depth": 1, "width": 16, "heads": 2}, {"batch": 2, "sequence": 6}),
    "sam_encoder": (
        {"depth": 2, "global_every": 2, "width": 16, "heads": 2, "window": 3, "size": 64},
        {"batch": 2},
    ),
}
"""Of exported models the options, and sizes for the dimensions that they leave open."""


def tiny(name: str, **options: Any) -> dict[str, Any]:
    """TINY options of a builder or of its training variant, with `options` on top."""
    return (TINY | TINY_DEPLOYED)[name.removesuffix("_train")] | options


def session(model: onnx.ModelProto) -> Any:
    """A CPU session of one thread: enough for these sizes, and the same everywhere."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(opened: Any, feeds: Feeds) -> Feeds:
    """All outputs by name."""
    names = [output.name for output in opened.get_outputs()]
    return dict(zip(names, opened.run(names, feeds), strict=True))
