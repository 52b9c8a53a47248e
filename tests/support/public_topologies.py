"""Tables of `nvidia-smi topo -m` that people published, without names of computers and people.

Of each: where it was published, the GPU if the catalogue has it, and the words between each GPU and those after it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublicTopology:
    """A table: rows of words above the diagonal; `peers` are those of `topo -p2p`, where they were published too."""

    name: str
    source: str
    gpu: str | None
    rows: tuple[str, ...]
    peers: tuple[str, ...] = ()
    switched: bool = False
    """Whether its NVLinks go to switches, as the server's maker says."""

    @property
    def words(self) -> list[list[str]]:
        return fill_words(self.rows)


def fill_words(rows: tuple[str, ...]) -> list[list[str]]:
    """The whole table of words above its diagonal."""
    count = len(rows) + 1
    above = [row.split() for row in rows]
    return [["X" if a == b else above[min(a, b)][abs(a - b) - 1] for b in range(count)] for a in range(count)]


def repeat(word: str, count: int) -> tuple[str, ...]:
    """One word between all GPUs."""
    return tuple(" ".join([word] * (count - 1 - row)) for row in range(count - 1))


CUBE = (
    "NV1 NV1 NV2 NV2 SYS SYS SYS", "NV2 NV1 SYS NV2 SYS SYS", "NV2 SYS SYS NV1 SYS", "SYS SYS SYS NV1",
    "NV1 NV1 NV2", "NV2 NV1", "NV2",
)  # fmt: skip
FOUR_AND_FOUR = (
    "NODE NODE NODE SYS SYS SYS SYS", "NODE NODE SYS SYS SYS SYS", "NODE SYS SYS SYS SYS", "SYS SYS SYS SYS",
    "NODE NODE NODE", "NODE NODE", "NODE",
)  # fmt: skip
TWO_SOCKETS = ("PXB SYS SYS", "SYS SYS", "PXB")
DEVICE_NOTES = "a public repository's notes about its server"

