"""What `--inputs` and `--weights` ask for: names and files, and files that serve the tensor of their name."""

from __future__ import annotations

import pytest

from einc_runtime.cli.arrays import ArrayArgument, assign_arguments, parse_arguments
from einc_runtime.errors import ArrayFault, UsageFault


def test_names_are_taken_from_files_and_paths_may_contain_equals() -> None:
    arguments = ["x=a.npy", "layer.0.w=b=c.npy", "x=", "=a.npy", "run-1/lr=3.npy", "a.npy"]
    assert parse_arguments(arguments) == [
        ArrayArgument("x", "a.npy"), ArrayArgument("layer.0.w", "b=c.npy"),
        *(ArrayArgument(None, argument) for argument in arguments[2:]),
    ]  # fmt: skip


def test_a_file_alone_serves_the_tensor_of_its_name_or_the_only_one() -> None:
    assert list(assign_arguments(parse_arguments(["some/b.npy", "a=z.npy"]), ["a", "b"], "input")) == ["b", "a"]
    assert list(assign_arguments(parse_arguments(["z.npy"]), ["a"], "input")) == ["a"]
    with pytest.raises(UsageFault, match="does not say which input it is for"):
        assign_arguments(parse_arguments(["z.npy"]), ["a", "b"], "input")
    with pytest.raises(ArrayFault, match="input 'b' is given twice"):
        assign_arguments(parse_arguments(["b.npy", "b=z.npy"]), ["a", "b"], "input")
