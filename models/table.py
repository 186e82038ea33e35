"""The table of builders: every architecture, its training graph, exported and deployed models.

Every builder takes keyword arguments only and returns a ModelProto. Common ones: `batch` (samples),
`symbolic_batch` (leave the batch open: the dimension "batch"; forward models only), `opset` (17 to
21) and `seed` (of the weights). A training builder takes the options of its architecture, `loss`
and `raw` (see `models.training.training`); its defaults are small enough for a laptop.
"""

import inspect
from collections.abc import Callable
from typing import Any

import onnx

from models.audio import demucs, wav2vec2
from models.densenet import densenet
from models.exported import gpt_cache, half_attention, open_encoder, sam_encoder
from models.inception import inception
from models.mlp import ffn, mlp
from models.mobilenet import mobilenet
from models.nasnet import nasnet
from models.randwire import randwire
from models.resnet import resnet
from models.restoration import dncnn, espcn, srvgg
from models.segmentation import deeplab, matting, u2net
from models.training import training
from models.transformer import transformer
from models.unet import unet, unet3d
from models.vae import vae_decoder
from models.vgg import vgg

Builder = Callable[..., onnx.ModelProto]

_OF_FORWARD_ONLY = "symbolic_batch"
_OF_TRAINING_ONLY = ("loss", "raw")


def _trained(build: Builder, loss: str, **defaults: Any) -> Builder:
    """The builder of the training graphs of `build`, with some other defaults."""
    signature = inspect.signature(build)
    options = [
        option.replace(default=defaults.get(option.name, option.default))
        for option in signature.parameters.values()
        if option.name != _OF_FORWARD_ONLY
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    options.append(inspect.Parameter("loss", keyword, default=loss, annotation=str))
    options.append(inspect.Parameter("raw", keyword, default=False, annotation=bool))
    extended = signature.replace(parameters=options)

    def train(**given: Any) -> onnx.ModelProto:
        bound = extended.bind(**given)
        bound.apply_defaults()
        of_training = {name: bound.arguments.pop(name) for name in _OF_TRAINING_ONLY}
        return training(build(**bound.arguments), **of_training)

    train.__name__ = train.__qualname__ = f"{build.__name__}_train"
    title, _, details = (inspect.getdoc(build) or "").partition(":")
    train.__doc__ = f"{title}, with loss and all gradients:{details}"
    train.__signature__ = extended  # type: ignore[attr-defined]
    return train


FORWARD: dict[str, Builder] = {
    "densenet": densenet,
    "dncnn": dncnn,
    "espcn": espcn,
    "ffn": ffn,
    "inception": inception,
    "mlp": mlp,
    "mobilenet": mobilenet,
    "nasnet": nasnet,
    "randwire": randwire,
    "resnet": resnet,
    "transformer": transformer,
    "unet": unet,
    "vae_decoder": vae_decoder,
    "vgg": vgg,
}

TRAINING: dict[str, Builder] = {
    "densenet_train": _trained(densenet, "cross_entropy", size=64, growth=12, classes=10, batch=4),
    "dncnn_train": _trained(dncnn, "mse", size=64, batch=4),
    "espcn_train": _trained(espcn, "mse", size=64, batch=4),
    "ffn_train": _trained(ffn, "mse"),
    "inception_train": _trained(
        inception, "cross_entropy", width=0.5, size=64, classes=10, batch=4
    ),
    "mlp_train": _trained(mlp, "cross_entropy"),
    "mobilenet_train": _trained(mobilenet, "cross_entropy", size=64, classes=10, batch=4),
    "nasnet_train": _trained(
        nasnet, "cross_entropy", cells=1, channels=16, size=64, classes=10, batch=4
    ),
    "randwire_train": _trained(
        randwire, "cross_entropy", nodes=16, channels=16, size=64, classes=10, batch=4
    ),
    "resnet_train": _trained(resnet, "cross_entropy", size=64, base=16, classes=10, batch=4),
    "transformer_train": _trained(transformer, "mse", batch=4),
    "unet_train": _trained(unet, "cross_entropy", size=128, base=16),
    "vae_decoder_train": _trained(vae_decoder, "mse", size=128, base=16),
    "vgg_train": _trained(vgg, "cross_entropy", base=32, classes=10, batch=4),
}

EXPORTED: dict[str, Builder] = {
    "gpt_cache": gpt_cache,
    "half_attention": half_attention,
    "open_encoder": open_encoder,
    "sam_encoder": sam_encoder,
}
"""Models written as exporters write them, with open sizes: of those `symbolic_batch` and the like
are no options."""

DEPLOYED: dict[str, Builder] = {
    "deeplab": deeplab,
    "demucs": demucs,
    "matting": matting,
    "srvgg": srvgg,
    "u2net": u2net,
    "unet3d": unet3d,
    "wav2vec2": wav2vec2,
}
"""Models of which people report that they do not fit, for inference at full size: without training
graphs, and of those `symbolic_batch` is no option."""

BUILDERS: dict[str, Builder] = FORWARD | TRAINING | EXPORTED | DEPLOYED
"""Name to builder. `inspect.signature` gives the options and defaults, the docstring the
architecture, its paper, its sizes and their units."""
