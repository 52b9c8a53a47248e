"""Libraries that compute attention: the package flash-attn, and PyTorch with whatever its own attention would take.

A library is asked for by the name that EINC_ATTENTION has for it, and imported only then. What it says it does is not
taken for granted: before an invocation of a kind (type, width, causal, window, group) is left to a library, it has
to compute a small one of that kind as it is defined, with its lse. So a library whose causal mask is aligned otherwise,
or whose lse has another base or layout, is seen here and not in a result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from runtime.dtypes import Array

ENVIRONMENT = "EINC_ATTENTION"
OWN = "einc"
"""The name of our own kernel, which ends the list."""

_CUDNN = 3  # torch.nn.attention.SDPBackend.CUDNN_ATTENTION
_FAR = 0.03
"""More than 16-bit types lose, and far less than what another mask or another base of the logarithm makes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences of queries and keys one behind the other: where each begins, and where the last one ends.

    Keys count from `first_key` of the block. Of a sequence the last query and the last key are at one place.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    first_key: int
    causal: bool
    window: int
    scale: float

    @property
    def longest(self) -> tuple[int, int]:
        return max(_gaps(self.queries)), max(_gaps(self.keys))

    @property
    def one_square(self) -> bool:
        """One sequence of which all causal masks mean the same, whichever corner they are aligned to."""
        return len(self.queries) == 2 and not self.window and (not self.causal or self.queries == self.keys)

    @property
    def whole_tiles(self) -> bool:
        return not any(mark % 64 for mark in (*self.queries, *self.keys))

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for invocations whose `small` ones are."""
        return small(self).queries, small(self).keys, self.causal, self.window > 0, self.scale


Attend = Callable[[Any, Any, Any, Any, Any, Packed], tuple[Any, Any]]
"""Of q, k and v with the dimensions tokens, heads, elements; where sequences of queries and of keys begin and the last
one ends, as tensors of i32; and what is to be computed. Gives o in the form of q, and the lse by heads and tokens."""


class Library(Protocol):
    name: str
    version: str

    def choices(self, q: Any, k: Any, v: Any, how: Packed) -> list[tuple[str, Attend]]:
        """What of the library may be taken for operands like these, with its name; the best first."""


class TorchAttention:
    """cuDNN's kernel where it can be asked for (one sequence, no window) and is the faster one, from Hopper on, or
    where PyTorch's scaled_dot_product_attention would take it; or else PyTorch's build of flash-attn."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.version = str(torch.__version__)
        self._flash: Any = torch.ops.aten._flash_attention_forward
        self._cudnn: Any = getattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", None)
        require_cuda(torch)

    def choices(self, q: Any, k: Any, v: Any, how: Packed) -> list[tuple[str, Attend]]:
        found: list[tuple[str, Attend]] = [("flash", self._by_flash)]
        if self._cudnn is not None and how.one_square:
            operands = [_batched(x) for x in (q, k, v)]
            asked = {"scale": how.scale, "enable_gqa": True}
            chosen = self._torch._fused_sdp_choice(*operands, None, 0.0, how.causal, **asked)
            if chosen == _CUDNN or from_hopper_on(self._torch, q):
                found.insert(0, ("cudnn", self._by_cudnn))
        return found

    def _by_cudnn(self, q: Any, k: Any, v: Any, _: Any, __: Any, how: Packed) -> tuple[Any, Any]:
        operands = [_batched(x) for x in (q, k, v)]
        found = self._cudnn(*operands, None, True, 0.0, how.causal, False, scale=how.scale)
        return found[0][0].permute(1, 0, 2), found[1].reshape(q.shape[1], q.shape[0])

    def _by_flash(self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: Packed) -> tuple[Any, Any]:
        limits: dict[str, int] = {}
        if how.window:
            limits = {"window_size_left": how.window - 1, "window_size_right": 0 if how.causal else -1}
        found = self._flash(
            q, k, v, q_bounds, k_bounds, *how.longest, 0.0, how.causal, False, scale=how.scale, **limits
        )
        return found[0], found[1]


class FlashAttention:
    """The package flash-attn."""

    name = "flash-attn"

    def __init__(self) -> None:
        import flash_attn
        import torch

        self.version = str(flash_attn.__version__)
        self._forward: Any = flash_attn.flash_attn_varlen_func
        require_cuda(torch)

    def choices(self, q: Any, k: Any, v: Any, how: Packed) -> list[tuple[str, Attend]]:
        return [("varlen", self._attend)]

    def _attend(self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: Packed) -> tuple[Any, Any]:
        window = (how.window - 1 if how.window else -1, 0 if how.causal else -1)
        found = self._forward(
            q, k, v, q_bounds, k_bounds, *how.longest, 0.0, softmax_scale=how.scale, causal=how.causal,
            window_size=window, return_attn_probs=True,
        )  # fmt: skip
        return found[0], found[1]


LIBRARIES: dict[str, tuple[str, Callable[[], Library]]] = {
    "flash": ("flash_attn", FlashAttention),
    "torch": ("torch", TorchAttention),
}
"""Name in EINC_ATTENTION -> module, and what to make of it; in the order in which they are preferred."""


class Useless(Exception):
    """A library that is there and cannot be used."""


def require_cuda(torch: Any) -> None:
    """Raises ImportError for a PyTorch without CUDA, and Useless for one that cannot use this GPU's memory and ours."""
    if torch.version.cuda is None:
        raise ImportError("a build of PyTorch for the CPU")
    if not torch.cuda.is_available():
        raise Useless(f"PyTorch {torch.__version__} finds no GPU")
    if not hasattr(torch.cuda, "use_mem_pool") or not hasattr(torch.cuda.MemPool, "use_count"):
        raise Useless(f"PyTorch {torch.__version__} has no pools of memory that last")


