"""The bytes of 40 plans, as digests: `make test-versions` compares them between versions of what einc needs.

python -m tests.versions.digests > digests.json          # with the einc of this checkout
python -m tests.versions.digests --compare a.json b.json # ends with 1 where they differ
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.plan.codec import encode

MODELS = Path(__file__).parents[2] / "models"
PACKAGES = ("highspy", "numpy", "lapx", "lark", "msgpack", "msgspec")

FFN = (("tokens", "1023"), ("d_model", "512"), ("d_ff", "1792"))
CHAIN = (("scale", "8"),)
CASES: tuple[tuple[str, tuple[tuple[str, str], ...], str, int, dict[str, object]], ...] = (
    *(("ffn", (), machine, sites, {}) for machine, sites in (("dgx-a100", 8), ("dgx-v100", 8), ("dgx-h100", 7))),
    *(("ffn", FFN, machine, sites, {}) for machine in ("dgx-a100", "dgx-v100") for sites in (2, 3, 5, 8)),
    ("ffn", FFN, "dgx-h100x2", 16, {}),
    ("ffn", FFN, "hosts-25g", 4, {}),
    ("ffn", FFN, "hosts-100g-2s", 6, {}),
    ("ffn", FFN, "dgx-v100-paper", 8, {}),
    ("ffn", FFN, "host", 4, {}),
    ("ffn", FFN, "dgx-a100", 8, {"input_placement": "once"}),
    ("ffn", FFN, "dgx-v100", 6, {"input_placement": "once"}),
    ("ffn", FFN, "dgx-a100", 8, {"reproducible": True}),
    ("ffn", FFN, "dgx-v100", 8, {"selector": "eindecomp"}),
    ("ffn", FFN, "dgx-v100", 8, {"selector": "greedy"}),
    ("ffn", FFN, "dgx-v100", 7, {"selector": "random", "seed": 3}),
    ("ffn", FFN, "dgx-v100", 8, {"schedule": "naive"}),
    *(
        (f"chain_{chain}", CHAIN, machine, sites, {})
        for chain, machine, sites in (
            ("a", "dgx-v100", 4), ("b", "dgx-v100", 4), ("c", "dgx-v100", 5), ("d", "dgx-v100", 3),
            ("e", "dgx-v100", 4), ("a", "dgx-a100", 6), ("b", "dgx-a100", 8), ("c", "dgx-h100", 8),
            ("d", "dgx-h100", 7), ("e", "dgx-h100", 5),
        )
    ),
    ("digits", (), "dgx-a100", 8, {}),
    ("digits", (), "dgx-v100", 3, {}),
    ("llama_block", (), "dgx-a100", 8, {}),
    ("llama_block", (), "dgx-v100", 4, {}),
    ("llama_block", (), "dgx-h100", 6, {}),
    ("llama_decode", (), "dgx-h100", 8, {}),
    ("moe", (), "dgx-a100", 4, {}),
)  # fmt: skip


def compute_digests() -> dict[str, str]:
    """The SHA-256 of every plan's file, by what was compiled."""
    digests = {}
    for model, definitions, machine, sites, options in CASES:
        text = (MODELS / f"{model}.ein").read_text("utf-8")
        chosen = CompileOptions(machine=machine, devices=sites, definitions=definitions, **options)  # type: ignore[arg-type]
        data = encode(compile_model(text, f"{model}.ein", chosen).bundle)
        told = ", ".join([*(f"{name}={value}" for name, value in definitions), *map(str, options.items())])
        digests[f"{model} on {sites} of {machine} ({told})"] = hashlib.sha256(data).hexdigest()
    return digests


def compare(first: str, second: str) -> int:
    """Prints what differs between two files; returns how many plans do."""
    a, b = (json.loads(Path(name).read_text("utf-8")) for name in (first, second))
    differing = [name for name in a["plans"] if a["plans"][name] != b["plans"].get(name)]
    print(f"{len(a['plans']) - len(differing)} of {len(a['plans'])} plans have the same bytes")
    for packages in (a["versions"], b["versions"]):
        print("  with " + ", ".join(f"{name} {number}" for name, number in packages.items()))
    for name in differing:
        print(f"  differs: {name}")
    return len(differing)


def main() -> None:
    if sys.argv[1:2] == ["--compare"]:
        sys.exit(min(1, compare(*sys.argv[2:4])))
    document = {"versions": {name: version(name) for name in PACKAGES}, "plans": compute_digests()}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
