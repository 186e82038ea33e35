"""Real architectures as ONNX models, at any size, with seeded weights and without downloads.

For tests, benchmarks and examples; not part of the wheel. `BUILDERS` is the table of all of them;
`python -m models NAME -o FILE` writes one to a file. See README.md.
"""

from models.table import BUILDERS, DEPLOYED, EXPORTED, FORWARD, TRAINING
from models.training import gradient_name, training
from models.weights import (
    initial_weights,
    parameter_count,
    random_feeds,
    stored_weights,
    trainable,
)

__all__ = [
    "BUILDERS",
    "DEPLOYED",
    "EXPORTED",
    "FORWARD",
    "TRAINING",
    "gradient_name",
    "initial_weights",
    "parameter_count",
    "random_feeds",
    "stored_weights",
    "trainable",
    "training",
]
