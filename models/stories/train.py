"""Trains the language model of this folder with einc alone, on stories that this file makes up.

    python models/stories/train.py [--sites 8] [--ranks 8]   # needs tokenizers, safetensors; minutes on one core
    python models/stories/train.py --check                   # needs torch and transformers, too

A story follows a small grammar: somebody lives somewhere, likes something to eat, finds something, and a friend comes
to visit. What is named at the beginning comes back later. So it can be checked whether a text is such a story
(`is_story`), and how many of those that the model makes up are. Plans are reproducible: however many sites and ranks a
run has, its losses (losses.csv) and weights have the same bits.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
END = "<|end|>"

NAMES = {"Mia": "she", "Tom": "he", "Lena": "she", "Otto": "he", "Ida": "she", "Ben": "he", "Nora": "she", "Max": "he"}
ANIMALS = ("fox", "bear", "hare", "owl", "mouse", "duck", "frog", "cat")
PLACES = ("by the river", "in the forest", "on the hill", "near the sea", "under the old bridge", "behind the mill")
FOODS = ("red berries", "warm bread", "sweet apples", "green soup", "honey cakes", "fresh cheese")
THINGS = ("boat", "drum", "lamp", "kite", "hat", "map", "bell", "clock")
LOOKS = ("small", "golden", "strange", "blue", "broken", "shiny")
PLANS = ("mend it", "paint it", "keep it", "share it", "wash it")
ENDS = ("until the moon comes up", "and sing a song", "and laugh all evening", "until they fall asleep")

STORY = (
    "{name} the {animal} lives {place}. {She} likes {food}. One day {she} finds a {look} {thing} {place} and takes it "
    'home. "What a {look} {thing}!" says {friend} the {other}, who comes to visit. "Let us {plan}!" says {name}. Then '
    "{name} and {friend} eat {food} {place} {end}."
)
HELD_OUT, MADE = 200, 200
STEPS, BATCH, LENGTH = 2400, 16, 120
"""Every step has stories of its own, each of which is filled up with ends to so many tokens: the longest has 117."""
RATE, WARMUP, SCHEDULE = 3e-3, 100, "cosine"


def make_story(draw: random.Random) -> str:
    """A story; every choice is equally likely."""
    name, friend = draw.sample(sorted(NAMES), 2)
    animal, other = draw.sample(ANIMALS, 2)
    she = NAMES[name]
    rest = {"place": PLACES, "food": FOODS, "look": LOOKS, "thing": THINGS, "plan": PLANS, "end": ENDS}
    chosen = {slot: draw.choice(words) for slot, words in rest.items()}
    return STORY.format(name=name, friend=friend, animal=animal, other=other, she=she, She=she.capitalize(), **chosen)


def is_story(text: str) -> bool:
    """Whether a text is a story: what comes back in it is the same each time."""
    words = {"place": PLACES, "food": FOODS, "look": LOOKS, "thing": THINGS, "plan": PLANS, "end": ENDS,
             "name": tuple(NAMES), "friend": tuple(NAMES), "animal": ANIMALS, "other": ANIMALS}  # fmt: skip
    pattern, seen = "", set()
    for literal, slot in re.findall(r"([^{]*)(?:\{(\w+)\})?", STORY):
        pattern += re.escape(literal)
        if slot in ("she", "She"):
            pattern += "(?:she|he)" if slot == "she" else "(?:She|He)"
        elif slot in seen:
            pattern += f"(?P={slot})"
        elif slot:
            seen.add(slot)
            pattern += f"(?P<{slot}>{'|'.join(words[slot])})"
    found = re.fullmatch(pattern, text)
    if found is None or found["name"] == found["friend"] or found["animal"] == found["other"]:
        return False
    she = NAMES[found["name"]]
    return f". {she.capitalize()} likes" in text and f"One day {she} finds" in text


def encode(tokenizer: Any, stories: list[str]) -> Any:
    """The tokens of stories, each with its end; what is left of a row has -100, which losses leave out."""
    import torch

    rows = [[*tokenizer.encode(story).ids, 0] for story in stories]
    longest = max(map(len, rows))
    return torch.tensor([row + [-100] * (longest - len(row)) for row in rows])


def train_tokenizer() -> None:
    """Writes the tokenizer, which needs no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([make_story(draw) for _ in range(2000)], trainer)
    tokenizer.save(str(HERE / "tokenizer.json"))


def write_data(folder: Path) -> None:
    """The stories of all steps as one text of tokens."""
    from tokenizers import Tokenizer

    draw, tokenizer = random.Random(1), Tokenizer.from_file(str(HERE / "tokenizer.json"))
    tokens = np.zeros((BATCH * STEPS + 1, LENGTH), np.int32)  # the last story is only the token after the others
    for row in tokens:
        ids = tokenizer.encode(make_story(draw)).ids
        row[: len(ids)] = ids
    np.save(folder / "tokens.npy", tokens.ravel())


