"""What `compileGraph` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled graph: `bundle` is everything that `einc run` and `einc explain` need.

    `proposals` has a line on every program that a proposer wrote.
    """

    bundle: Bundle
    proposals: tuple[str, ...] = ()

    def __repr__(self) -> str:
        bundle = self.bundle
        where = f"{len(bundle.devices)} sites of {bundle.machine}"
        return f"<plan of {bundle.model} for {where}, cost {bundle.total_cost:,}>"

    @property
    def cost(self) -> int:
        """The paper's proxy of communication, in elements."""
        return self.bundle.total_cost

    @property
    def milliseconds(self) -> float | None:
        """The predicted time of the plan on its machine."""
        return self.bundle.predicted_ms

    @property
    def millisecondsRange(self) -> tuple[float, float] | None:
        """Between which times four in five such plans end; None where nothing was fitted to the machine's GPUs."""
        from einc.report.times import describe_prediction

        span = describe_prediction(self.bundle)["predicted_range_ms"]
        return None if span is None else tuple(span)

    @property
    def rates(self) -> str:
        """Where times of kernels come from: `measured` on the machine, `fitted` to measurements of its GPUs, or the
        `peak` rates of its file, of which nothing was measured."""
        from einc.plan_reading.timing import read_plan_machine
        from einc.predict.ranges import name_rates

        return name_rates(read_plan_machine(self.bundle))

    def explain(self) -> dict[str, Any]:
        """What `einc explain --json` prints."""
        from einc.report.document import explain

        return explain(self.bundle)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The same as tables of flat rows: `operators`, `exchanges`, `links`, `sites` and `contenders`."""
        from einc.report.flat_tables import list_tables

        return list_tables(self.explain())

    def writePage(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `einc explain --html`, whole or not at all. Raises OSError."""
        from einc.report.html.page import write_plan_page
        from einc_runtime.disk import write_file

        data = write_plan_page(self.bundle).encode()
        write_file(path, lambda stream: stream.write(data))

    def _repr_html_(self) -> str:
        """That page in a frame, for notebooks; of a large plan its first section."""
        from einc.report.html.page import frame_plan_page

        return frame_plan_page(self.bundle)

    def toBytes(self) -> bytes:
        from einc_runtime.plan.codec import encode

        return encode(self.bundle)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, whole or not at all. Raises OSError."""
        from einc_runtime.disk import write_file

        data = self.toBytes()
        write_file(path, lambda stream: stream.write(data))
