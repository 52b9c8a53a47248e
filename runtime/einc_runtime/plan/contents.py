"""What the buffers hold while a plan is executed symbolically, and which tasks touched them last.

An element's content is the set of function specifications whose partial outputs it combines, as a bit mask. Buffers
keep it in pieces: disjoint blocks of one content, with the task that wrote them and those that have read them since.
A buffer has its bytes until another one that shares some of them is written; then its contents are gone.

Every access must come after those that it conflicts with. It is enough to look at the last of them: an earlier one is
before the last, because that was checked when the last one came. So no two tasks race, and every run of the plan does
what the symbolic execution does, in the order of positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.live_ranges import Piece, Tenure
from einc_runtime.plan.reachability import Ordering
from einc_runtime.plan.schema import ITEMSIZE, Block, Bundle, Region

LOADED = 1
"""The content of input and weight buffers, complete by definition."""

Content = list[tuple[Block, int]]
"""Disjoint blocks and the mask of each."""


class Arena:
    """The bytes of a site: disjoint spans in ascending order, each with the tenure that had it last."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[tuple[int, int, Tenure]] = []

    def claim(self, start: int, end: int, buffer: int, claimed: Tenure) -> None:
        """Gives a new tenure these bytes; it ends all that it overlaps, and comes after what these leave."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._spans[first][1] <= start:
            first += 1
        last = bisect_left(self._starts, end)
        evicted = self._spans[first:last]
        before: set[int] = set()
        for _, _, tenure in evicted:
            tenure.end(buffer)
            before |= tenure.accesses
        claimed.before = frozenset(before)
        left = [(lo, start, tenure) for lo, _, tenure in evicted if lo < start]
        right = [(end, up, tenure) for _, up, tenure in evicted if up > end]
        self._spans[first:last] = [*left, (start, end, claimed), *right]
        self._starts[first:last] = [span[0] for span in [*left, (start, end, claimed), *right]]


class Contents:
    """The contents of all buffers of a validated bundle, before its first task."""

    def __init__(self, bundle: Bundle, ordering: Ordering, budget: boxes.StepBudget) -> None:
        self._bundle = bundle
        self._ordering = ordering
        self._arenas = [Arena() for _ in bundle.memory]
        self._tenures: dict[int, Tenure] = {}
        self._budget = budget

    def read(self, region: Region, where: str, task: int | None = None) -> Content:
        """What a region holds, in pieces.

        `task` reads it while others run; None looks at it after the last has ended. Raises PlanFault where a part
        was never written, is lost, or is not sure to have been written when `task` starts.
        """
        if self._bundle.buffers[region.buffer].role in ("input", "weight"):
            return [(region.block, LOADED)]
        tenure = self._tenures.get(region.buffer)
        if tenure is None:
            raise PlanFault(f"buffer {region.buffer} is read before it is written", where=where)
        if tenure.usurper is not None:
            message = f"buffer {region.buffer} is read after buffer {tenure.usurper} has taken its bytes"
            raise PlanFault(message, where=where)
        content = []
        for piece, common in self._overlapping(tenure, region.block, where):
            if task is not None:
                if not self._ordering.ended(piece.writer):
                    what = f"reads buffer {region.buffer} {common}, which tasks[{piece.writer}] writes"
                    raise PlanFault(f"it {what}, without waiting for it", where=where)
                piece.readers.append((task, common))
            content.append((common, piece.mask))
        found = sum(block.size for block, _ in content)
        if found != region.block.size:
            message = f"{found} of the {region.block.size} elements of {region.block} are written"
            raise PlanFault(f"only {message} in buffer {region.buffer}", where=where)
        return content

    def write(self, region: Region, content: Content, where: str, task: int, in_place: bool = False) -> None:
        """Puts `content`, which covers the region, into it; `in_place` lets the task have read that same region.

        Raises PlanFault where another task may touch these bytes at the same time.
        """
        tenure = self._tenures.get(region.buffer)
        if tenure is None or tenure.usurper is not None:
            buffer = self._bundle.buffers[region.buffer]
            width = ITEMSIZE[self._bundle.tensors[buffer.tensor].dtype]
            end = buffer.offset + buffer.block.size * width
            tenure = self._tenures[region.buffer] = Tenure(buffer.block, region.block)
            self._arenas[buffer.site].claim(buffer.offset, end, region.buffer, tenure)
        overwritten = self._overlapping(tenure, region.block, where)
        for piece, common in overwritten:
            self._budget.spend(len(piece.readers), where)
            self._exclude(piece.accesses(common), region, where, task, in_place)
            tenure.drop(piece)
            for rest in piece.without(common):
                tenure.put(rest)
        if not overwritten and tenure.before:  # what overwrites a part comes after a task that came after these
            self._follow(tenure, region, where, task)
        self._budget.spend((len(overwritten) + len(content)) * tenure.effort, where)
        for block, mask in content:
            tenure.put(Piece(block, mask, task))

    def _follow(self, tenure: Tenure, region: Region, where: str, task: int) -> None:
        """Raises PlanFault unless all that `tenure` comes after has ended when `task` starts to write the region."""
        fences = self._ordering.fences
        self._budget.spend(len(fences), where)
        if not tenure.gates.isdisjoint(fences):
            return
        self._budget.spend((1 + len(fences)) * (len(tenure.before) + task // 8192), where)
        self._exclude(tenure.before, region, where, task)
        tenure.gates = frozenset(fence for fence in fences if self._ordering.behind(fence, tenure.before))

    def _overlapping(self, tenure: Tenure, block: Block, where: str) -> list[tuple[Piece, Block]]:
        """The pieces that have a part in `block`, and that part of each."""
        near = tenure.near(block)
        self._budget.spend(len(near), where)
        found = []
        for piece in near:
            common = block if piece.block == block else piece.block.intersect(block)
            if common is not None:
                found.append((piece, common))
        return found

    def _exclude(self, others: Iterable[int], region: Region, where: str, task: int, in_place: bool = False) -> None:
        """Raises PlanFault unless all of `others` have ended when `task` starts to write the region."""
        for other in self._ordering.unfinished(others):
            if in_place and other == task:
                continue
            what = f"writes bytes of buffer {region.buffer} {region.block}"
            if other == task:
                raise PlanFault(f"it {what} that it uses otherwise, too", where=where)
            raise PlanFault(f"it {what} that tasks[{other}] uses, without waiting for it", where=where)
