"""The table of the commands of `einc-runtime`."""

from __future__ import annotations

from einc_runtime.cli.base import LazyGroup, examples, version_option

root = LazyGroup(
    "einc-runtime",
    {
        "run": ("einc_runtime.cli.run:run_command", "Execute a plan on arrays."),
        "verify": (
            "einc_runtime.cli.verify:verify_command",
            "Prove from a plan's file alone that data arrives complete and that no two tasks race.",
        ),
        "tune": ("einc_runtime.cli.tune:tune_command", "Measure which algorithms multiply fastest on these GPUs."),
        "describe": ("einc_runtime.cli.describe:describe_command", "Show what a plan takes, gives and needs."),
    },
    help="Run, verify and describe plans that einc compiled.",
    epilog=examples(
        "einc-runtime describe ffn.bin",
        "einc-runtime verify ffn.bin",
        "einc-runtime run ffn.bin --inputs x=rand:0 --weights rand:1 -o y.npy",
    ),
    params=[version_option("einc-runtime")],
    context_settings={"help_option_names": ["-h", "--help"]},
)
