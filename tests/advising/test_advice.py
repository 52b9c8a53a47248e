"""`einc advise`: its figures are those of `einc compile`, and what it concludes from them follows by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from einc.advising import figures as figures_module
from einc.advising import planning
from einc.advising.advice import Advice, Objective, advise
from einc.advising.documents import describe_best
from einc.advising.figures import FiguresCache
from einc.advising.option import Limits, Offer
from einc.advising.workloads import ChatWorkload, TextWorkload, describe_excess
from einc.compiler import compile_model
from einc.errors import ModelError
from einc.generation.decoder_plans import make_pins
from einc.machines.load import load_machine
from einc.options import CompileOptions
from einc.report.html.plot import LogarithmicAxis
from einc.search import fastest
from einc.search.lower_bound import bound_kernels
from einc_runtime.plan.codec import decode

STORIES = Path(__file__).parents[2] / "models" / "stories"
ROWS = (
    "model rows\nparam batch = 3\ndim rows = 50 * batch\ndim n = 64\ninput x : f32[rows, n]\nweight w : f32[n, n]\n"
    "output y = relu(matmul(x, w))\n"
)
DEEP = ROWS.replace("relu(matmul(x, w))", "relu(matmul(relu(matmul(x, w)), w))")
Run = Callable[..., str]


@pytest.fixture
def einc(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command, and returns what it prints; a command that fails returns what it says of it."""
    from einc.cli.main import main

    def run(*arguments: object) -> str:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return out if code == 0 else f"{code}: {err}"

    return run


@pytest.fixture
def no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All options are planned, in this process alone."""
    monkeypatch.setattr(planning, "ALONE_SECONDS", math.inf)
    monkeypatch.setattr(figures_module, "bound_kernels", lambda *_: 0.0)


@pytest.fixture
def less_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short search, the same for what is advised and for what is compiled: in this process alone."""
    monkeypatch.setattr(fastest, "MAX_SEARCH_EFFORT", 300)
    monkeypatch.setattr(planning, "ALONE_SECONDS", math.inf)


def ask(
    batches: Sequence[int],
    machines: Sequence[str],
    folder: Path,
    objective: Objective = "throughput",
    limits: Limits = Limits(),  # noqa: B008
    **more: Any,
) -> Advice:
    workload = TextWorkload("rows", ROWS, tuple(batches), "batch")
    offers = [Offer(CompileOptions(machine=name, devices=2), hourly) for hourly, name in enumerate(machines, 1)]
    return advise(workload, offers, objective, limits, FiguresCache(folder), **more)


