"""`docs/tile_ops.md`, made from the table of tiling: `python -m docs.tile_ops_page` writes it."""

from pathlib import Path

from onnxremat_rewriters.tile.table import ROWS, WHOLE

PAGE = Path(__file__).with_name("tile_ops.md")

HEAD = """\
# Ops that are cut

This page is made from the table of tiling (`rewriters/onnxremat_rewriters/tile/table.py`) by
`python -m docs.tile_ops_page`. How tiles are chosen stands in [tiling.md](tiling.md). An op that is
named nowhere here, or has other types, ends a region.
"""


def page() -> str:
    """The whole page."""
    cut = "\n".join(
        f"| {op} | {'any' if row.types is None else ', '.join(sorted(row.types))} | {row.why} |"
        for op, row in sorted(ROWS.items(), key=lambda item: item[0].casefold())
    )
    reasons = "\n".join(f"| {op} | {why} |" for op, why in sorted(WHOLE.items()))
    return (
        f"{HEAD}\n| op | types | why a tile has the bits of the whole |\n|---|---|---|\n{cut}\n\n"
        f"## Ops that are always made whole\n\n| op | why |\n|---|---|\n{reasons}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
