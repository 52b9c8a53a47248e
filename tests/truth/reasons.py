"""Why single measured times of collectives are more than 1.5 times away from what the forms say."""

from __future__ import annotations

from dataclasses import dataclass

from tests.truth.forms import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from tests.truth.nccl import Measured

LATE = "a call that was late: int8, with the same bytes, took about half as long"
KEPT = "NCCL changes from LL128 to Simple where LL128 would still be faster; times step upwards there, and the form takes the least"
HOST = "eight GPUs share one path through the host, on which two measurements of one shape differ by 1.7 themselves"
OUTLIER = "its neighbours took less than half as long"
ONE_SHOT = "the framework keeps to one-shot where two-shot would be faster: twice the size took less time"
NO_TWO_SHOT = "the framework has no two-shot with a rate of its own there"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why; `sizes` are all, if there are none."""

    table: str
    collective: str
    gpus: int
    sizes: tuple[int, ...]
    why: str

    def explains(self, table: str, row: Measured) -> bool:
        return (
            table.startswith(self.table)
            and self.collective in ("", row.collective)
            and self.gpus == row.gpus
            and (not self.sizes or row.size in self.sizes)
        )


REASONS = (
    Reason("a100_sxm nccl", ALL_GATHER, 4, (2 << 20,), KEPT),
    Reason("a100_sxm nccl", REDUCE_SCATTER, 4, (2 << 20,), KEPT),
    Reason("h100_sxm nccl", ALL_TO_ALL, 4, (1 << 10,), LATE),
    Reason("h100_sxm nccl", ALL_TO_ALL, 8, (2 << 10, 16 << 10, 32 << 10), LATE),
    Reason("b200_sxm nccl", ALL_GATHER, 4, (128 << 10,), LATE),
    Reason("b200_sxm nccl", ALL_GATHER, 8, (16 << 20,), KEPT),
    Reason("l40s nccl", "", 8, (), HOST),
)


def explain(table: str, row: Measured) -> str:
    """The reason that is known, or nothing."""
    return next((reason.why for reason in REASONS if reason.explains(table, row)), "")
