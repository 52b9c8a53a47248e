"""What a training step does around its optimizer: it adds up, scales and clips gradients, and may change nothing.

Gradients of several runs can be added up: each run has a part of a batch, the last one changes the weights, and others
leave all but the sums as they are. Losses of f16 products are scaled up so that small gradients do not vanish, as
torch.amp.GradScaler does: where a gradient is infinite or no number, the step changes nothing, and the scale is halved;
after many good steps it is doubled.
"""

from __future__ import annotations

from einc.core.tensor import DType, TensorDesc
from einc.errors import UsageError
from einc.frontend.single_equation import add_equation
from einc.graph.builder import GraphBuilder
from einc.graph.layers import LAYERS_OF_STEP, find_longest_repetition
from einc.ops import registry

NEXT = "{}.next"
"""The output that has what a weight, or what an optimizer keeps, is in the next step."""
SHARE, CHANGES = "accumulate.share", "accumulate.changes"
"""The inputs of a step that adds up gradients: the part of the batch that a run has, of f32, and whether this run is
the last of a step and changes the weights, a bool. No name in a model text has a dot."""
CLIP_EPS = 1e-6
"""What is added to the norm of gradients before it divides, as in torch.nn.utils.clip_grad_norm_."""
FIRST_SCALE, GROWTH_STEPS = 65536.0, 2000.0
"""How losses of f16 products are scaled at first, and after how many good steps twice as much, as in
torch.amp.GradScaler."""

_F32 = TensorDesc((), (), DType.F32)