@pytest.mark.usefixtures("less_effort")
def test_figures_of_a_decoder_are_those_of_its_plans(einc: Run, tmp_path: Path) -> None:
    folder = tmp_path / "one-layer"
    folder.mkdir()
    config = json.loads((STORIES / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    command = ["advise", folder, "-m", "dgx-h100:2", "--users", "5", "--prompt", "40", "--answer", "9"]
    document = json.loads(einc(*command, "--price", "h100=2/h", "--json"))
    options = document["options"]
    assert [(o["replicas"], o["prompt_sites"], o["users"]) for o in options] == [(1, 0, 5), (2, 0, 5), (1, 1, 5)]
    option, apart = options[0], options[2]
    token, prompt = option["plans"]["token"], option["plans"]["prompt"]

    einc("import", "hf", folder, "--tokens", 49, "-o", tmp_path / "token.ein")
    einc("import", "hf", folder, "--tokens", 40, "--caches", "-o", tmp_path / "prompt.ein")
    sites = ("-m", "dgx-h100", "--devices", "0,1", "--json")
    step = ("-D", "sequences=5", "--step", "tokens=1x5")
    compiled = json.loads(einc("compile", tmp_path / "token.ein", *step, *sites, "-o", tmp_path / "token.bin"))
    assert token["predicted_ms"] == compiled["predicted_ms"]
    assert token["memory_bytes"] == max(compiled["memory_bytes"])

    graph = compile_model((tmp_path / "prompt.ein").read_text(), "prompt.ein", CompileOptions()).graph
    names = {node.name for node in graph.nodes}
    pins = [pin for pin in make_pins(decode((tmp_path / "token.bin").read_bytes())) if pin.pattern in names]
    assert pins
    words = [word for pin in pins for word in ("--pin", str(pin))]
    compiled = json.loads(einc("compile", tmp_path / "prompt.ein", *sites, *words, "-o", tmp_path / "prompt.bin"))
    assert prompt["predicted_ms"] == compiled["predicted_ms"]

    round_ms = 8 * token["predicted_ms"] + 5 * prompt["predicted_ms"]
    assert (option["first_ms"], option["latency_ms"]) == (prompt["predicted_ms"], token["predicted_ms"])
    assert option["round_ms"] == pytest.approx(round_ms)
    assert option["rate"] == pytest.approx(5 * 9 / round_ms * 1e3)
    assert option["hourly"] == 4.0
    assert option["unit_cost"] == pytest.approx(4 / 3600 / option["rate"] * 1e6)

    # One site for prompts, one for tokens: a prompt's caches of 40 of 49 places go over one link.
    places, layers, heads, width = 49, 1, 4, 12
    size = 2 * layers * heads * width * 4 * 5 * places * 40 // (places * 5)
    machine = load_machine("dgx-h100").restrict([0, 1])
    moving_ms = machine.transfer_latency_us / 1e3 + size / (machine.widths[1, 0] * 1e6)
    prompt_ms, token_ms = (apart["plans"][name]["predicted_ms"] for name in ("prompt", "token"))
    assert apart["first_ms"] == pytest.approx(prompt_ms + moving_ms)
    assert apart["round_ms"] == pytest.approx(max(5 * prompt_ms, 8 * token_ms))


@pytest.mark.usefixtures("less_effort", "no_bounds")
@pytest.mark.slow
def test_prompts_in_stages_are_read_together(einc: Run, tmp_path: Path) -> None:
    folder = tmp_path / "two-layers"
    folder.mkdir()
    config = json.loads((STORIES / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    command = ["advise", folder, "-m", "dgx-h100:4", "--users", "8", "--prompt", "40", "--answer", "9", "--json"]
    options = json.loads(einc(*command))["options"]
    option = next(option for option in options if option["stages"] > 1)
    apart = next(option for option in options if option["prompt_sites"] == 2)
    assert (option["prompt_sites"], option["stages"], option["microbatches"]) == (2, 2, 4)
    einc("import", "hf", folder, "--batch", 4, "--tokens", 40, "--caches", "-o", tmp_path / "prompts.ein")
    how = ("-m", "dgx-h100", "--devices", "2,3", "--stages", 2, "--microbatches", 4, "--replicas", 1, "--json")
    compiled = json.loads(einc("compile", tmp_path / "prompts.ein", *how, "-o", tmp_path / "prompts.bin"))
    prompt_ms, token_ms = (option["plans"][name]["predicted_ms"] for name in ("prompt", "token"))
    assert prompt_ms == compiled["predicted_ms"]
    assert token_ms == apart["plans"]["token"]["predicted_ms"]
    assert option["round_ms"] == pytest.approx(max(2 * prompt_ms, 8 * token_ms))
    assert option["first_ms"] > prompt_ms

    einc("import", "hf", folder, "--tokens", 40, "--caches", "-o", tmp_path / "prompt.ein")
    graph = compile_model((tmp_path / "prompt.ein").read_text(), "prompt.ein", CompileOptions()).graph
    assert prompt_ms / 4 < bound_kernels(graph, load_machine("dgx-h100"), 1, rounds=4 / 2) <= prompt_ms


def test_figures_of_stages_are_those_of_their_plans(einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(DEEP)
    workload = TextWorkload("rows", DEEP, (4,), "batch")
    offer = Offer(CompileOptions(machine="dgx-h100", devices=2))
    options = advise(workload, [offer], "throughput", Limits(), FiguresCache(tmp_path / "kept")).options
    shapes = [(option.replicas, option.stages, option.microbatches) for option in options]
    assert shapes == [(1, 1, 1), (2, 1, 1), (1, 2, 4)]
    how = ("-m", "dgx-h100", "--devices", 2, "-D", "batch=4", "--stages", 2, "--microbatches", 4, "--replicas", 1)
    compiled = json.loads(einc("compile", tmp_path / "rows.ein", *how, "--json", "-o", tmp_path / "rows.bin"))
    staged = options[2]
    assert (staged.latency_ms, staged.memory_bytes) == (compiled["predicted_ms"], max(compiled["memory_bytes"]))
    assert staged.rate == pytest.approx(4 / compiled["predicted_ms"] * 1e3)
    assert compiled["division"]["microbatches"] == 4


def test_stages_that_are_not_possible_say_why(tmp_path: Path) -> None:
    """One operator has no two stages, and a batch that is summed up has no parts."""
    single = TextWorkload("single", ROWS.replace("relu(matmul(x, w))", "matmul(x, w)"), (4,), "batch")
    summed = TextWorkload("summed", ROWS.replace("matmul(x, w)", "matmul(w, matmul(transpose(x), x))"), (4,), "batch")
    for workload, reason in ((single, "too few operators"), (summed, "batch")):
        offer = Offer(CompileOptions(machine="dgx-h100", devices=2))
        options = advise(workload, [offer], "throughput", Limits(), FiguresCache(tmp_path)).options
        assert re.search(reason, options[2].problem or "")
        assert options[0].problem is None


@pytest.mark.usefixtures("less_effort")
def test_what_is_not_planned_is_neither_best_nor_on_the_frontier(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    machines, batches = ("dgx-h100",), (1, 6, 16)
    few = ask(batches, machines, tmp_path / "few")
    beaten = [option for option in few.options if option.beaten]
    assert 0 < len(beaten) < len(few.options) / 2
    assert all(option.problem and option.rate is None for option in beaten)
    request.getfixturevalue("no_bounds")
    every = ask(batches, machines, tmp_path / "all")
    assert not any(option.beaten for option in every.options)
    assert (few.best, few.frontier) == (every.best, every.frontier)
    for some, planned in zip(few.options, every.options, strict=True):
        assert some.beaten or some == planned


@pytest.mark.usefixtures("less_effort", "no_bounds")
def test_what_is_best_and_on_the_frontier(tmp_path: Path) -> None:
    machines = ("dgx-a100", "dgx-h100", "dgx-v100")
    for objective in ("latency", "throughput", "cost"):
        advice = ask((1, 4, 7), machines, tmp_path, objective)  # type: ignore[arg-type]
        options = advice.options
        assert len(options) == 3 * (1 + 3 + 2)  # neither one user nor seven are micro-batches of two stages
        values = {
            "latency": [option.latency_ms for option in options],
            "throughput": [-(option.rate or 0) for option in options],
            "cost": [option.unit_cost for option in options],
        }[objective]
        assert values[advice.best or 0] == min(value for value in values if value is not None)
    unpriced = replace(advice, options=[replace(o, hourly=None) if o.machine == "dgx-v100" else o for o in options])
    assert "no price, and so not compared by cost: dgx-v100" in describe_best(unpriced, {"objective": "cost"})
    beaten = {
        n
        for n, option in enumerate(options)
        if any(rival.latency_ms <= option.latency_ms and rival.rate > option.rate for rival in options)
        or any(rival.latency_ms < option.latency_ms and rival.rate >= option.rate for rival in options)
    }
    figures = {(options[n].latency_ms, options[n].rate) for n in set(range(len(options))) - beaten}
    assert [(options[n].latency_ms, options[n].rate) for n in advice.frontier] == sorted(figures)
    slow = max(option.latency_ms or 0 for option in options)
    for limit in (slow, slow / 2, 1e-9):
        best = ask((1, 4, 7), machines, tmp_path, "throughput", Limits(latency_ms=limit)).best
        allowed = [n for n, option in enumerate(options) if (option.latency_ms or 0) <= limit]
        assert best == max(allowed, key=lambda n: (options[n].rate, -n), default=None)


@pytest.mark.usefixtures("no_bounds")
@pytest.mark.usefixtures("less_effort")
def test_replicas_take_as_long_as_the_slowest_group(tmp_path: Path) -> None:
    """Sites 2 and 3 have a slower memory; every second pair is joined by a slower link."""
    sites = [{"hbm_gbs": gbs, "memory_bytes": 1 << 33} for gbs in (900, 900, 300, 300)]
    links = [{"name": f"l{a}{b}", "gbs": 40, "pairs": [[a, b], [b, a]]} for a in range(4) for b in range(a)]
    for name, chosen in (("mixed", sites), ("fast", sites[:2] * 2), ("slow", sites[2:] * 2)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "sites": chosen, "resources": links}))
    rates = {}
    for name in ("mixed", "fast", "slow"):
        offer = Offer(CompileOptions(machine=str(tmp_path / f"{name}.json")))
        workload = TextWorkload("rows", ROWS, (8,), "batch")
        options = advise(workload, [offer], "latency", Limits(), FiguresCache(tmp_path / "kept")).options
        rates[name] = [option.rate for option in options if option.replicas == 2]
    assert rates["mixed"] == rates["slow"] != rates["fast"]


def test_what_was_planned_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask((2, 4), ("dgx-h100",), tmp_path)
    files = sorted(tmp_path.iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-9])
    assert ask((2, 4), ("dgx-h100",), tmp_path).options == first.options  # the damaged file is made again

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(figures_module, "compile_model", refuse)
    assert ask((2, 4), ("dgx-h100",), tmp_path).options == first.options
    with pytest.raises(AssertionError):
        ask((2, 5), ("dgx-h100",), tmp_path)


def test_several_processes_plan_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = ("dgx-h100", "dgx-a100")
    alone = ask((2,), machines, tmp_path / "alone").options
    monkeypatch.setattr(planning, "ALONE_SECONDS", -1.0)
    monkeypatch.setattr(planning, "count_host_cores", lambda: 2)
    assert ask((2,), machines, tmp_path / "together").options == alone
    wrong = TextWorkload("wrong", ROWS.replace("n = 64", "n = 2 **"), (1,), "batch")
    offers = [Offer(CompileOptions(machine=name)) for name in machines]
    with pytest.raises(ModelError, match="expected") as error:
        advise(wrong, offers, "latency", Limits(), FiguresCache(tmp_path))
    assert error.value.diagnostics
    assert not active_children()


@pytest.mark.usefixtures("less_effort")
def test_what_is_kept_is_used_where_no_time_is_left(einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(ROWS)
    command = ("advise", tmp_path / "rows.ein", "--users-param", "batch", "-m", "dgx-h100:1", "--users")
    einc(*command, "4")
    late = einc(*command, "4,8", "--time-limit", "1e-9")
    assert "best throughput: dgx-h100, 1 site, 4 users" in late
    assert "the time limit was reached: not planned, 1 of 2 options" in late
    assert late.count("not planned") == 2
    assert "does not fit" not in late


@pytest.mark.parametrize(
    ("machine", "price", "hourly"),
    [
        ("p5.48xlarge", "p5.48xlarge=$98.32/hr", 98.32),
        ("p5.48xlarge:2", "p5.48xlarge=98.32", 98.32),
        ("p5.48xlarge:2", "h100=2.5 / hour", 5.0),
    ],
)
def test_an_instance_has_the_price_of_the_whole(
    machine: str, price: str, hourly: float, einc: Run, tmp_path: Path
) -> None:
    (tmp_path / "rows.ein").write_text(ROWS)
    command = ("advise", tmp_path / "rows.ein", "-m", machine, "--price", price, "--undivided")
    (option,) = json.loads(einc(*command, "--json"))["options"]
    assert option["hourly"] == hourly
    assert f"{hourly:.2f} an hour" in einc(*command)
    assert "no option keeps to the limits" in einc(*command, "--price-at-most", hourly - 0.01)


def test_texts_longer_than_a_model_was_made_for_are_told() -> None:
    workload = ChatWorkload("small", b'{"max_position_embeddings": 512}', "config.json", None, (1,), 500, 12)
    assert describe_excess(workload) is None
    assert "at most 512 tokens, and 513" in str(describe_excess(replace(workload, answer_tokens=13)))


def test_users_that_double() -> None:
    from einc.cli.commands.advise import read_users

    numbers = {text: read_users(text) for text in ("3..13", "1..8", "5..5", "7,2")}
    assert numbers == {"3..13": (3, 6, 12, 13), "1..8": (1, 2, 4, 8), "5..5": (5,), "7,2": (7, 2)}


@pytest.mark.usefixtures("less_effort")
def test_a_rate_that_is_asked_for(einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(ROWS)
    command = ("advise", tmp_path / "rows.ein", "-m", "dgx-h100:1", "--json")
    rate = json.loads(einc(*command))["options"][0]["rate"]
    assert json.loads(einc(*command, "--rate-at-least", rate))["options"][0]["best"]
    assert not json.loads(einc(*command, "--rate-at-least", rate * 1.001))["options"][0]["best"]


@pytest.mark.usefixtures("less_effort")
@pytest.mark.parametrize("bits", [("--bits", "f8", "--round-inputs"), ("--bits", "4")])
def test_weights_as_quantize_would_store_them(bits: tuple[str, ...], einc: Run, tmp_path: Path) -> None:
    """The plans of `--bits` are those of the folder that `einc quantize` writes."""
    folder, stored = tmp_path / "full", tmp_path / "stored"
    shutil.copytree(STORIES, folder)
    einc("quantize", folder, "-o", stored, *bits)
    question = ("-m", "dgx-h100:1", "--prompt", "40", "--answer", "9", "--json")
    described, written = (json.loads(einc("advise", *words, *question)) for words in ((folder, *bits), (stored,)))
    assert described["options"][0]["plans"] == written["options"][0]["plans"]
    assert "its weights are quantized already" in einc("advise", stored, *bits, *question)


@pytest.mark.usefixtures("less_effort")
def test_training_steps(einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(
        ROWS.replace("output y = ", "y = ") + 'output loss = mean(mean(y, "n"), "rows")\n'
    )
    step = (tmp_path / "rows.ein", "--train", "loss", "--optimizer", "sgd")
    step += ("-m", "dgx-h100:2", "--json")
    document = json.loads(einc("advise", *step, "--users-param", "batch", "--users", "4"))
    (option,) = document["options"]
    compiled = json.loads(
        einc("compile", *step, "-m", "dgx-h100:2", "-D", "batch=4", "--json", "-o", tmp_path / "p.bin")
    )
    assert option["latency_ms"] == compiled["predicted_ms"]
    assert (document["unit"], option["rate"]) == ("samples", pytest.approx(4e3 / option["latency_ms"]))


def test_instances_of_one_machine_are_told_apart(einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(ROWS)
    names = ("p4d.24xlarge", "standard_nd96asr_v4")
    machines = [word for name in names for word in ("-m", name)]
    prices = ("--price", "p4d.24xlarge=20/h", "--price", "standard_nd96asr_v4=30/h")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    command = ("advise", tmp_path / "rows.ein", *machines, *prices, "--undivided", "--html", page, "--csv", table)
    options = json.loads(einc(*command, "--json"))["options"]
    assert [(option["machine"], option["named"]) for option in options] == [("dgx-a100", name) for name in names]
    shown = einc(*command)
    assert shown.startswith("best cost: p4d.24xlarge, 8 sites")
    assert all(sum(name in text for text in shown.splitlines()[2:]) == 1 for name in names)
    assert all(name in page.read_text() and name in table.read_text() for name in names)


def test_options_that_are_not_possible_say_why(einc: Run, tmp_path: Path) -> None:
    text = tmp_path / "rows.ein"
    text.write_text(ROWS.replace("n = 64", "n = 262144"))  # the weight alone has 256 GiB
    command = ("advise", text, "-m", "dgx-h100:4", "--users-param", "batch", "--users", "4")
    shown = einc(*command)
    assert shown.startswith("best throughput: dgx-h100, 4 sites, 4 users: ")
    assert re.search(r"^dgx-h100 +4 +4 +1 +4 +- .*does not fit$", shown, re.MULTILINE)
    assert re.search(r"^dgx-h100, 4 replicas on 1 site each: .*memory", shown, re.MULTILINE)
    late = ask((1, 2), ("dgx-h100",), tmp_path / "none", time_limit=1e-9)
    assert late.best is None
    assert {option.problem for option in late.options} == {"not planned: the time limit was reached"}
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("no_bounds")
def test_the_table_is_the_same_everywhere(einc: Run, tmp_path: Path) -> None:
    text, page, table = tmp_path / "rows.ein", tmp_path / "page.html", tmp_path / "table.csv"
    text.write_text(ROWS)
    command = ("advise", text, "-m", "dgx-h100:2", "-m", "dgx-v100:2", "--users-param", "batch", "--users", "1,6")
    document = json.loads(einc(*command, "--json", "--html", page, "--csv", table))
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [float(row["rate"]) for row in rows] == [option["rate"] for option in document["options"]]
    assert [row["best"] for row in rows].count("True") == 1
    html, shown = page.read_text(), einc(*command)
    assert "<script" not in html
    assert len(re.findall("<circle", html)) == len(document["options"]) == 8
    for option in document["options"]:
        assert f"{option['latency_ms']:.3g} ms" in html
        assert f"{option['latency_ms']:.3g} ms" in shown
    assert einc(*command, "--html", "-") == html
    assert einc(*command, "--csv", "-") == table.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--users", "0"), "'0' is not a list of numbers of users"),
        (("--users", "8..4"), "'8..4' is not a list of numbers of users"),
        (("--users", "0..4"), "'0..4' is not a list of numbers of users"),
        (("--bits", "8"), "--bits is for published models"),
        (("--users", "3"), "--users-param batch says that the param `batch` is their number"),
        (("--users", "3", "--users-param", "lot"), "lot"),
        (("--price", "h100"), "is not a price for an hour"),
        (("--price-at-most", "3"), "--price-at-most needs prices"),
        (("--prompt", "16 K"), "is not a number of tokens such as 2048 or 16K"),
        (("--prompt", "16K"), "--prompt is for published models"),
        (("-m", "dgx-a100,dgx-h100"), "an option names one machine"),
        (("--price", "h200=3/h"), "no machine here is or has a h200"),
        (("--objective", "cost"), "the lowest cost needs prices"),
        (("--latency-at-most", "5"), "'5' is not a time such as 50ms or 1.5s"),
        (("--prompt", "5"), "--prompt is for published models"),
        (("--html", "-", "--json"), "only one of --csv -, --html - and --json"),
        (("-m", "dgx-h100:99"), "has 8"),
    ],
)
def test_wrong_questions_get_one_error(words: tuple[str, ...], message: str, einc: Run, tmp_path: Path) -> None:
    (tmp_path / "rows.ein").write_text(ROWS)
    shown = einc("advise", tmp_path / "rows.ein", "-m", "dgx-h100:2", *words)
    assert re.match("(2|65|69|78): ", shown), shown
    assert message in shown


def test_a_published_model_has_no_params(einc: Run) -> None:
    assert "-D is for model texts" in einc("advise", STORIES, "-D", "batch=2")


def test_axes_have_a_few_round_labels() -> None:
    for low, high in ((0.5, 3.0), (3.1, 800.0), (1e-4, 1e7)):
        axis = LogarithmicAxis(low, high, 10.0, 500.0)
        ticks = axis.list_ticks()
        assert 1 <= len(ticks) <= 12
        assert all(low <= tick <= high for tick in ticks)
        assert axis.position(low) == 10.0
        assert axis.position(high) == 500.0
