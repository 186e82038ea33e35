"""`docs/planners.md`, made from PLANNERS: `python -m docs.planners_page` writes it."""

from pathlib import Path

from onnxremat.planners import PLANNERS, PlannerInfo

PAGE = Path(__file__).with_name("planners.md")

PAPERS = {
    "Ahn 2020": "Ahn, Lee, Lin, Cheng, Hou, Esmaeilzadeh: Ordering Chaos: Memory-Aware Scheduling "
    "of Irregularly Wired Neural Networks for Edge Devices. MLSys 2020",
    "Bartan 2023": "Bartan, Li, Teague, Lott, Dilkina: MOCCASIN: Efficient Tensor "
    "Rematerialization for Neural Networks. ICML 2023",
    "Beaumont 2024": "Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova: Optimal "
    "re-materialization strategies for heterogeneous chains. 2024",
    "Chen 2016": "Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost. 2016",
    "Griewank 2000": "Griewank, Walther: Algorithm 799: revolve. 2000",
    "Jain 2020": "Jain et al.: Checkmate: Breaking the Memory Wall with Optimal Tensor "
    "Rematerialization. MLSys 2020",
    "Kumar 2019": "Kumar, Purohit, Svitkina, Vee, Wang: Efficient Rematerialization for Deep "
    "Networks. NeurIPS 2019",
    "Kusumoto 2019": "Kusumoto, Inoue, Watanabe, Akiba, Koyama: A Graph Theoretic Framework of "
    "Recomputation Algorithms for Memory-Efficient Backpropagation. NeurIPS 2019",
    "Liu 1987": "Liu: An Application of Generalized Tree Pebbling to Sparse Matrix Factorization. "
    "1987",
}
"""By the words that the table names them with."""

HEAD = """\
# Planners

This page is made from the table `PLANNERS` in `onnxremat/planners/__init__.py` by
`python -m docs.planners_page`. `--planner NAME` chooses one; without it `auto` plans. Deviations
from the papers stand in the docstring of each module. What plans state of themselves is in
[plans.md](plans.md), words are in [glossary.md](glossary.md), measurements in
`benchmarks/planners.md` and `benchmarks/training_planners.md`.
"""


def page() -> str:
    """The whole page."""
    papers = "\n".join(f"- **{name}**: {paper}." for name, paper in PAPERS.items())
    return "\n".join([HEAD, *map(_section, PLANNERS.values()), f"## Papers\n\n{papers}\n"])


def _section(info: PlannerInfo) -> str:
    source = "no paper" if info.source == "-" else info.source
    return f"""\
## {info.name}

{info.summary[0].upper()}{info.summary[1:]}.

| | |
|---|---|
| source | {source} |
| guarantee | {info.guarantee} |
| complexity | {info.complexity} |
| use | {info.use} |
| module | `onnxremat/planners/{info.module}.py` |
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
