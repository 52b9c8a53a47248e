"""From tokens to text: what is drawn, whole characters, stop texts, tokenizers and chat templates that are broken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from einc_runtime.errors import ArrayFault, KernelFault, MissingFault, UsageFault
from einc_runtime.generation import chat, render_template
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.json_grammars import MAX_SCHEMA, JsonGrammars
from einc_runtime.generation.model_folder import ModelFolder, Pooling
from einc_runtime.generation.sampling import GREEDY, Sampling, TokenSampler
from einc_runtime.generation.text_stream import TextStream
from einc_runtime.generation.tokenizer import MAX_PROMPT, TextTokenizer
from tests.support.generation_cases import byte_tokenizer, piece_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer(str(tmp_path / "tokenizer.json"))


def test_tokens_are_drawn_with_their_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], "f4"))
    assert TokenSampler(GREEDY, 0).choose(logits) == 1

    def shares(sampling: Sampling) -> np.ndarray:
        sampler = TokenSampler(sampling, 3)
        return np.bincount([sampler.choose(logits) for _ in range(900)], minlength=5) / 900

    assert np.abs(shares(Sampling(1.0)) - np.exp(logits)).max() < 0.06
    squares = np.exp(2 * logits)
    assert np.abs(shares(Sampling(0.5)) - squares / squares.sum()).max() < 0.06
    cut = shares(Sampling(1.0, 0.6))  # 0.4 and 0.3 have 0.6 together, and 0.4 alone has not
    assert np.abs(cut - np.array([0, 4, 0, 3, 0]) / 7).max() < 0.06
    assert shares(Sampling(1.0, 0.4))[1] == 1


def test_not_a_number_is_no_token() -> None:
    with pytest.raises(KernelFault, match="not finite"):
        TokenSampler(GREEDY, 0).choose(np.array([0.0, np.nan, 1.0]))
    for wrong in ((-1.0, 1.0), (1.0, 0.0), (1.0, 1.5), (float("nan"), 1.0)):
        with pytest.raises(UsageFault):
            Sampling(*wrong)


def test_text_comes_in_whole_characters(tokenizer: TextTokenizer) -> None:
    text = "aé→𝄞z"
    tokens = tokenizer.encode(text)
    assert tokens == list(text.encode())
    stream = TextStream(tokenizer)
    parts = [stream.push(token) for token in tokens]
    assert [part for part in parts if part] == list(text)
    assert stream.finish() == ""
    broken = TextStream(tokenizer)
    assert broken.push(0xC3) == ""
    assert broken.finish() == "�"


@pytest.mark.parametrize("stops", [("END",), ("NDX", "END"), ("D!", "ENDS", "EN")])
def test_nothing_of_a_stop_text_is_shown(tokenizer: TextTokenizer, stops: tuple[str, ...]) -> None:
    text = "an E, an EN and the END!"
    before = min(text.find(stop) for stop in stops if stop in text)
    stream = TextStream(tokenizer, stops)
    shown = ""
    for token in tokenizer.encode(text):
        shown += stream.push(token)
        assert text[:before].startswith(shown)
        if stream.stopped:
            break
    assert stream.stopped
    assert shown + stream.finish() == text[:before] == stream.text


def test_what_is_held_back_comes_at_the_end(tokenizer: TextTokenizer) -> None:
    stream = TextStream(tokenizer, ["END"])
    assert "".join(stream.push(token) for token in b"the EN") == "the "
    assert stream.finish() == "EN"


def test_broken_tokenizers_are_one_error_each(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (b"", b"{}", b"\xff\xfe", b'{"model": {"type": "none"}}'):
        (tmp_path / "broken.json").write_bytes(data)
        with pytest.raises(ArrayFault, match="this is no tokenizer"):
            TextTokenizer(str(tmp_path / "broken.json"))
    with pytest.raises(ArrayFault, match="is too long"):
        tokenizer.encode("x" * (MAX_PROMPT + 1))
    with pytest.raises(UsageFault, match="there is no tokenizer"):
        ModelFolder(str(tmp_path / "nowhere")).read_tokenizer()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingFault, match="needs the package tokenizers") as found:
        TextTokenizer(str(tmp_path / "tokenizer.json"))
    assert found.value.hint is not None
    assert found.value.hint.endswith("install 'jinja2>=3.1' 'tokenizers>=0.21.1'")


def test_end_tokens_and_templates_are_found(tmp_path: Path) -> None:
    folder = ModelFolder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert folder.read_end_tokens() == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert folder.read_end_tokens() == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": ["x"]}')
    with pytest.raises(ArrayFault, match="eos_token_id"):
        folder.read_end_tokens()
    with pytest.raises(UsageFault, match="no chat template"):
        folder.read_chat_template()
    settings = '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "A"}]}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    found = folder.read_chat_template()
    assert (found.text, found.variables) == ("A", {"bos_token": "<s>"})
    (tmp_path / "chat_template.jinja").write_text("B")
    assert folder.read_chat_template().text == "B"
    (tmp_path / "tokenizer_config.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(ArrayFault, match="given twice"):
        folder.read_chat_template()


def test_texts_end_where_the_tokenizer_says(tmp_path: Path) -> None:
    piece_tokenizer().save(str(tmp_path / "tokenizer.json"))
    folder = ModelFolder(str(tmp_path))
    tokenizer = folder.read_tokenizer()
    end = tokenizer.find_token("</s>")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert folder.read_end_tokens(tokenizer) == (end,)
    (tmp_path / "config.json").write_text('{"eos_token_id": [2, 1], "loss": NaN}')
    assert folder.read_end_tokens() == (2, 1)
    assert folder.read_end_tokens(tokenizer) == (2, 1, end)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<none>"}}')
    assert folder.read_end_tokens(tokenizer) == (2, 1)


def test_sampling_and_pooling_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = ModelFolder(str(tmp_path))
    assert (folder.read_sampling(), folder.read_pooling()) == (GREEDY, Pooling("mean", True))
    settings = tmp_path / "generation_config.json"
    for text, expected in (
        ('{"temperature": 0.6, "top_p": 0.9}', GREEDY),
        ('{"do_sample": false, "temperature": 0.6}', GREEDY),
        ('{"do_sample": true}', Sampling(1.0, 1.0)),
        ('{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20}', Sampling(0.6, 0.9, top_k=20)),
        ('{"repetition_penalty": 1.2, "top_k": 20}', Sampling(repetition_penalty=1.2)),
    ):
        settings.write_text(text)
        assert folder.read_sampling() == expected
    for text in ('"hot"', "-1", "true"):
        settings.write_text(f'{{"do_sample": true, "temperature": {text}}}')
        with pytest.raises(ArrayFault, match="temperature") as found:
            folder.read_sampling()
        assert found.value.where == str(settings)
    (tmp_path / "1_Pooling").mkdir()
    kinds = ["Transformer", "Pooling", "Normalize", "Dense"]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"{n}_{kind}"} for n, kind in enumerate(kinds)]
    for count, way, expected in ((2, "cls_token", Pooling("cls", False)), (3, "mean_tokens", Pooling("mean", True))):
        (tmp_path / "modules.json").write_text(json.dumps(modules[:count]))
        pooling = {"word_embedding_dimension": 8, "pooling_mode_max_tokens": False, f"pooling_mode_{way}": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        assert folder.read_pooling() == expected
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(UsageFault, match="it pools by pooling_mode_max_tokens"):
        folder.read_pooling()
    for mode, expected in (('"mean"', Pooling("mean", True)), ('["cls"]', Pooling("cls", True))):  # from version 5.4 on
        (tmp_path / "modules.json").write_text(json.dumps(modules[:3]))
        (tmp_path / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": {mode}}}')
        assert folder.read_pooling() == expected
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    with pytest.raises(UsageFault, match="it pools by lasttoken"):
        folder.read_pooling()
    (tmp_path / "modules.json").write_text(json.dumps([modules[0], {**modules[1], "path": "../other"}]))
    with pytest.raises(ArrayFault, match="expected a folder beside it"):
        folder.read_pooling()
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UsageFault, match="its modules are Transformer, Pooling, Normalize, Dense"):
        folder.read_pooling()
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ArrayFault, match="expected a list"):
        folder.read_pooling()


def test_chat_templates_are_rendered_as_transformers_does() -> None:
    template = """{{ bos_token }}{% for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
<{{ message['role'] }}>{{ message.content | trim }}{{ {'é': 1} | tojson }}
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{%- endif %}"""
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": " hi "}]
    with ChatRenderer() as renderer:
        found = renderer.render(template, messages, {"bos_token": "<s>"}, "t")
    assert found == '<s><user>hi{"é": 1}\n<assistant>'


def test_templates_see_what_transformers_gives_them() -> None:
    """The tag that marks what a model has said, and variables that are None where nobody says anything of them."""
    cases = {
        "{% if tools is not none %}T{% endif %}{% if documents is none %}D{% endif %}{{ extra is defined }}": "DFalse",
        "A{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}": "AhiFalse",
        "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':')) }}": '{"a":"é","b":1}',
    }
    with ChatRenderer() as renderer:
        for template, expected in cases.items():
            assert renderer.render(template, [{"role": "user", "content": "hi"}], {}, "t") == expected
        tools = [{"type": "function"}]
        assert renderer.render("{{ tools[0].type }}", [], {"tools": tools}, "t") == "function"


def test_bytes_that_are_no_text_end_nothing(tmp_path: Path) -> None:
    """Texts come as transformers decodes all of their tokens, joined to those of their prompts, whatever the bytes."""
    piece_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(str(tmp_path / "tokenizer.json"))
    the, cat, sat = (tokenizer.find_token(f"▁{word}") for word in ("the", "cat", "sat"))
    end, first = tokenizer.find_token("</s>"), tokenizer.find_token("<0x00>")
    assert None not in (the, cat, sat, end, first)
    text = [first + byte for byte in "é→".encode()]
    for new in (
        [sat, cat], [first + 40, first + 221, sat], [first + 0xE2, first + 0x82], [*text, sat],
        [*text, first + 255, cat],
        [end, sat], [cat, first + 255, end, first + 255], [first + 255] * 50 + [cat], [first + 0xE2, end, sat],
    ):  # fmt: skip
        for prompt in ([the], [the, cat, end], [the, first + 0xC3]):
            stream = TextStream(tokenizer, (), prompt)
            parts = [stream.push(token) for token in new] + [stream.finish()]
            if len(new) < 50:
                known = tokenizer.decode(prompt).rstrip("\ufffd")
                assert known + "".join(parts) == tokenizer.decode([*prompt, *new])
            assert "".join(parts).endswith("cat") or new[-1] != cat
    alone = TextStream(tokenizer)
    assert [alone.push(token) for token in (cat, sat)] == ["cat", " sat"]
    assert tokenizer.find_special("</s>") == end
    assert tokenizer.find_special("▁cat") is None


def test_penalties_and_cuts_are_those_of_their_definitions() -> None:
    logits = np.array([2.0, 1.5, -1.0, 0.5, 1.9], "f4")
    read = TokenSampler(Sampling(repetition_penalty=2.0), 0, [0, 2])
    assert [read.choose(logits) for _ in range(3)] == [4, 1, 0]  # 1.0, 1.5, -2.0, 0.5, 1.9; 4 is 0.95 then; 1 is 0.75
    seen = TokenSampler(Sampling(presence_penalty=0.3, frequency_penalty=0.2), 0, [0])
    assert [seen.choose(logits) for _ in range(5)] == [0, 4, 0, 1, 4]
    assert TokenSampler(Sampling(logit_bias=((3, 5.0),)), 0).choose(logits) == 3
    assert TokenSampler(GREEDY, 0).choose(logits, (0, 4)) == 1
    assert TokenSampler(GREEDY, 0).choose(logits, (), np.array([0, 0, 1, 1, 0], bool)) == 3
    for sampling, tokens in ((Sampling(1.0, top_k=2), {0, 4}), (Sampling(1.0, min_p=0.5), {0, 1, 4})):
        sampler = TokenSampler(sampling, 1)
        assert {sampler.choose(logits) for _ in range(60)} == tokens
    with pytest.raises(KernelFault, match="no token is left"):
        TokenSampler(GREEDY, 0).choose(logits, (), np.zeros(5, bool))
    for wrong in ({"min_p": 2.0}, {"top_k": -1}, {"repetition_penalty": 0.0}, {"presence_penalty": float("nan")}):
        with pytest.raises(UsageFault):
            Sampling(**wrong)  # type: ignore[arg-type]


def test_templates_without_end_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 1)
    loops = "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3
    with ChatRenderer() as renderer:
        assert renderer.render("{{ messages[0].content }}", [{"role": "user", "content": "é\n"}], {}, "file") == "é\n"
        process = renderer._process
        assert process is not None
        with pytest.raises(ArrayFault, match="fails: TemplateError: no"):
            renderer.render("{{ raise_exception('no') }}", [], {}, "file")
        with pytest.raises(ArrayFault, match=r"fails: MemoryError|seconds or"):
            renderer.render("{{ 'x' * 10 ** 10 }}", [], {}, "file")
        assert renderer.render("{{ 1 + 1 }}", [], {}, "file") == "2"
        with pytest.raises(ArrayFault, match="takes more than 1 seconds") as found:
            renderer.render(loops, [], {}, "file")
        assert found.value.where == "file"
        assert renderer.render("{{ 1 + 2 }}", [], {}, "file") == "3"  # by another process
        last = renderer._process
        assert last is not None
        last.kill()  # whoever does this
        last.wait()
        assert renderer.render("{{ 1 + 3 }}", [], {}, "file") == "4"
        last = renderer._process
    assert process.poll() is not None
    assert last is not None
    assert last.poll() is not None


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(999) %}{{ 'x' * 9999 }}{% endfor %}", "more than 4,194,304 characters"),
        ("{{ raise_exception('only users') }}", "TemplateError: only users"),
        ("{% for %}", "TemplateSyntaxError"),
    ],
)
def test_hostile_templates_are_one_error_each(template: str, message: str) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011
        render_template.render(template, {"messages": []}, MAX_PROMPT)
    assert message in f"{type(found.value).__name__}: {found.value}"


def test_texts_by_a_schema_are_json(tmp_path: Path) -> None:
    """Whatever the logits are: tokens of bytes, drawn at random among those that a schema allows."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<end>"])
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    grammars = JsonGrammars(str(file), 260, [256])
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
              "required": ["n", "ok"], "additionalProperties": False}  # fmt: skip
    source = np.random.default_rng(3)
    for grammar in grammars.make(json.dumps(schema), 3):
        sampler, tokens = TokenSampler(Sampling(1.0), 0), []
        for _ in range(200):
            token = sampler.choose(source.normal(size=260), (), grammar.find_allowed())
            if token == 256:
                break
            tokens.append(token)
            if grammar.advance(token):
                break
        document = json.loads(bytes(tokens))
        assert document.keys() == {"n", "ok"}
        assert document["n"] <= 99
    for wrong in ("{", '{"type": "thing"}', '{"pattern": "("}', '{"$ref": "http://x/y"}', "3" * (MAX_SCHEMA + 1)):
        with pytest.raises(ArrayFault, match="JSON schema"):
            grammars.make(wrong, 1)