TABLES = (
    PublicTopology("2017-8", "kubernetes/kubernetes 53497", None, (
        "PIX PHB PHB SYS SYS SYS SYS", "PHB PHB SYS SYS SYS SYS", "PIX SYS SYS SYS SYS", "SYS SYS SYS SYS",
        "PIX PHB PHB", "PHB PHB", "PIX")),
    PublicTopology("mixed-5", "noonghunna/club-3090 46", None, (
        "SYS SYS SYS SYS", "PHB NODE NODE", "NODE NODE", "PHB")),
    PublicTopology("5090-2", "noonghunna/club-3090 1229", "rtx-5090", ("PHB",), ("GNS",)),
    PublicTopology("3090-2", "noonghunna/club-3090 1125", "rtx-3090", ("NODE",), ("NS",)),
    PublicTopology("l40s-4", "warpem/miss-alignment 106", "l40s", ("NODE SYS SYS", "SYS SYS", "NODE")),
    PublicTopology("pxb-4", "NVIDIA/nccl 667", None, ("PXB SYS SYS", "SYS SYS", "PIX")),
    PublicTopology("dgx-a100", "NVIDIA/nccl 1505", "a100-sxm-40gb", repeat("NV12", 8), switched=True),
    PublicTopology("h100-4", "NVIDIA/nccl 1617", "h100-sxm", repeat("NV6", 4)),
    PublicTopology("dgx-2", "NVIDIA/nccl-tests 78", "v100-sxm3", repeat("NV6", 16), switched=True),
    PublicTopology("a800-8", "NVIDIA/nccl 933", "a100-sxm", repeat("NV8", 8), switched=True),
    PublicTopology("dgx-a100-320", "NVIDIA/DCGM 149", "a100-sxm-40gb", repeat("NV12", 8), switched=True),
    PublicTopology("b200-broken", "vllm-project/vllm 16336", "b200-sxm", (
        "NV18 NODE NV18 NV18 NV18 NV18 NV18", "NODE NV18 NV18 NV18 NV18 NV18", "NODE SYS SYS SYS SYS",
        "NV18 NV18 NV18 NV18", "NV18 NV18 NV18", "NV18 NV18", "NV18"), switched=True),
    PublicTopology("geforce-7", DEVICE_NOTES, None, (
        "PIX PIX PHB PHB PHB PHB", "PIX PHB PHB PHB PHB", "PHB PHB PHB PHB", "PIX PIX PIX", "PIX PIX", "PIX")),
    PublicTopology("k80-4", "a page of a computing centre about K80", None, ("PIX SOC SOC", "SOC SOC", "PIX")),
    PublicTopology("h200-nvl-4", DEVICE_NOTES, "h200-nvl", ("PIX NODE NODE", "NODE NODE", "PIX")),
    PublicTopology("pix-node-8", "a page about affinities", None, (
        "PIX NODE NODE SYS SYS SYS SYS", "NODE NODE SYS SYS SYS SYS", "PIX SYS SYS SYS SYS", "SYS SYS SYS SYS",
        "PIX NODE NODE", "NODE NODE", "PIX")),
    PublicTopology("v100-pcie-2", DEVICE_NOTES, "v100-pcie", ("PIX",)),
    PublicTopology("nv4-3", "a log of nccl-tests", "a40", ("NV4 NODE", "NODE")),
    PublicTopology("a100-4", "a page of a computing centre about A100", "a100-sxm-40gb", repeat("NV4", 4)),
    PublicTopology("nv4-8", "a forum of a computing centre", "rtx-a6000", (
        "NV4 NODE NODE SYS SYS SYS SYS", "NODE NODE SYS SYS SYS SYS", "NV4 SYS SYS SYS SYS", "SYS SYS SYS SYS",
        "NV4 NODE NODE", "NODE NODE", "NV4")),
    PublicTopology("nv4-4", "a text about NVLink", "rtx-a6000", ("NV4 SYS SYS", "SYS SYS", "NV4")),
    PublicTopology("pro-4000-4", DEVICE_NOTES, None, repeat("NODE", 4)),
    PublicTopology("h100-pcie-8", DEVICE_NOTES, "h100-pcie", (
        "NODE NODE SYS SYS NV12 SYS SYS", "NV12 SYS SYS SYS SYS SYS", "SYS SYS SYS SYS SYS", "NV12 NODE NODE NODE",
        "NODE NODE NODE", "NODE NODE", "NV12")),
    PublicTopology("pro-6000-2", DEVICE_NOTES, "rtx-pro-6000", ("NODE",)),
    PublicTopology("k80-node-4", "the manual of OpenPAI", None, repeat("NODE", 4)),
    PublicTopology("g6e-4", "a text about g6e.12xlarge", "l40s", repeat("NODE", 4)),
    PublicTopology("4090-8", DEVICE_NOTES, "rtx-4090", FOUR_AND_FOUR),
    PublicTopology("dgx-1", "Oneflow-Inc/OneFlow-Benchmark", "v100-16gb", CUBE),
    PublicTopology("savio-8", "a script of a computing centre", None, (
        "PXB PXB PXB SYS SYS SYS SYS", "PXB PXB SYS SYS SYS SYS", "PIX SYS SYS SYS SYS", "SYS SYS SYS SYS",
        "PXB PXB PXB", "PXB PXB", "PIX")),
    PublicTopology("pxb-node-8", "a page about topo -mp", None, (
        "PXB NODE NODE SYS SYS SYS SYS", "NODE NODE SYS SYS SYS SYS", "PXB SYS SYS SYS SYS", "SYS SYS SYS SYS",
        "PXB NODE NODE", "NODE NODE", "PXB")),
    PublicTopology("a40-4", "MicheleCampi/inferscope", "a40", TWO_SOCKETS),
    PublicTopology("g5-4", "a text about g5.12xlarge", None, repeat("PHB", 4)),
    PublicTopology("cns-4", "a text about symmetric memory", "rtx-a6000", ("PHB PHB NV4", "NV4 PHB", "PHB"),
                   ("CNS CNS OK", "OK CNS", "CNS")),
)  # fmt: skip
