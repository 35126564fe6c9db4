"""Sizes at every batch and sequence at once: the largest of several polynomials, with the arithmetic of plain numbers.

``amounts`` and ``network`` add up and compare bytes. Read at one batch and sequence (``At``) these are whole numbers;
read for all of them (``Anywhere``) they are ``Formula``s, and the same lines of code give what a place of the step holds
as one formula, worked out once and evaluated for each workload in a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from estimators.activations.tape import MONOMIALS, ZERO, Moment, Size, evaluate, minus, plus, times

Gradients = tuple[tuple["Amount", "Amount"], ...]  # in the order of ``amounts.GRADIENTS``

# Monomials that are at least as large as each one, for B and S of 1 and more; nearest first.
_ABOVE = tuple(
    sorted(
        (i for i, other in enumerate(MONOMIALS) if other != one and other[0] >= one[0] and other[1] >= one[1]),
        key=lambda i: sum(MONOMIALS[i]),
    )
    for one in MONOMIALS
)


class Formula:
    """The largest of ``sizes``, polynomials in B and S. Adds, and multiplies by what is not negative; only a single
    polynomial can be taken away or multiplied by another."""

    __slots__ = ("sizes",)

    def __init__(self, sizes: Iterable[Size]) -> None:
        self.sizes = tuple(sizes)

    @property
    def one(self) -> Size:
        """The polynomial that it is."""
        (size,) = self.sizes
        return size

    def __bool__(self) -> bool:
        return any(size != ZERO for size in self.sizes)

    def __add__(self, other: Amount) -> Formula:
        if isinstance(other, int):
            return Formula((size[0] + other, *size[1:]) for size in self.sizes) if other else self
        if len(other.sizes) == 1:
            return Formula([plus(size, other.sizes[0]) for size in self.sizes])
        if len(self.sizes) == 1:
            return Formula([plus(self.sizes[0], size) for size in other.sizes])
        return Formula(upper(plus(a, b) for a in self.sizes for b in other.sizes))

    __radd__ = __add__

    def __sub__(self, other: Amount) -> Formula:
        if isinstance(other, int):
            return self + -other
        return Formula(minus(size, other.one) for size in self.sizes)

    def __rsub__(self, other: int) -> Formula:
        return Formula((times(self.one, -1),)) + other

    def __mul__(self, other: Amount) -> Formula:
        if isinstance(other, int):
            return Formula(times(size, other) for size in self.sizes) if other else Formula((ZERO,))
        size = [0] * len(MONOMIALS)
        for (b, s), mine in zip(MONOMIALS, self.one, strict=True):
            for (more_b, more_s), its in zip(MONOMIALS, other.one, strict=True):
                if mine and its:
                    size[MONOMIALS.index((b + more_b, s + more_s))] += mine * its
        return Formula((tuple(size),))

    __rmul__ = __mul__


Amount = int | Formula
BATCH, SEQUENCE = (Formula((tuple(int(m == one) for m in MONOMIALS),)) for one in ((1, 0), (0, 1)))


def larger(*amounts: Amount) -> Amount:
    """The largest."""
    if all(isinstance(a, int) for a in amounts):
        return max(amounts)  # type: ignore[type-var]
    return Formula(upper(s for a in amounts for s in (a.sizes if isinstance(a, Formula) else ((a, *ZERO[1:]),))))


def upper(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Those that no other covers at every batch and sequence: the rest is never the largest."""
    return tuple([size for _, size in first_of_equals(enumerate(dict.fromkeys(sizes)))])


def first_of_equals(numbered: Iterable[tuple[int, Size]]) -> list[tuple[int, Size]]:
    """Of polynomials in an order, those that are the largest somewhere: a later one has to be more, not as much."""
    best: list[
        tuple[int, int, Size]
    ] = []  # with its value at B = S = 1: what covers another has at least as much there
    for number, size in numbered:
        height = sum(size)
        for reached, _, other in best:
            if reached >= height and covers(other, size):
                break
        else:
            best = [kept for kept in best if kept[0] >= height or not covers(size, kept[2])]
            best.append((height, number, size))
    return [(number, size) for _, number, size in best]


def covers(a: Size, b: Size) -> bool:
    """Whether ``a`` is at least ``b`` for every B and S of 1 and more; no may also mean that nobody can tell.

    What ``a`` lacks in one monomial it may have in a larger one. Where it does, and the coefficients of ``a`` have the
    larger sum, it is more everywhere.
    """
    rest = list(map(int.__sub__, a, b))
    if min(rest) >= 0:
        return True
    for at, lacking in enumerate(rest):
        if lacking >= 0:
            continue
        for higher in _ABOVE[at]:
            if rest[higher] > 0:
                taken = min(rest[higher], -rest[at])
                rest[higher] -= taken
                rest[at] += taken
                if not rest[at]:
                    break
        else:
            return False
    return True