def from_hopper_on(torch: Any, tensor: Any) -> bool:
    """Whether the tensor's device has the tensor cores that PyTorch's build of flash-attn (version 2) leaves alone."""
    return bool(tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0))


def libraries() -> tuple[list[Library], list[str]]:
    """Those that are wanted and installed, in their order, and what is wrong with others."""
    found: list[Library] = []
    notes: list[str] = []
    for name in os.environ.get(ENVIRONMENT, ",".join(LIBRARIES)).split(","):
        name = name.strip()
        if name == OWN:
            break
        if name not in LIBRARIES:
            if name:
                notes.append(f"{ENVIRONMENT} names '{name[:40]}', and there are {', '.join((*LIBRARIES, OWN))}")
            continue
        module, make = LIBRARIES[name]
        try:
            if find_spec(module) is not None and not _for_cpus(module):
                found.append(make())
        except ImportError as error:
            if module == "flash_attn":  # built for another PyTorch; a PyTorch without CUDA is as good as absent
                notes.append(passed_over(name, error))
        except Exception as error:  # whatever a library's own start does
            notes.append(passed_over(name, error))
    return found, notes


def _for_cpus(module: str) -> bool:
    """Whether it says so in its version, and so need not be imported, which takes seconds."""
    try:
        return metadata.version(module).endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def passed_over(name: str, reason: object) -> str:
    """One line that says that a library is not used, and why."""
    named = isinstance(reason, Exception) and not isinstance(reason, Useless)
    said = f"{type(reason).__name__}: {reason}" if named else str(reason)
    return f"attention of {name} is not used: {' '.join(said.split())[:200]}"


def defined(q: Array, k: Array, v: Array, how: Packed) -> tuple[Array, Array]:
    """What is to be computed, in float64: arrays as in `Attend`."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    o, lse = np.zeros(q.shape), np.zeros((q.shape[1], q.shape[0]))
    group = q.shape[1] // k.shape[1]
    for (q0, q1), (k0, k1) in zip(itertools.pairwise(how.queries), itertools.pairwise(how.keys), strict=True):
        place = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = np.arange(k1 - k0)
        seen = (key <= place) if how.causal else np.ones((q1 - q0, k1 - k0), bool)
        if how.window:
            seen &= key > place - how.window
        for h in range(q.shape[1]):
            scores = np.where(seen, how.scale * q[q0:q1, h] @ k[k0:k1, h // group].T, -np.inf)
            most = scores.max(1, keepdims=True)
            weights = np.exp(scores - most)
            total = weights.sum(1, keepdims=True)
            o[q0:q1, h], lse[h, q0:q1] = weights @ v[k0:k1, h // group] / total, (most + np.log(total))[:, 0]
    return o, lse


def small(how: Packed) -> Packed:
    """A small invocation of the same kind: one sequence where that is all, of whole tiles where it has such, and with
    more keys than queries where their numbers differ; otherwise two sequences of different lengths."""
    window = min(how.window, 7)
    if how.one_square:
        own, more = (128, 192) if how.whole_tiles else (130, 199)
        return Packed((0, own), (0, own if how.queries == how.keys else more), 0, how.causal, window, how.scale)
    queries = (0, 1, 2) if how.longest[0] == 1 else (0, 23, 40)
    return Packed(queries, (0, 31, 72), 0, how.causal, window, how.scale)


def flaw(attend: Attend, how: Packed, kind: str, group: int, width: int, device: Any) -> str | None:
    """What is wrong with how a library computes a small invocation of the kind; None if it is right."""
    import torch

    try:
        rng, few = np.random.default_rng(5), small(how)
        counts = ((few.queries[-1], 2 * group), (few.keys[-1], 2), (few.keys[-1], 2))
        arrays = [rng.standard_normal((heads, tokens, width)) for tokens, heads in counts]
        arrays[0] *= min(8.0, 1 / max(1e-6, abs(few.scale) * width**0.5))  # scores of moderate size, whatever the scale
        dtype = torch.float16 if kind == "f16" else torch.bfloat16
        tensors = [torch.from_numpy(x).to(dtype).to(device).permute(1, 0, 2) for x in arrays]
        rounded = [x.double().cpu().numpy() for x in tensors]
        bounds = [torch.tensor(marks, dtype=torch.int32, device=device) for marks in (few.queries, few.keys)]
        with torch.no_grad():
            found = attend(tensors[0], tensors[1], tensors[2], bounds[0], bounds[1], few)
        wanted = defined(rounded[0], rounded[1], rounded[2], few)
        for name, own, true in zip(("result", "lse"), found, wanted, strict=True):
            if tuple(own.shape) != true.shape:
                return f"its {name} has the shape {tuple(own.shape)}, and not {true.shape}"
            error = float(np.abs(own.double().cpu().numpy() - true).max())
            if not error <= _FAR * max(1.0, float(np.abs(true).max())):
                return f"its {name} of a small test is off by {error:.2g}"
    except Exception as error:  # whatever a library says of a device that it has nothing for
        return f"{type(error).__name__}: {error}"
    return None


def _batched(tensor: Any) -> Any:
    """Tokens, heads, elements as a batch of one of heads, tokens, elements."""
    return tensor.permute(1, 0, 2)[None]


def _gaps(marks: Sequence[int]) -> list[int]:
    return [up - lo for lo, up in itertools.pairwise(marks)]
