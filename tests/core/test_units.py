import pytest

from onnxremat.core.errors import UsageError
from onnxremat.core.units import format_bytes, format_seconds, parse_bytes, parse_limit


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4MB", 4_000_000), ("4 MiB", 4 * 2**20), ("4096", 4096), ("1.5kB", 1500), ("2gib", 2**31),
     (".5MB", 500_000), ("7B", 7)],
)  # fmt: skip
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text, "--mem") == nbytes
    assert parse_limit(text).resolve(10**9) == nbytes


@pytest.mark.parametrize(
    "text", ["", "4XB", "-4MB", "-1", "0", "0MB", "4MB!", "nan", "1e6", "%", "0%", "-5%"]
)
def test_what_is_not_a_size_is_a_usage_error_that_quotes_it(text: str) -> None:
    with pytest.raises(UsageError, match="--mem") as error:
        parse_limit(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["60", "100", "1"])
def test_a_share_without_its_sign_is_asked_for_again(text: str) -> None:
    with pytest.raises(UsageError, match=f"write {text}% for a share"):
        parse_limit(text)
    assert parse_limit(int(text)).nbytes == parse_limit(f"{text}B").nbytes == int(text)


def test_shares_and_min() -> None:
    assert parse_limit("60%").resolve(1001) == 600
    assert parse_limit(4096).resolve(1) == 4096
    assert parse_limit("min").smallest
    assert parse_limit("MIN").resolve(1000) is None
    assert not parse_limit("60%").smallest


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (51_747_724, "51.75 MB"), (436_207_616, "436.2 MB"),
     (999_960, "1.00 MB"), (7_250_000_000, "7.25 GB")],
)  # fmt: skip
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_durations_for_people() -> None:
    assert [format_seconds(s) for s in (0.0008, 0.0123, 1.5)] == ["800 us", "12.3 ms", "1.50 s"]
