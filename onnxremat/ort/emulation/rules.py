"""The memory rules of ONNX Runtime on the CPU, as data.

What is listed was found by experiment on ONNX Runtime 1.31.1 with the settings of
`onnxremat.ort.recipe.RECIPE`: every operator below was run between a producer and a reader
while malloc was counted. Three things can happen to the output of a node:

- it is a *view*: it shares the buffer of its input whatever else reads that input;
- it is written *in place*: it takes over the buffer of an input that has its last reader there,
  if the planner of the runtime can prove that both have the same size;
- it gets a buffer of its own. An output of the graph always does.
"""

from collections.abc import Mapping
from types import MappingProxyType

from onnxremat.core.memory import MemoryRules

VIEW_OPS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "OptionalGetElement"}
)
"""Their first output is a view of their first input. (Cast to the same type is not one: it is
written in place. Dropout is not one in any opset: it copies.)"""

_FIRST = ((0, 0),)
_UNARY = (
    "Cast",
    "Celu",
    "Clip",
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "LogSoftmax",
    "Relu",
    "Scatter",
    "ScatterElements",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
)

INPLACE: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        **dict.fromkeys(_UNARY, _FIRST),
        "FusedConv": ((3, 0),),
        "com.microsoft.nchwc::Conv": ((3, 0),),
    }
)
"""(input, output) positions that share a buffer when the input dies there, by op (`op_key`). The
two convolutions add their output to their fourth input.

Cast does so between any two types of the same width, which MemoryRules leaves out: they then
predict more than is taken. Softmax and LogSoftmax of doubles do not, and no op does where the
runtime cannot prove sizes (dimensions known at run time only): there the rules predict less."""

RECIPE_RULES = MemoryRules(inplace=INPLACE, unread_held=False)
"""A file without a value that nobody reads, under RECIPE: what a rewritten file is."""

STOCK_RULES = MemoryRules(alignment_bytes=256, unread_held=False)
"""A file of the stock rewriter under default options: no size is provable, so nothing is in place;
buffers come from an arena of 256-byte units. Its fragments and its growth are not additive:
`ort.emulation.predict` has them."""
