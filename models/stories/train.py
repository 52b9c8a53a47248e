"""Trains the language model of this folder on stories that it makes up, and writes it as published models are.

    python models/stories/train.py        # needs torch, transformers and tokenizers; takes some minutes on one core
    python models/stories/train.py --check

A story follows a small grammar: somebody lives somewhere, likes something to eat, finds something, and a friend comes
to visit. What is named at the beginning comes back later. So it can be checked whether a text is such a story
(`is_story`), and how many of those that the model makes up are. All texts are from this file.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

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
STEPS, SCHEDULED, BATCH, RATE = 700, 1200, 24, 3e-3  # it ends before the rate has fallen all the way


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


def train() -> None:
    """Writes the tokenizer, the configuration and the weights."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    torch.manual_seed(1)
    draw = random.Random(1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([make_story(draw) for _ in range(2000)], trainer)
    tokenizer.save(str(HERE / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=96, intermediate_size=224, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=None, rope_theta=10000.0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=SCHEDULED, pct_start=0.1)
    for step in range(STEPS):
        rows = encode(tokenizer, [make_story(draw) for _ in range(BATCH)])
        loss = model(input_ids=rows.clamp(min=0), labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(HERE)


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
    import torch

    torch.set_num_threads(1)
    if "--check" not in sys.argv[1:]:
        train()
    check()


if __name__ == "__main__":
    main()
