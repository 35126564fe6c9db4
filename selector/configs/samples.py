"""Synthetic text for stacks that insist on a dataset: made by the launch script, replaced by the user's own."""

from __future__ import annotations

from estimators.run import Run

FILE = "data/train.jsonl"
SCRIPT = "make_data.py"

_TEXT = '''"""Write data/train.jsonl: random words, each text longer than a sequence. Put your own file there instead.

A line is an object with the same text twice: "text", and "messages" for stacks that read conversations.
"""

import json
import pathlib
import random

SEQ_LEN = {seq_len}
TEXTS = {texts}
WORDS = "the of and to in is that it was for on are with as his they at be this from have or by one had not but".split()

random.seed({seed})
file = pathlib.Path("{file}")
file.parent.mkdir(exist_ok=True)
with file.open("w", encoding="utf-8") as lines:
    for _ in range(TEXTS):
        text = " ".join(random.choices(WORDS, k=SEQ_LEN + SEQ_LEN // 4))  # a word is at least one token
        row = {{"text": text, "messages": [{{"role": "assistant", "content": text}}]}}
        lines.write(json.dumps(row) + "\\n")
'''


def files(run: Run, seed: int, steps: int) -> dict[str, str]:
    """The script; a first run sees each text at most a few times."""
    texts = max(64, min(2048, run.workload.micro_batch * run.workload.grad_accum * run.ranks * steps))
    return {SCRIPT: _TEXT.format(seq_len=run.workload.seq_len, texts=texts, seed=seed, file=FILE)}


MAKE = f"[ -e {FILE} ] || python {SCRIPT}"
