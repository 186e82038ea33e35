"""Einsum of two operands that is a batched matrix product: Transpose, MatMul, Transpose.

The kernel reorders both operands and keeps two more buffers of the product's size. Outside, nodes
whose axes are in order already need no Transpose, and every buffer is free after its last reader.
The bits are mostly the same, for the kernel multiplies with the same routine; but not always: with
one row or one column, or a constant right operand, which MatMul packs, it takes another path
(`dfea,da->edf`, `q,qk->k`; about 3 of 300 random equations).

Handled: two operands, letters only, every letter at most once in an operand, every letter of one
operand either in the other one or in the result; with MatMul's groups (shared, own, summed).
"""

from math import prod

from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution


def _replace(site: KernelSite) -> None:
    left, right, result = _terms(site)
    sizes: dict[str, int] = {}
    for term, name in zip((left, right), site.node.input, strict=True):
        for letter, size in zip(term, site.type_of(name).shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NotSubstitutable(f"{letter!r} is broadcast")
    if site.type_of(site.node.input[0]).dtype not in ("float", "double"):
        raise NotSubstitutable("only float and double were tried")
    shared = [c for c in result if c in left and c in right]
    rows = [c for c in result if c in left and c not in right]
    columns = [c for c in result if c in right and c not in left]
    summed = [c for c in left if c not in result]
    if not summed:
        raise NotSubstitutable("nothing is summed: it is no matrix product")
    if set(left) != {*shared, *rows, *summed} or set(right) != {*shared, *columns, *summed}:
        raise NotSubstitutable("a letter of one operand is in neither the other nor the result")
    a = _ordered(site, site.node.input[0], left, (shared, rows, summed), sizes)
    b = _ordered(site, site.node.input[1], right, (shared, summed, columns), sizes)
    made = [*shared, *rows, *columns]
    direct = len(rows) == 1 and len(columns) == 1
    ends_here = direct and made == list(result)
    out = site.add("MatMul", [a, b], site.node.output[0] if ends_here else None)
    if not direct:
        shape = site.integers_constant("shape", [sizes[c] for c in made])
        last = made == list(result)
        out = site.add("Reshape", [out, shape], site.node.output[0] if last else None)
    if made != list(result):
        perm = [made.index(c) for c in result]
        site.add("Transpose", [out], site.node.output[0], perm=perm)


def _terms(site: KernelSite) -> tuple[str, str, str]:
    """Letters of both operands and of the result."""
    equation = site.attribute("equation")
    assert isinstance(equation, bytes)
    text = equation.decode().replace(" ", "")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or not all(c.isalpha() for c in "".join((*terms, result))):
        raise NotSubstitutable(f"the equation {text!r} is not two plain operands and a result")
    if any(len(set(term)) != len(term) for term in (*terms, result)):
        raise NotSubstitutable(f"a letter of {text!r} stands twice in a term")
    if set(result) - set("".join(terms)):
        raise NotSubstitutable(f"a letter of the result of {text!r} is in no operand")
    return terms[0], terms[1], result


def _ordered(
    site: KernelSite,
    name: str,
    term: str,
    groups: tuple[list[str], list[str], list[str]],
    sizes: dict[str, int],
) -> str:
    """The operand with its axes in the order of `groups`; the last two groups are one axis each."""
    order = [c for group in groups for c in group]
    if order != list(term):
        name = site.add("Transpose", [name], perm=[term.index(c) for c in order])
    if any(len(group) != 1 for group in groups[1:]):
        dims = [sizes[c] for c in groups[0]]
        dims += [prod(sizes[c] for c in group) for group in groups[1:]]
        name = site.add("Reshape", [name, site.integers_constant("shape", dims)])
    return name


EINSUM_MATMUL = Substitution("einsum-matmul", frozenset({"Einsum"}), False, _replace, sized=True)
