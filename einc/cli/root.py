"""The table of the commands of `einc`."""

from __future__ import annotations

from einc_runtime.cli.base import LazyGroup, examples, version_option

_COMMANDS = "einc.cli.commands"

root = LazyGroup(
    "einc",
    {
        "compile": (f"{_COMMANDS}.compile:compile_command", "Plan a model for a machine and write the plan."),
        "run": (f"{_COMMANDS}.run:run_command", "Execute a plan on arrays."),
        "train": (f"{_COMMANDS}.train:train_command", "Train a model: run a training step on data, again and again."),
        "generate": (f"{_COMMANDS}.generate:generate_command", "Continue texts with a published language model."),
        "serve": (f"{_COMMANDS}.serve:serve_command", "Answer requests as OpenAI's API does."),
        "explain": (f"{_COMMANDS}.explain:explain_command", "Show how a plan cuts, places and moves everything."),
        "check": (f"{_COMMANDS}.check:check_command", "Type-check a model; hold a model or a plan to contracts."),
        "advise": (f"{_COMMANDS}.advise:advise_command", "Say on which machine, and how, a model runs best."),
        "diff": (f"{_COMMANDS}.diff:diff_command", "Show what changed from one plan to another."),
        "reshard": (
            f"{_COMMANDS}.reshard:reshard_command",
            "Turn the weights and caches of one plan into those of another.",
        ),
        "verify": (
            f"{_COMMANDS}.verify:verify_command",
            "Prove a plan: its tasks, its figures, and that it computes a model.",
        ),
        "tune": ("einc_runtime.cli.tune:tune_command", "Measure which algorithms multiply fastest on these GPUs."),
        "describe": (f"{_COMMANDS}.describe:describe_command", "Show what a plan takes, gives and needs."),
        "exprog": (f"{_COMMANDS}.exprog:group", "Check, simulate and optimize exchange programs."),
        "machine": (f"{_COMMANDS}.machine:group", "List, show, detect and import machines."),
        "library": (f"{_COMMANDS}.library:group", "List and print the definitions that come with einc."),
        "models": (f"{_COMMANDS}.models:group", "List and copy the models that come with einc."),
        "quantize": (f"{_COMMANDS}.quantize:quantize_command", "Make weights of 8 or 4 bits from a published folder."),
        "import": (f"{_COMMANDS}.imports:group", "Make models from other formats."),
        "completion": (
            f"{_COMMANDS}.completion:completion_command",
            "Complete commands, options and names in a shell.",
        ),
    },
    help="Compile AI computations for several GPUs: einc decides how every operator is cut, where each piece runs, and "
    "what moves when.",
    epilog=examples(
        "einc models copy ffn",
        "einc compile ffn.ein -m dgx-a100 -o ffn.bin",
        "einc explain ffn.bin",
        "einc run ffn.bin --inputs x=rand:0 --weights rand:1 -o y.npy",
    ),
    params=[version_option("einc")],
    context_settings={"help_option_names": ["-h", "--help"]},
)
