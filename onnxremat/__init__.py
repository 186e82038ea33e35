"""onnxremat: run ONNX models in less memory, with bit-identical results.

    result = onnxremat.rewrite("model.onnx", mem="4MB", output="model.4mb.onnx")
    session = onnxremat.open_session("model.4mb.onnx")

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Audit": "commands.audit",
    "InfeasibleError": "core.errors",
    "ModelError": "core.errors",
    "ModelOptions": "options",
    "NoPlanFoundError": "core.errors",
    "OnnxrematError": "core.errors",
    "Options": "options",
    "RewriteResult": "commands.rewrite",
    "UsageError": "core.errors",
    "VerificationError": "core.errors",
    "audit": "commands.audit",
    "open_session": "ort.session",
    "rewrite": "commands.rewrite",
    "verify_files": "verification",
}

__all__ = [
    "Audit",
    "InfeasibleError",
    "ModelError",
    "ModelOptions",
    "NoPlanFoundError",
    "OnnxrematError",
    "Options",
    "RewriteResult",
    "UsageError",
    "VerificationError",
    "__version__",
    "audit",
    "open_session",
    "rewrite",
    "verify_files",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from onnxremat.commands.audit import Audit, audit
    from onnxremat.commands.rewrite import RewriteResult, rewrite
    from onnxremat.core.errors import (
        InfeasibleError,
        ModelError,
        NoPlanFoundError,
        OnnxrematError,
        UsageError,
        VerificationError,
    )
    from onnxremat.options import ModelOptions, Options
    from onnxremat.ort.session import open_session
    from onnxremat.verification import verify_files


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
