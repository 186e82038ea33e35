"""The script that counts the functions which hand a value on, on a package of three modules."""

from pathlib import Path

from benchmarks.walks import is_plan, options_walk, stations

MODULES = {
    "rewriting": """
def rewrite(options):
    return planned(options)

def used_below(options):
    return options.seed
""",
    "planning": """
def planned(options):
    made = Kept(options)
    return used_below(options)

class Kept:
    options: object

    def later(self):
        return nothing(self.options.seed)
""",
    "plans": """
class Plan:
    cost: int

def made(found: "Plan") -> int:
    return found.cost

def best(found: tuple[Plan, ...] | None) -> int:
    return 0
""",
}


def test_stations_and_steps_back(tmp_path: Path) -> None:
    (tmp_path / "onnxremat").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "onnxremat" / f"{name}.py").write_text(text, encoding="utf-8")
    found, back = options_walk(tmp_path)
    assert [one.name for one in found] == ["rewrite", "planned", "Kept", "used_below"]
    assert back == ["planned -> used_below in onnxremat.rewriting"]
    assert [one.name for one in stations(tmp_path, is_plan)] == ["made", "best"]
