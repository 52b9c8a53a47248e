"""Every hint of the product at packages, and what makes it appear where they are missing."""

from __future__ import annotations

from dataclasses import dataclass, field

RAISE = """
import sys
from einc_runtime.errors import MissingFault
try:
    STATEMENT
except MissingFault as fault:
    sys.exit(fault.render())
"""
NOTE = """
import sys
import msgspec
from einc_runtime.execution import backends
from einc_runtime.plan.codec import read_bundle
backends.count_visible_gpus = lambda: 2
print(backends.note_unused_gpus(msgspec.structs.replace(read_bundle(sys.argv[1]), machine="dgx-a100")), file=sys.stderr)
"""
RENDER = """from einc_runtime.generation.chat import ChatRenderer
    with ChatRenderer() as chat:
        chat.render("{{ messages[0].content }}", [{"role": "user", "content": "What?"}], {}, "a template")"""


@dataclass(frozen=True)
class HintCase:
    """The `file` of the product has the hint, which `words` lead to, with `variables` in the environment. After what it
    says, they end with code 0. Among them, EINC is the command, PYTHON the interpreter, PLAN a plan, MODELS the folder
    of models, and OUT one for what is written. Some packages are only missing with the `compiler`, or only without it.
    `large` names one of some hundred megabytes, of which it is enough to see that it would be installed."""

    file: str
    words: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    compiler: bool | None = None
    large: str = ""


def write(statement: str) -> tuple[str, ...]:
    """A program with this statement."""
    return "PYTHON", "-c", RAISE.replace("STATEMENT", statement)


RUN = ("EINC", "run", "PLAN", "--inputs", "rand:0", "--weights", "rand:1")
SMALL = ("-D", "tokens=8", "-D", "d_model=8", "-D", "d_ff=8")
RUNTIME = "runtime/einc_runtime/"
CASES = (
    HintCase("einc/cli/model_serving.py", ("EINC", "serve", "MODELS/stories", "--port", "0"), compiler=True),
    HintCase(
        RUNTIME + "generation/tokenizer.py",
        ("EINC", "generate", "MODELS/stories", "Mia", "--max-tokens", "2"),
        compiler=True,
    ),
    HintCase(
        RUNTIME + "generation/tokenizer.py",
        write("from einc_runtime.generation.tokenizer import *; TextTokenizer('MODELS/stories/tokenizer.json')"),
    ),
    HintCase(
        "einc/calibration/gpus.py",
        write("from einc.calibration.gpus import require_scipy; require_scipy()"),
        compiler=True,
    ),
    HintCase(
        "einc/importers/pytorch/exporting.py",
        write("import einc; einc.from_torch(None)"),
        compiler=True,
        large="torch",
    ),
    HintCase(
        "einc/importers/pytorch/published.py",
        write("from einc.importers.pytorch.published import find_longest; find_longest({}, 'gpt2', 'config.json')"),
        compiler=True,
        large="torch",
    ),
    HintCase(
        "einc/importers/onnx/files.py",
        write("from einc.importers.onnx.files import load_onnx; load_onnx()"),
        compiler=True,
    ),
    HintCase(RUNTIME + "generation/chat.py", write(RENDER), compiler=False),
    HintCase(
        RUNTIME + "generation/json_grammars.py",
        write("from einc_runtime.generation.json_grammars import *; JsonGrammars('', 1, ()).make('', 0)"),
    ),
    HintCase(RUNTIME + "cli/launching.py", (*RUN, "--ranks", "2")),
    HintCase(RUNTIME + "execution/ranks/mpi.py", RUN, {"PMI_RANK": "0", "PMI_SIZE": "2"}),
    HintCase(
        RUNTIME + "execution/cuda/precompile.py",
        ("EINC", "compile", "MODELS/ffn.ein", "-m", "dgx-a100", "--devices", "1", *SMALL, "-o", "OUT/ffn.bin",
         "--precompile", "sm_80"),
        compiler=True,
        large="triton",
    ),
    HintCase(
        RUNTIME + "kernels/cuda/triton_compile.py",
        write("from einc_runtime.kernels.cuda import triton_compile; triton_compile._import_triton()"),
        large="triton",
    ),
    HintCase(RUNTIME + "execution/cuda/cupy_driver.py", (*RUN, "--backend", "cuda"), large="cupy"),
    HintCase(
        RUNTIME + "kernels/cuda/modules.py",
        write("from einc_runtime.kernels.cuda.modules import CupyModules; CupyModules()"),
        large="cupy",
    ),
    HintCase(
        RUNTIME + "kernels/cuda/cublas.py",
        write("from einc_runtime.kernels.cuda.cublas import open_library; open_library()"),
        large="nvidia-cublas",
    ),
    HintCase(
        RUNTIME + "execution/cuda/cupy_nccl.py",
        write("from einc_runtime.execution.cuda import cupy_nccl; cupy_nccl._load()"),
        large="nvidia-nccl",
    ),
    HintCase(RUNTIME + "execution/backends.py", ("PYTHON", "-c", NOTE, "PLAN"), large="cupy"),
)  # fmt: skip