def run_einc(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "einc", *map(str, words)], check=True)


def write_text(folder: Path) -> Path:
    """The model of this folder, with the logits of all tokens and the loss of the next ones."""
    text = folder / "stories.ein"
    run_einc("import", "hf", HERE, "-o", text)
    model = text.read_text().replace("input last : i64[sequences]  # rows of `ids`", "input targets : i64[tokens]")
    model = model[: model.index("rows = embedding(last")]
    model += "logits[tokens, vocab] = last_x[tokens, d_model] * table[vocab, d_model]\n"
    text.write_text(model + "output loss = cross_entropy(logits, targets)\n")
    return text


def compile_step(folder: Path, sites: int) -> Path:
    """A plan of a training step."""
    plan = folder / f"{sites}.bin"
    run_einc(
        "compile", write_text(folder), "-m", "host", "--devices", sites, "-o", plan,
        "-D", f"batch={BATCH}", "-D", f"length={LENGTH}", "--train", "loss", "--optimizer", "adamw", "--clip", 1,
        "--reproducible", "--selector", "eindecomp", "--schedule", "naive",
    )  # fmt: skip
    return plan


def list_arguments(plan: Path, run: Path, ranks: int | None) -> list[object]:
    """The command that trains from random weights, in a folder for checkpoints with the losses beside it. A run that
    was interrupted goes on."""
    return [
        "train", plan, "--data", plan.parent / "tokens.npy", "--weights", "init:0", "--steps", STEPS, "--rate", RATE,
        "--warmup", WARMUP, "--schedule", SCHEDULE, "--losses", run.with_suffix(".csv"), "--checkpoints", run,
        "--checkpoint-every", 100, "--resume", *(("--ranks", ranks) if ranks else ()),
    ]  # fmt: skip


def train(folder: Path, sites: int, ranks: int | None) -> Path:
    """The folder with the last checkpoint of a run."""
    plan, run = compile_step(folder, sites), folder / (f"ranks-{ranks}" if ranks else f"sites-{sites}")
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run_einc(*list_arguments(plan, run, ranks))
    elapsed, busy = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    print(f"{run.name}: {STEPS:,} steps took {elapsed:.0f} s, and {busy:.0f} s of processors", flush=True)
    return run


def read_weights(run: Path) -> dict[str, Any]:
    """The weights of a run with the names and shapes of published ones."""
    from safetensors.numpy import load_file

    weights = {}
    for name, array in load_file(run / f"step-{STEPS:08d}.safetensors").items():
        if array.ndim == 3:  # heads are a dimension of their own in the text, of results or of what is summed up
            array = array.reshape((len(array), -1) if "o_proj" in name else (-1, array.shape[-1]))
        if name.startswith("model."):  # others are those of the optimizer, and of the run
            weights[name] = array
    return weights


def publish(run: Path) -> None:
    """Writes the weights of a run, and its losses beside them."""
    from safetensors.numpy import save_file

    save_file(read_weights(run), HERE / "model.safetensors", {"format": "pt"})
    (HERE / "losses.csv").write_bytes(run.with_suffix(".csv").read_bytes())


def check() -> None:
    """Prints how good the model of this folder is, on stories that it was not trained on."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    torch.manual_seed(2)
    draw = random.Random(2)
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    model = transformers.LlamaForCausalLM.from_pretrained(HERE).eval()
    with torch.no_grad():
        rows = encode(tokenizer, [make_story(draw) for _ in range(HELD_OUT)])
        guesses = model(input_ids=rows.clamp(min=0)).logits[:, :-1].argmax(-1)
        known = rows[:, 1:] >= 0
        right = (guesses == rows[:, 1:])[known].float().mean()
        print(f"next tokens of {HELD_OUT} new stories: {right:.1%} are right")
        starts = torch.tensor([tokenizer.encode("Mia").ids] * MADE)
        made = model.generate(starts, max_new_tokens=160, do_sample=True, temperature=1.0, top_k=0, pad_token_id=0)
    texts = [tokenizer.decode(row.tolist()) for row in made]
    count = sum(map(is_story, texts))
    print(f"of {MADE} texts that begin with Mia, {count} are stories; {len(set(texts))} are distinct")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python models/stories/train.py")
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--ranks", type=int, help="so many processes, which MPI starts")
    parser.add_argument("--folder", type=Path, default=Path("build/stories"), help="for data, plans and checkpoints")
    parser.add_argument("--check", action="store_true", help="only say how good the model of this folder is")
    options = parser.parse_args()
    if options.check:
        check()
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer()
    write_data(options.folder)
    publish(train(options.folder, options.sites, options.ranks))


if __name__ == "__main__":
    main()
