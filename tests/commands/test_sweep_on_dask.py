"""A sweep on a real Dask cluster of three workers, one of which is killed on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxremat.commands.rewrite import rewrite
from onnxremat.commands.sweep import journal_of, sweep
from onnxremat.core.units import parse_limit
from tests.commands.sweeps import QUICK, Watched
from tests.commands.test_rewrite import diamond
from tests.fleet.cluster import Cluster, cluster

pytest.importorskip("distributed", reason="clusters are Dask's: pip install 'onnxremat[dask]'")
pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow")
pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 3) as found:
        yield found


def test_a_killed_worker_costs_no_row_and_changes_no_bit(three: Cluster, tmp_path: Path) -> None:
    from pyarrow import parquet

    model, output = diamond(tmp_path / "m.onnx"), tmp_path / "t.parquet"
    limits = [parse_limit(f"{share}%") for share in (95, 96, 97, 98, 99)]

    class KillsOne(Watched):
        """Kills a worker while it and the two others have a run each."""

        def started(self, place: int) -> None:
            if place == 2:
                three.workers[1].kill()

    watched = KillsOne()
    keep = tmp_path / "kept"
    result = sweep(
        [model], limits, [QUICK],
        output=output, keep=keep, scheduler=three.address, watch=watched,
    )  # fmt: skip
    assert three.workers[1].wait() != 0
    assert [row["status"] for row in result.rows] == ["made"] * 5
    assert sorted(watched.done) == [0, 1, 2, 3, 4]
    table = parquet.read_table(output).to_pylist()
    assert [row["mem"] for row in table] == [limit.text for limit in limits]
    assert len(journal_of(output).read_bytes().splitlines()) == 5
    single = tmp_path / "single.onnx"
    rewrite(model, limits[0], QUICK, output=single)
    assert (keep / "m" / "m.95pct.recipe.onnx").read_bytes() == single.read_bytes()
