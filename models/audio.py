"""Audio at full rate: Demucs (separation) and wav2vec 2.0 (speech).

Sources: Défossez, Usunier, Bottou & Bach 2019, "Music Source Separation in the Waveform Domain",
section 4; Baevski, Zhou, Mohamed & Auli 2020, "wav2vec 2.0: A Framework for Self-Supervised
Learning of Speech Representations", section 2 and appendix A.

Deviations: Demucs has four levels instead of six and as many channels as it is told; wav2vec has
the normalisation of its large variant (over channels, behind each convolution).
"""

import math

import onnx

from models import layers
from models.net import Net, Value
from models.transformer import encoder_layer

SAMPLES_A_SECOND = 44_100
SPEECH_SAMPLES_A_SECOND = 16_000


def demucs(
    *,
    seconds: float = 20.0,
    levels: int = 4,
    base: int = 20,
    sources: int = 4,
    recurrent: int = 2,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Demucs (Défossez 2019): stereo mix (batch, 2, samples) to sources (batch, 2 x sources,
    samples), at 44,100 samples a second, rounded up to what all strides divide.

    levels: convolutions of stride 4. base: channels of the first, doubled at each of the others.
    recurrent: layers of a bidirectional LSTM in the middle.
    """
    unit = 4**levels
    samples = math.ceil(seconds * SAMPLES_A_SECOND / unit) * unit
    net = Net("demucs", batch=batch, opset=opset, seed=seed)
    x = net.input("mix", (2, samples))
    skips = []
    for level in range(1, levels + 1):
        width = base * 2 ** (level - 1)
        x = layers.conv(net, x, width, 8, f"enc{level}", stride=4, pad=2)
        x = layers.relu(net, x, f"enc{level}/relu")
        x = layers.conv(net, x, 2 * width, 1, f"enc{level}/mix")
        x = layers.gated(net, x, f"enc{level}/glu")
        skips.append(x)
    x = _recurrent(net, x, recurrent, "middle")
    for level in range(levels, 0, -1):
        width = base * 2 ** (level - 1)
        x = net.op("Add", [x, skips[level - 1]], f"dec{level}/skip")
        x = layers.conv(net, x, 2 * width, 3, f"dec{level}/mix")
        x = layers.gated(net, x, f"dec{level}/glu")
        above = width // 2 if level > 1 else 2 * sources
        x = layers.conv_transpose(net, x, above, f"dec{level}", kernel=8, stride=4)
        if level > 1:
            x = layers.relu(net, x, f"dec{level}/relu")
    return net.model({"separated": x})


def _recurrent(net: Net, x: Value, depth: int, name: str) -> Value:
    """Bidirectional LSTMs over time, and a dense layer back to the channels of `x`."""
    batch, channels, length = x.shape
    x = net.op("Transpose", [x], f"{name}/steps", perm=[2, 0, 1])
    for layer in range(1, depth + 1):
        own = f"{name}/lstm{layer}"
        weights = [
            net.weight(own, "weight", (2, 4 * channels, x.shape[-1])),
            net.weight(f"{own}/recurrent", "weight", (2, 4 * channels, channels)),
            net.weight(own, "bias", (2, 8 * channels)),
        ]
        x = net.op("LSTM", [x, *weights], own, direction="bidirectional", hidden_size=channels)
        x = net.op("Transpose", [x], f"{own}/directions", perm=[0, 2, 1, 3])
        x = net.op("Reshape", [x, net.ints([length, batch, 2 * channels])], f"{own}/joined")
    x = layers.dense(net, x, channels, f"{name}/dense")
    return net.op("Transpose", [x], f"{name}/channels", perm=[1, 2, 0])


def wav2vec2(
    *,
    seconds: float = 10.0,
    features: int = 128,
    width: int = 256,
    depth: int = 4,
    heads: int = 4,
    expansion: int = 4,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """wav2vec 2.0 (Baevski 2020): samples (batch, 1, 16,000 a second) to (batch, frames, width),
    a frame for 20 ms.

    features: channels of the seven convolutions. width, depth, heads, expansion: of the encoder.
    """
    net = Net("wav2vec2", batch=batch, opset=opset, seed=seed)
    x = net.input("samples", (1, round(seconds * SPEECH_SAMPLES_A_SECOND)))
    kernels = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
    for number, (kernel, stride) in enumerate(kernels, start=1):
        name = f"conv{number}"
        x = layers.conv(net, x, features, kernel, name, stride=stride, pad=0)
        x = net.op("Transpose", [x], f"{name}/last", perm=[0, 2, 1])
        x = layers.layer_norm(net, x, f"{name}/norm")
        x = net.op("Transpose", [x], f"{name}/first", perm=[0, 2, 1])
        x = layers.gelu(net, x, f"{name}/gelu")
    x = net.op("Transpose", [x], "frames", perm=[0, 2, 1])
    x = layers.dense(net, layers.layer_norm(net, x, "frames/norm"), width, "project")
    x = net.op("Add", [x, _positions(net, x, "position")], "positioned")
    for layer in range(1, depth + 1):
        x = encoder_layer(net, x, heads, expansion, f"layer{layer}")
    return net.model({"encoded": layers.layer_norm(net, x, "final/norm")})


def _positions(net: Net, x: Value, name: str) -> Value:
    """What a grouped convolution over 129 frames tells of where each frame is."""
    x = net.op("Transpose", [x], f"{name}/channels", perm=[0, 2, 1])
    x = layers.conv(net, x, x.shape[1], 129, name, groups=math.gcd(16, x.shape[1]))
    x = layers.gelu(net, x, f"{name}/gelu")
    return net.op("Transpose", [x], f"{name}/frames", perm=[0, 2, 1])
