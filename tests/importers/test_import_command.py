"""`einc import hf` as a command: folders, files, exit codes, and code that is never run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from einc.cli.main import main
from einc.frontend import build
from tests.support.import_configs import LLAMA
from tests.support.paced import within


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "Model 7B"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    return made


def test_the_command(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m.ein"
    assert main(["import", "hf", str(folder), "-o", str(target), "--tokens", "5"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "there are no weights beside it" in err
    assert build(target.read_text(), "m.ein").name == "model_7b"
    assert main(["import", "hf", str(folder), "-o", str(target), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["model"] == str(target)
    assert main(["import", "hf", str(folder), "-o", "-"]) == 0
    assert build(capfd.readouterr().out, "m.ein").outputs[-1] == "logits"


def test_the_command_fails_as_it_should(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def code(*arguments: object) -> int:
        result = main(["import", "hf", *map(str, arguments), "-o", str(tmp_path / "m.ein")])
        error = capfd.readouterr().err
        assert "Traceback" not in error
        assert error.startswith("einc: ")
        return result

    assert code(tmp_path / "nowhere") == 2
    assert code(tmp_path) == 2
    assert code(folder / "config.json") == 2
    assert code(folder, "--pool", "mean") == 2
    assert code(folder, "--tokens", "0") == 2
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    assert code(folder) == 65
    (folder / "model.safetensors").unlink()
    safetensors.numpy.save_file({"x": np.zeros(3)}, folder / "model.safetensors")
    assert code(folder) == 65
    (folder / "model.safetensors").unlink()
    (folder / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": "many"}))
    assert code(folder) == 65
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert code(folder) == 74
    assert not (tmp_path / "m.ein").exists()


def test_numbers_that_are_too_large_together_are_the_configurations_fault(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 6 * 2**21, "vocab_size": 2**31}))
    assert main(["import", "hf", str(folder), "-o", str(tmp_path / "m.ein"), "--batch", "1000000"]) in (0, 65)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 400}))
    with within(60):
        assert main(["import", "hf", str(folder), "-o", str(tmp_path / "m.ein")]) in (0, 65)
    assert "Traceback" not in capfd.readouterr().err


def test_code_in_a_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"auto_map": {"AutoModel": "modeling_x.X"}}))
    (folder / "modeling_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    program = str(Path(sys.executable).with_name("einc"))
    subprocess.run([program, "import", "hf", folder, "-o", tmp_path / "m.ein"], check=True, capture_output=True)
    assert not (tmp_path / "ran").exists()
