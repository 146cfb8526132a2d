"""May token i look at token j?"""

from collections.abc import Callable

from attnlab.oracles.tokens import Marks

Rule = Callable[[int, int, Marks], bool]


def everything(i: int, j: int, marks: Marks) -> bool:
    """Always"""
    return True


def causal(i: int, j: int, marks: Marks) -> bool:
    """j ≤ i"""
    return j <= i


def window(i: int, j: int, marks: Marks, *, last: int, ahead: int) -> bool:
    """-ahead ≤ i - j < last"""
    return -ahead <= i - j < last


def prefix(i: int, j: int, marks: Marks, *, length: int) -> bool:
    """j < length"""
    return j < length


def strided(i: int, j: int, marks: Marks, *, stride: int) -> bool:
    """0 ≤ i - j < stride, or i - j a multiple of it"""
    return 0 <= i - j < stride or (i - j) % stride == 0


def blockwise(i: int, j: int, marks: Marks, *, size: int) -> bool:
    """⌊i/size⌋ = ⌊j/size⌋"""
    return i // size == j // size


def documents(i: int, j: int, marks: Marks) -> bool:
    """document_i = document_j; one document if nobody marked it"""
    return "document" not in marks or marks["document"][i] == marks["document"][j]


def padding(i: int, j: int, marks: Marks) -> bool:
    """real_j; all are real if nobody marked it"""
    return "real" not in marks or bool(marks["real"][j])
