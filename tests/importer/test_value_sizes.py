"""Which values have sizes that depend on values."""

import pytest
from onnx import parser

from onnxremat.importer.value_sizes import sizes_from_values

_HEADER = '<ir_version: 8, opset_import: ["": 17]>'

CASES = {
    "compress": (
        """net (float[4,6] x, bool[4] keep) => (float[r,6] y) {
            a = Exp(x) b = Compress<axis = 0>(a, keep) c = Tanh(b) n = Shape(c) z = Shape(a)
            y = Reshape(b, n) w = Reshape(a, z) }""",
        {"b", "c", "y"},
    ),
    "a shape that is an input": (
        """net (float[4,6] x, int64[2] s) => (float[r,c] y) {
            e = Exp(x) f = Reshape(e, s) y = Neg(f) }""",
        {"f", "y"},
    ),
    "sizes of a Resize, from an input and from a shape": (
        """net (float[1,2,4,6] x, int64[4] s) => (float[a,b,c,d] y, float[e,f,g,h] z) {
            r = Resize<mode = "nearest">(x, , , s) y = Neg(r)
            n = Shape(x) t = Mul(n, n) z = Resize<mode = "nearest">(x, , , t) }""",
        {"r", "y"},
    ),
    "a constant shape behind": (
        """net (float[4,6] x, bool[4] keep) => (float[2,3] y) <int64[2] s = {2, 3}> {
            b = Compress<axis = 0>(x, keep) m = ReduceSum<keepdims = 0>(b) y = Expand(m, s) }""",
        {"b"},
    ),
    "nothing": (
        """net (float[n,6] x) => (float[n,6] y) {
            s = Shape(x) e = Exp(x) y = Reshape(e, s) }""",
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_from_values(name: str) -> None:
    text, expected = CASES[name]
    assert sizes_from_values(parser.parse_model(_HEADER + text)) == expected


def test_what_the_file_says_of_a_value_does_not_fix_it() -> None:
    text = "net (float[4,6] x, bool[4] k) => (float[3,6] y) { y = Compress<axis = 0>(x, k) }"
    assert sizes_from_values(parser.parse_model(_HEADER + text)) == {"y"}
