"""Public reports of folders and requests that others have stumbled over: here they are understood, or one clear error.

`data/public_cases.json` has them, each with its report. Those that need transformers for comparison are in
`tests/reference/live_public_cases.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from einc.serving.fields import ApiError
from einc.serving.requests import parse_chat, parse_completion, parse_embedding
from einc_runtime.generation.model_folder import ModelFolder
from tests.support.import_configs import LLAMA, faults, imported
from tests.support.public_cases import CASES, list_cases, write_tokenizer

PARSERS: dict[str, Any] = {"chat": parse_chat, "completion": parse_completion, "embedding": parse_embedding}


def test_each_case_names_its_report() -> None:
    assert len(CASES) >= 40
    assert len({case["name"] for case in CASES}) == len(CASES)
    assert all(case["report"].startswith("https://github.com/") and case["fault"] for case in CASES)


@pytest.mark.parametrize("case", list_cases("request"))
def test_a_request_is_understood_or_refused(case: dict[str, Any]) -> None:
    parse, body = PARSERS[case["path"]], json.dumps(case["body"]).encode()
    if case["expect"] != "equal":
        with pytest.raises(ApiError) as caught:
            parse(body)
        assert caught.value.status == 400
        document = caught.value.document()["error"]
        assert case["expect"] in (document["param"], document["message"].partition(":")[0])
        return
    request = parse(body)
    if "same" in case:
        assert request == parse(json.dumps(case["same"]).encode())
    if "variables" in case:
        assert request.variables == case["variables"]
    for name, value in case.get("has", {}).items():
        stated = getattr(request, name, None) if hasattr(request, name) else getattr(request.how, name)
        assert json.loads(json.dumps(stated)) == value


@pytest.mark.parametrize("case", list_cases("ends"))
def test_a_text_ends_where_its_folder_says(case: dict[str, Any], tmp_path: Path) -> None:
    write_tokenizer("bytes", tmp_path)
    for name, document in case["files"].items():
        (tmp_path / name).write_text(json.dumps(document))
    folder = ModelFolder(str(tmp_path))
    assert list(folder.read_end_tokens(folder.read_tokenizer())) == case["expect"]


@pytest.mark.parametrize("case", list_cases("quantization"))
def test_a_quantization_is_understood_or_refused(case: dict[str, Any]) -> None:
    config = LLAMA | {"quantization_config": case["quantization"]}
    if case["expect"] == "equal":
        assert imported(config).text == imported(LLAMA | {"quantization_config": case["same"]}).text
    else:
        assert any(case["expect"] in fault for fault in faults(config))