def between(size: Size, one: Size, other: Size) -> bool:
    """Whether ``size`` is nowhere above both others, and as large as ``other`` only where ``one`` is: a mean covers it.

    The mean is a share of ``other`` and the rest of ``one``; each coefficient bounds the share from one side. Blocks in
    turn lie on a line: what is saved shrinks by as much with each, what the engine has made grows. Only its ends count.
    """
    low, high = (0, 1), (1, 1)  # fractions
    for x, a, b in zip(size, one, other, strict=True):
        needs, gives = x - a, b - a
        if not gives:
            if needs > 0:
                return False
        elif gives > 0:
            if needs * low[1] > low[0] * gives:
                low = needs, gives
        elif needs * high[1] > high[0] * gives:  # share <= needs / gives, both below 0
            high = -needs, -gives
    return low[0] < low[1] and low[0] * high[1] <= high[0] * low[1]


class At:
    """Reads polynomials at one micro-batch of ``batch`` sequences of ``seq`` tokens with ``images`` images each."""

    __slots__ = ("batch", "images", "seq")

    def __init__(self, batch: int, seq: int, images: int) -> None:
        self.batch, self.seq, self.images = batch, seq, images

    def size(self, of: Size, of_images: bool = False) -> int:
        return evaluate(of, self.batch * self.images if of_images else self.batch, self.seq)

    def largest(self, moments: Sequence[Moment], of_images: bool = False) -> int:
        return max((self.size(m.live, of_images) for m in moments), default=0)

    def by_gradients(self, moments: Sequence[Moment], of_images: bool = False) -> Gradients:
        """The largest moment of backward by what counts as new memory: bytes without and of weight gradients."""
        most = recent = (0, 0, 0)
        early: tuple[int, int] | None = None
        late = arrives = held = None
        between = (0, 0)
        for number, moment in enumerate(moments):
            live, hand = self.size(moment.live, of_images), moment.in_hand
            size = live, made, fresh = live, moment.weight_gradients + hand, moment.fresh_gradient + hand
            if not number or live + made > most[0] + most[1]:
                most = size
            if not number or live + fresh > recent[0] + recent[2]:
                recent = size
            held = live if held is None or live > held else held
            if moment.weight_gradients:
                late = live if late is None or live > late else late
                between = max(between, (live, hand), key=sum)
                if moment.fresh_gradient:
                    arrives = live if arrives is None or live > arrives else arrives
            elif early is None or live + hand > sum(early):
                early = live, hand
        arrives = late if arrives is None else arrives
        return ((most[0], most[1]), (recent[0], recent[2]), (held or 0, 0), early or (0, 0), (late or 0, 0),
                (arrives or 0, 0), between)  # fmt: skip

    def beside(self, moments: Sequence[Moment], of_images: bool = False) -> tuple[int, int]:
        """The largest moment: bytes without and of gradients that are being made."""
        return max([(self.size(m.live, of_images), m.in_hand) for m in moments], key=sum)


class Anywhere:
    """Reads polynomials for every batch and sequence; ``images`` of a sample are fixed."""

    __slots__ = ("batch", "images", "seq")

    def __init__(self, images: int) -> None:
        self.batch, self.seq, self.images = BATCH, SEQUENCE, images

    def size(self, of: Size, of_images: bool = False) -> Formula:
        return Formula((self._by_samples(of, of_images),))

    def largest(self, moments: Sequence[Moment], of_images: bool = False) -> Formula:
        return self._most((m.live for m in moments), of_images)

    def by_gradients(self, moments: Sequence[Moment], of_images: bool = False) -> Gradients:
        """As ``At.by_gradients``; where a place counts new gradients, they stand in the first number."""
        made = [(m.live[0] + m.weight_gradients + m.in_hand, *m.live[1:]) for m in moments]
        fresh = [(m.live[0] + m.fresh_gradient + m.in_hand, *m.live[1:]) for m in moments]
        held = [m.live for m in moments]
        early = [(m.live[0] + m.in_hand, *m.live[1:]) for m in moments if not m.weight_gradients]
        late = [m.live for m in moments if m.weight_gradients]
        arrives = [m.live for m in moments if m.fresh_gradient] or late
        between = [(m.live[0] + m.in_hand, *m.live[1:]) for m in moments if m.weight_gradients]
        return tuple((self._most(some, of_images), 0) for some in (made, fresh, held, early, late, arrives, between))

    def beside(self, moments: Sequence[Moment], of_images: bool = False) -> tuple[Formula, int]:
        """As ``At.beside``, in the first number."""
        return self._most([(m.live[0] + m.in_hand, *m.live[1:]) for m in moments], of_images), 0

    def _most(self, sizes: Iterable[Size], of_images: bool) -> Formula:
        return Formula(upper(self._by_samples(s, of_images) for s in sizes) or (ZERO,))

    def _by_samples(self, of: Size, of_images: bool) -> Size:
        """Rows that are images, counted by the sample."""
        if not of_images or self.images == 1:
            return of
        return tuple(x * self.images**b for x, (b, _) in zip(of, MONOMIALS, strict=True))
