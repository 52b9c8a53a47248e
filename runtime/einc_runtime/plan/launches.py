"""Which tasks of a plan are one launch on a GPU.

A launch has a cost of its own, which is most of what small kernels take. So a GPU runs some neighbouring tasks of a
site by one kernel, at the place of the first of them. Which these are follows from the tasks alone: the compiler plans
memory for them and predicts their time, `einc explain` counts them, and the executor asks its kernels for each. Where
there is no kernel for a launch, its tasks run one by one, with the same results.

A launch is right if all that its tasks wait for comes before the first of them, or is one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from einc_runtime.plan.epilogues import (
    LAUNCH_PRODUCTS,
    ContractedOperands,
    GatedTasks,
    find_epilogues,
    find_gated_pairs,
    is_library_epilogue,
    list_contracted_operands,
)
from einc_runtime.plan.regions import (
    ExecutablePlan,
    Users,
    find_output_buffers,
    find_users,
    reads_of,
    region_bytes,
    writes_of,
)
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.schema import AggregateTask, AnyTask, Block, KernelTask, Operation, Region
from einc_runtime.plan.states import IN_PLACE
from einc_runtime.plan.work import ProductWork, Work

LaunchKind = Literal["gated", "epilogue", "products", "rows", "places"]
"""What one kernel does: two products and the map of both; a product and the map of its result; products of one operand;
an aggregation, a map and a norm of rows, of which one of the first two may be missing; rotations, and rows that go to
their places in caches."""

MAX_FEW_ROWS = 16
"""Products of so many rows take as long as reading their matrices: the tensor cores of GPUs multiply 16 rows at a
time, and wait for memory."""

FEW_PLACES = 256
"""New rows of a cache that one launch puts to their places: each compares its place with those of all others."""

MAX_ROW = 16384
"""The longest row that a program holds: 32 registers of 512 threads."""

MAX_GATE = 400
"""Characters of the program of a map that runs with two products; longer ones are left alone."""

ADDED = frozenset({"sum", "prod", "max", "min"})
"""Aggregations that a map can compute."""

LAUNCH_TYPES = frozenset({"f16", "bf16", "f32"})
"""Types of the tensors that kernels of several tasks compute."""


@dataclass(frozen=True, slots=True)
class JointLaunch:
    """Tasks of one site, as ascending positions, which one kernel runs at the place of the first. Those in `kept` make
    what is needed outside of the launch."""

    kind: LaunchKind
    tasks: tuple[int, ...]
    kept: frozenset[int] = frozenset()


def find_launches(plan: ExecutablePlan, tasks: Sequence[AnyTask]) -> tuple[JointLaunch, ...]:
    """The launches of several tasks, by their first task. No task is in two."""
    return _Finder(plan, tasks).run()


def find_joint_tasks(plan: ExecutablePlan, tasks: Sequence[AnyTask]) -> tuple[dict[int, int], tuple[JointLaunch, ...]]:
    """For each task that runs by a kernel with later ones, the last of these (positions); and the launches.

    The kernel writes when its first task runs: what its tasks read must not lie where any of them writes.
    """
    joint: dict[int, int] = {}
    finder = _Finder(plan, tasks)
    for first, gated in finder.gated.items():  # tuning may choose one kernel for those of many rows
        if finder.operations[first].kernel == "contract":
            joint |= {first: gated.then, gated.second: gated.then}
    launches = finder.run()
    for launch in launches:
        joint |= dict.fromkeys(launch.tasks[:-1], launch.tasks[-1])
    return joint, launches


def is_few(work: Work | None, written: Block) -> bool:
    """Whether a product has few rows, which are a dimension of what it makes."""
    if not isinstance(work, ProductWork) or work.batch * min(work.rows, work.columns) > MAX_FEW_ROWS:
        return False
    return min(written.shape, default=MAX_FEW_ROWS + 1) <= MAX_FEW_ROWS


def multiplies_few_rows(plan: ExecutablePlan, task: AnyTask) -> bool:
    """Whether a task is a product of few rows of floats."""
    operation = plan.operations[task.operation] if isinstance(task, KernelTask) else None
    if operation is None or operation.kernel not in LAUNCH_PRODUCTS or not isinstance(task, KernelTask):
        return False
    few = is_few(operation.functions[task.function].work, task.writes[0].block)
    return few and len(task.reads) >= 2 and _is_plain(plan, task, operation)


def _is_plain(plan: ExecutablePlan, task: AnyTask, operation: Operation) -> bool:
    """Whether a task computes floats of a launch's types, and has no kernel of reproducible plans."""
    (*_, written) = writes_of(task)
    dtype = plan.tensors[plan.buffers[written.buffer].tensor].dtype
    return dtype in LAUNCH_TYPES and operation.kernel_attributes.get(ATTRIBUTE) is not True


