"""`make demo`: plans a trained network for eight sites, runs the plan on images it has not seen, and explains it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from einc_runtime.execution.data.safetensors import SafetensorsFile

HERE = Path(__file__).parent
EINC = str(Path(sys.executable).parent / "einc")


def einc(*arguments: str) -> None:
    """Runs one command of einc and shows it as a user would type it."""
    shown = [str(Path(a).relative_to(Path.cwd())) if a.startswith(str(Path.cwd())) else a for a in arguments]
    print(f"\n$ einc {shlex.join(shown)}", flush=True)
    subprocess.run([EINC, *arguments], check=True)


def unpartitioned(images: np.ndarray) -> np.ndarray:
    """The same network in eight lines of numpy, on one site and in double precision."""
    weights = SafetensorsFile(str(HERE / "weights.safetensors"))
    w = {name: weights.array(name).astype(np.float64) for name in weights.entries}
    h1 = np.maximum(images @ w["w1"] + w["b1"], 0)
    h2 = np.maximum(h1 @ w["w2"] + w["b2"], 0)
    logits = h2 @ w["w3"] + w["b3"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    images, labels = np.load(HERE / "images.npy"), np.load(HERE / "labels.npy")
    with tempfile.TemporaryDirectory() as folder:
        plan, result = f"{folder}/digits.bin", f"{folder}/p.npy"
        einc("compile", str(HERE.parent / "digits.ein"), "-m", "dgx-a100", "--devices", "8", "-o", plan)
        einc("verify", plan)
        weights = str(HERE / "weights.safetensors")
        einc("run", plan, "--inputs", str(HERE / "images.npy"), "--weights", weights, "--check", "-o", result)
        einc("explain", plan)
        planned = np.load(result)
    whole = unpartitioned(images)
    difference = float(np.abs(planned - whole).max())
    print(f"\n{len(labels)} handwritten digits that the network has not seen:")
    for name, probabilities in (("plan on 8 sites", planned), ("unpartitioned", whole)):
        right = int((probabilities.argmax(axis=1) == labels).sum())
        print(f"  {name:<16} {right} recognised, accuracy {right / len(labels):.2%}")
    print(f"  largest difference between the two: {difference:.1e}")
    if difference > 1e-5 or (planned.argmax(axis=1) != whole.argmax(axis=1)).any():
        sys.exit("the plan's result is not the unpartitioned one")


if __name__ == "__main__":
    main()
