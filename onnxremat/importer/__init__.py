"""From an ONNX file to the Graph that planners work on.

    load -> bind_dimensions -> infer_types -> import_model

Nothing here changes a model, runs one, or reads weights.
"""

from onnxremat.importer.binding import Binding, bind_dimensions, dimension_names, own_dims
from onnxremat.importer.dataflow import ImportedModel, import_model
from onnxremat.importer.declare import declare_sizes, declared_as, open_inputs, sizes_left_open
from onnxremat.importer.load import (
    GivenModel,
    LoadedModel,
    from_proto,
    given_inputs,
    load,
    load_given,
)
from onnxremat.importer.purity import is_recomputable
from onnxremat.importer.shapes import infer_types
from onnxremat.importer.sorting import sorted_nodes
from onnxremat.importer.values import ValueType, ValueTypes
from onnxremat.importer.views import VIEW_OPS, View, is_view

__all__ = [
    "VIEW_OPS",
    "Binding",
    "GivenModel",
    "ImportedModel",
    "LoadedModel",
    "ValueType",
    "ValueTypes",
    "View",
    "bind_dimensions",
    "declare_sizes",
    "declared_as",
    "dimension_names",
    "from_proto",
    "given_inputs",
    "import_model",
    "infer_types",
    "is_recomputable",
    "is_view",
    "load",
    "load_given",
    "open_inputs",
    "own_dims",
    "sizes_left_open",
    "sorted_nodes",
]
