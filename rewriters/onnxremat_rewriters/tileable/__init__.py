"""`tileable`: ops written so that tiles can go through them.

    Draft (a model and its views) -> flat_gemm, statistics (one module each) -> tileable

Some ops stand between Reshapes that merge axes which a tile must tell apart, and some need sums of
whole images. Here they are written with all axes of the value that they are a view of, and sums by
rows first. Each such *form* is exact unless it says otherwise. Forms are worth it for tiles only.
"""

from collections.abc import Collection, Mapping

import onnx

from onnxremat.importer.values import ValueType
from onnxremat_rewriters.substitutes import Replaced
from onnxremat_rewriters.tileable.draft import Draft, Tileable
from onnxremat_rewriters.tileable.flat_gemm import unflatten_gemm
from onnxremat_rewriters.tileable.statistics import sum_by_rows

__all__ = ["Replaced", "Tileable", "tileable"]


def tileable(
    model: onnx.ModelProto, types: Mapping[str, ValueType], rounding: Collection[int] = ()
) -> Tileable:
    """The model with the forms that apply. The argument is never changed.

    `types`: of all values, graph inputs included; the result holds for these sizes. `rounding`:
    indices of the nodes that may be given a form that rounds differently. Nodes that nobody needs
    any more are left for `release` to drop. O(nodes + reads).
    """
    draft = Draft(model, types)
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Gemm":
            unflatten_gemm(draft, index)
        elif index in rounding and node.op_type in ("Div", "InstanceNormalization"):
            sum_by_rows(draft, index)
    return draft.finish()
