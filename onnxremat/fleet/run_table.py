"""Rows as a CSV or a Parquet file, as its name says."""

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from onnxremat.core.errors import UsageError

Cell = str | int | float | None
CSV, PARQUET = ".csv", ".parquet"


def check_table(path: Path) -> None:
    """Raise UsageError if no such table can be written here: of another kind, or Parquet without
    pyarrow."""
    kind = path.suffix.lower()
    if kind not in (CSV, PARQUET):
        raise UsageError(f"--output: {path} is no table: its name has to end in {CSV} or {PARQUET}")
    if kind == PARQUET and find_spec("pyarrow") is None:
        raise UsageError(f"{path}: Parquet needs pyarrow: pip install 'onnxremat[parquet]'")


def table_bytes(
    path: Path, columns: Mapping[str, type], rows: Sequence[Mapping[str, Cell]]
) -> bytes:
    """The content of the table. `columns`: str, int or float by name, in their order; a cell that
    a row does not have is empty (null)."""
    if path.suffix.lower() == PARQUET:
        return _parquet(columns, rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(columns: Mapping[str, type], rows: Sequence[Mapping[str, Cell]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    plain = [{name: row.get(name) for name in columns} for row in rows]
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(plain, schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())