class _Finder:
    """The search for the launches of a plan. Most plans have few tasks that a launch may have, or none."""

    def __init__(self, plan: ExecutablePlan, tasks: Sequence[AnyTask]) -> None:
        self.plan, self.tasks = plan, tasks
        self.operations: dict[int, Operation] = {}  # of the tasks that run a kernel
        self.running: dict[str, list[int]] = defaultdict(list)  # by kernel: the tasks that run it
        for number, task in enumerate(tasks):
            if isinstance(task, KernelTask):
                self.operations[number] = operation = plan.operations[task.operation]
                self.running[operation.kernel].append(number)
        self.taken: set[int] = set()

    @cached_property
    def users(self) -> Users:
        return find_users(self.tasks)

    @cached_property
    def outputs(self) -> set[int]:
        return find_output_buffers(self.plan)

    @cached_property
    def contracted(self) -> ContractedOperands:
        if not self.running["map"] or not self._list_running(*LAUNCH_PRODUCTS):
            return ()
        return list_contracted_operands(self.plan, self.tasks, self.users)

    @cached_property
    def gated(self) -> dict[int, GatedTasks]:
        return find_gated_pairs(self.plan, self.tasks, self.contracted)

    def run(self) -> tuple[JointLaunch, ...]:
        launches: list[JointLaunch] = []
        for find in (self._gated, self._epilogues, self._rows, self._places, self._products):
            for launch in find():
                if not self.taken.intersection(launch.tasks):
                    self.taken.update(launch.tasks)
                    launches.append(replace(launch, kept=self._find_kept(launch.tasks)))
        return tuple(sorted(launches, key=lambda launch: launch.tasks))

    def _find_kept(self, numbers: Sequence[int]) -> frozenset[int]:
        return frozenset(number for number in numbers if not self._is_inner(number, set(numbers)))

    def _is_inner(self, number: int, members: set[int]) -> bool:
        """Whether only these tasks read what a task writes."""
        (written,) = {region.buffer for region in writes_of(self.tasks[number])} or {-1}
        readers = self.users[0].get(written, [])
        return written not in self.outputs and bool(readers) and members.issuperset(readers)

    def _gated(self) -> Iterator[JointLaunch]:
        for first, gated in self.gated.items():
            short = len(str(self.operations[gated.then].kernel_attributes["program"])) <= MAX_GATE
            shared = set(reads_of(self.tasks[first])).intersection(reads_of(self.tasks[gated.second]))
            if short and len(shared) == 1 and self._is_few(first) and self._is_few(gated.second):
                yield JointLaunch("gated", (first, gated.second, gated.then))

    def _epilogues(self) -> Iterator[JointLaunch]:
        for first, (then, _) in find_epilogues(self.plan, self.tasks, self.contracted).items():
            sizes = {region_bytes(self.plan, region) for n in (first, then) for region in writes_of(self.tasks[n])}
            if is_library_epilogue(self.operations[then]) and len(sizes) == 1:
                yield JointLaunch("epilogue", (first, then))

    def _rows(self) -> Iterator[JointLaunch]:
        for number in self._list_running("rmsnorm", "layernorm"):
            chains = self._list_row_chains(number) if self._is_plain(number) else ()
            launch = next((JointLaunch("rows", chain) for chain in chains if self._is_one(chain)), None)
            if launch is not None:
                yield launch

    def _list_row_chains(self, norm: int) -> Iterator[tuple[int, ...]]:
        """What a norm may run with, the most first: the map or the aggregation that makes its rows, and before the map
        an aggregation of an operand."""
        source = reads_of(self.tasks[norm])[0]
        tensor = self.plan.tensors[self.plan.buffers[source.buffer].tensor]
        across = bool(tensor.order) and tensor.order[-1] != len(tensor.shape) - 1
        maker = self._find_maker(norm, source)
        if maker is None or maker in self.taken or across or source.block.shape[-1] > MAX_ROW:
            return
        if self._adds(maker):
            yield maker, norm
            return
        if maker not in self.operations or self.operations[maker].kernel != "map" or not self._is_plain(maker):
            return
        for region in reads_of(self.tasks[maker]):
            added = self._find_maker(maker, region)
            if added is not None and added not in self.taken and self._adds(added):
                yield added, maker, norm
        yield maker, norm

    def _places(self) -> Iterator[JointLaunch]:
        """Rotations and appends of a site that follow each other."""
        groups: dict[int, list[int]] = {}
        for number in self._list_running("rope", "append"):
            if not self._goes_to_places(number):
                continue
            site = self.tasks[number].site
            group = groups.setdefault(site, [])
            if not self._is_one((*group, number)):
                yield from self._close(group)
                group = groups[site] = []
            group.append(number)
        for group in groups.values():
            yield from self._close(group)

    def _close(self, group: list[int]) -> Iterator[JointLaunch]:
        if len(group) > 1:
            yield JointLaunch("places", tuple(group))

    def _goes_to_places(self, number: int) -> bool:
        """Whether a task that rotates or appends may run together with others."""
        operation = self.operations[number]
        if operation.kernel == "rope":
            return self._is_plain(number)
        fresh = reads_of(self.tasks[number])[1]  # a cache may have floats of 8 bits, to which they are rounded
        new, dtype = fresh.block.shape, self.plan.tensors[self.plan.buffers[fresh.buffer].tensor].dtype
        if dtype not in LAUNCH_TYPES or operation.kernel_attributes.get(ATTRIBUTE) is True:
            return False
        return operation.kernel_attributes.get(IN_PLACE) is True and len(new) == 3 and new[1] <= FEW_PLACES

    def _products(self) -> Iterator[JointLaunch]:
        """Products of few rows that share an operand."""
        groups: dict[tuple[int, int, Region], list[int]] = defaultdict(list)
        for number in self._list_running(*LAUNCH_PRODUCTS):
            task = self.tasks[number]
            if number in self.taken or not self._is_few(number):
                continue
            stored = self.operations[number].kernel != "contract"  # then the first operand is the tensor
            for position, region in enumerate(reads_of(task)[: 1 if stored else 2]):
                groups[task.site, 2 * position + stored, region].append(number)
        for numbers in groups.values():
            group: list[int] = []
            for number in numbers:
                if self._is_one((*group, number)):
                    group.append(number)
            if len(group) > 1:
                yield JointLaunch("products", tuple(group))

    def _is_one(self, numbers: Sequence[int]) -> bool:
        """Whether all that the tasks wait for comes before the first of them, or is one of them."""
        first, members = numbers[0], set(numbers)
        return all(before < first or before in members for number in numbers for before in self.tasks[number].after)

    def _list_running(self, *kernels: str) -> list[int]:
        """The tasks that run one of these kernels, ascending."""
        return sorted(number for kernel in kernels for number in self.running[kernel])

    def _is_few(self, number: int) -> bool:
        """Whether a task multiplies few rows."""
        return multiplies_few_rows(self.plan, self.tasks[number])

    def _is_plain(self, number: int) -> bool:
        return _is_plain(self.plan, self.tasks[number], self.operations[number])

    def _adds(self, number: int) -> bool:
        """Whether a task combines copies of one tensor, element by element."""
        task = self.tasks[number]
        return isinstance(task, AggregateTask) and len(task.writes) == 1 and task.aggregation in ADDED

    def _find_maker(self, reader: int, region: Region) -> int | None:
        """The one task of the reader's site that makes a region, if one makes exactly that."""
        writers = self.users[1].get(region.buffer, [])
        if len(writers) != 1 or writers[0] >= reader:
            return None
        maker = self.tasks[writers[0]]
        return writers[0] if maker.site == self.tasks[reader].site and writes_of(maker) == (region,) else None