class StepControl:
    """The inputs and states of a step that are for no single weight, in a graph under construction.

    `seed` is the gradient of the loss itself, None where it is 1. `kept` are the names of all states so far.
    """

    def __init__(self, builder: GraphBuilder, loss: str, is_scaled: bool, accumulates: bool) -> None:
        self._builder, self._loss = builder, loss
        self.kept: list[str] = []
        self._share = builder.input(SHARE, _F32) if accumulates else None
        self._changes: str | None = None
        if accumulates:
            self._changes = builder.input(CHANGES, TensorDesc((), (), DType.BOOL))
        self._scale: str | None = None
        self._finite: str | None = None
        if is_scaled:
            if builder.desc(loss).dtype is DType.F16:
                hint = 'compute it in f32: cast(logits, "f32")'
                raise UsageError(f"the loss '{loss}' is f16, which has no room for a scaled loss", hint=hint)
            state = builder.input(f"{loss}.scale", _F32)
            self._scale = self._write(f"s[] = where(s[] == 0.0, {FIRST_SCALE!r}, s[])", s=state)
        self._applied = self._changes
        self.seed = self._make_seed()

    def _make_seed(self) -> str | None:
        if self._share is not None and self._scale is not None:
            return self._write("s[] = a[] * b[]", a=self._share, b=self._scale)
        return self._share or self._scale

    def add_up(self, gradients: dict[str, str]) -> None:
        """Adds what earlier runs have found to gradients of weights."""
        if self._changes is None:
            return
        for name, gradient in gradients.items():
            state = self._builder.input(f"{name}.sum", self._builder.desc(gradient))
            gradients[name] = self._call("add", state, gradient)
            self.keep(state, self._call("where", self._changes, 0.0, gradients[name]))

    def scale_gradients(self, gradients: dict[str, str], clip: float | None) -> None:
        """Takes the scale of the loss out of gradients, and scales them by min(1, clip / their norm)."""
        if clip is None and self._scale is None:
            return
        total = self._add_squares(gradients)
        if self._scale is not None:
            self._finite = self._write("f[] = t[] * 0.0 == 0.0", t=total)
            self._applied = self._finite
            if self._changes is not None:
                self._applied = self._write("a[] = and(f[], c[])", f=self._finite, c=self._changes)
        over, values = "", {} if self._scale is None else {"s": self._scale}
        if self._scale is not None:
            over = " / s[]"
        text = f"f[] = 1.0{over}"
        if clip is not None:
            text = f"f[] = min(1.0, {clip!r} / (sqrt(t[]){over} + {CLIP_EPS!r})){over}"
            values["t"] = total
        factor = self._write(text, **values)
        for name, gradient in gradients.items():
            scale = cast(self._builder, factor, self._builder.desc(gradient).dtype)
            gradients[name] = self._call("mul", gradient, scale)

    def _add_squares(self, gradients: dict[str, str]) -> str:
        """The sum of the squares of all gradients. Those of many equal layers are added up layer by layer, in equal
        operators: elementwise sums alone would become one operator, which reads all layers."""
        numbers: dict[TensorDesc, int] = {}
        names = list(gradients.values())
        kinds = [numbers.setdefault(self._builder.desc(name), len(numbers)) for name in names]
        first, size, count = find_longest_repetition(kinds)
        ends = {first + size * layer for layer in range(count + 1)} if count > LAYERS_OF_STEP else set()
        total = part = ""
        for number, name in enumerate(names, 1):
            value = cast(self._builder, name, DType.F32)
            indices = ", ".join(f"i{axis}" for axis in range(self._builder.desc(value).rank))
            over = f"sum[{indices}]" if indices else ""
            square = self._write(f"s[] = {over}(g[{indices}] * g[{indices}])", g=value)
            part = self._call("add", part, square) if part else square
            if number in ends or number == len(names):
                total = self._add_apart(total, part) if total else part
                part = ""
        return total

    def _add_apart(self, total: str, part: str) -> str:
        """The sum of two numbers, by an operator that no other joins, as it aggregates."""
        both = self._write("b[part = 2] = where(part == 0, t[], p[])", t=total, p=part)
        return self._write("s[] = sum[part](b[part])", b=both)

    def count_steps(self) -> str | None:
        """The number of a step, from 1, where not all steps count; None where the caller knows it."""
        if self._finite is None or self._applied is None:
            return None
        state = self._builder.input(f"{self._loss}.steps", _F32)
        self.keep(state, self._write("n[] = where(a[], n[] + 1.0, n[])", a=self._applied, n=state))
        return self._write("n[] = n[] + 1.0", n=state)

    def choose(self, new: str, old: str) -> str:
        """The new value of a state where the step changes it, else the old one."""
        return new if self._applied is None else self._call("where", self._applied, new, old)

    def keep(self, state: str, value: str) -> None:
        """Makes a value that of a state in the next step."""
        self._builder.save(self._builder.rename(value, NEXT.format(state)))
        self.kept.append(state)

    def finish(self) -> None:
        """Adds the next scale of the loss, and the good steps since it was changed."""
        if self._scale is None or self._finite is None:
            return
        good = self._builder.input(f"{self._loss}.good", _F32)
        doubled = self._write(f"d[] = g[] + 1.0 >= {GROWTH_STEPS!r}", g=good)
        scale, count = (
            "where(f[], where(d[], s[] * 2.0, s[]), s[] * 0.5)",
            "where(f[], where(d[], 0.0, g[] + 1.0), 0.0)",
        )
        values = {"f": self._finite, "d": doubled}
        if self._changes is not None:
            scale, count = f"where(c[], {scale}, s[])", f"where(c[], {count}, g[])"
            values["c"] = self._changes
        self.keep(good, self._write(f"n[] = {count}", g=good, **values))
        self.keep(f"{self._loss}.scale", self._write(f"n[] = {scale}", s=self._scale, **values))

    def _write(self, text: str, **values: str) -> str:
        described = {key: (name, self._builder.desc(name)) for key, name in values.items()}
        return add_equation(text, described, self._builder, self._builder.unique_name("control"))

    def _call(self, function: str, *arguments: str | float) -> str:
        """The result of an elementwise operator on tensors, by their names, and numbers."""
        operands = [self._builder.desc(x) if isinstance(x, str) else x for x in arguments]
        names = [x for x in arguments if isinstance(x, str)]
        return self._builder.apply(registry.call(function, operands, {}), names)[0]


def cast(builder: GraphBuilder, name: str, dtype: DType) -> str:
    """The tensor of that name in an element type."""
    desc = builder.desc(name)
    if desc.dtype is dtype:
        return name
    return builder.apply(registry.call("cast", [desc], {"dtype": dtype.value}), (name,))[0]
