"""Why single measured times of collectives are more than 1.5 times away from what the forms say."""

from __future__ import annotations

from dataclasses import dataclass

from tests.truth.forms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from tests.truth.nccl import Measured

LATE = "late calls: int8, with the same bytes, took 0.4 to 0.8 of it"
KEPT = "NCCL changes from LL128 to Simple where LL128 would still be faster: times step upwards there"
HOST = "eight GPUs share one path through the host, and two measurements of one shape differ as much"
OUTLIER = "its neighbours took less than half as long"
ONE_SHOT = "the framework keeps to one-shot where two-shot would be faster: twice the size took less time"
FORM = "the form: its three lines are too few for a time that grows so little up to here"


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
    Reason("a100_sxm nccl", ALL_TO_ALL, 2, (256 << 10,), FORM),
    Reason("a100_sxm vllm", ALL_REDUCE, 8, (4 << 10,), OUTLIER),
    Reason("a100_sxm trtllm", ALL_REDUCE, 8, (1 << 20,), ONE_SHOT),
    Reason("h100_sxm nccl", ALL_TO_ALL, 4, (1 << 10,), LATE),
    Reason("h100_sxm nccl", ALL_TO_ALL, 8, (2 << 10, 16 << 10, 32 << 10), LATE),
    Reason("b200_sxm nccl", ALL_GATHER, 4, (128 << 10,), LATE),
    Reason("b200_sxm nccl", ALL_GATHER, 8, (16 << 20,), KEPT),
    Reason("l40s nccl", "", 8, (), HOST),
)


def explain(table: str, row: Measured) -> str:
    """The reason that is known, or nothing."""
    return next((reason.why for reason in REASONS if reason.explains(table, row)), "")
