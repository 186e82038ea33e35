"""The table of rows, as CSV and as Parquet."""

import csv
import importlib.util
import io
from pathlib import Path

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.fleet import run_table
from onnxremat.fleet.run_table import check_table, table_bytes

COLUMNS = {"name": str, "count": int, "ratio": float}
ROWS = [{"name": 'a, "b"\nc', "count": 2**40, "ratio": 0.1, "other": 1}, {"name": None}]


def test_csv_has_a_line_for_each_row_and_nothing_where_nothing_is_known() -> None:
    text = table_bytes(Path("t.CSV"), COLUMNS, ROWS).decode()
    assert text.startswith("name,count,ratio\n")
    assert list(csv.DictReader(io.StringIO(text))) == [
        {"name": 'a, "b"\nc', "count": "1099511627776", "ratio": "0.1"},
        {"name": "", "count": "", "ratio": ""},
    ]


def test_parquet_keeps_types_also_in_empty_columns() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow")
    from pyarrow import parquet

    check_table(Path("t.parquet"))
    content = table_bytes(Path("t.parquet"), COLUMNS, ROWS)
    table = parquet.read_table(pyarrow.BufferReader(content))
    assert table.to_pylist() == [
        {"name": 'a, "b"\nc', "count": 2**40, "ratio": 0.1},
        {"name": None, "count": None, "ratio": None},
    ]
    empty = parquet.read_table(pyarrow.BufferReader(table_bytes(Path("t.parquet"), COLUMNS, [])))
    assert [str(kind) for kind in empty.schema.types] == ["string", "int64", "double"]


def test_other_names_and_parquet_without_its_package_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"has to end in \.csv or \.parquet"):
        check_table(Path("t.txt"))
    assert importlib.util.find_spec("csv") is not None
    monkeypatch.setattr(run_table, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'onnxremat\[parquet\]'"):
        check_table(Path("t.parquet"))
