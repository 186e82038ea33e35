"""Model-to-model rewriters: the same results in less memory. See `rewriters/README.md`."""

from onnxremat_rewriters.recompute import Rewritten, apply_schedule
from onnxremat_rewriters.release import Released, release

__all__ = ["Released", "Rewritten", "apply_schedule", "release"]
