# ruff: noqa: TID253
# mypy: ignore-errors
"""Synthetic data, and the place where real data enters."""

import json

import torch
from transformers import AutoTokenizer

from selector.configs.templates.settings import MODEL, SEED, SEQ_LEN, TRUST_REMOTE_CODE


class RandomTokens(torch.utils.data.Dataset):
    """Sequences of random tokens: enough to measure memory and speed."""

    def __init__(self, vocab_size, length=1_000_000):
        self.vocab_size, self.length = vocab_size, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(SEED + index)
        return example(torch.randint(self.vocab_size, (SEQ_LEN,), generator=generator))


class TextBlocks(torch.utils.data.Dataset):
    """Your data: each line of the file is an object with a 'text' field; texts are joined and cut at SEQ_LEN tokens."""

    def __init__(self, file):
        tokenizer = AutoTokenizer.from_pretrained(MODEL, trust_remote_code=TRUST_REMOTE_CODE)
        tokens = []
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                tokens += [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id]
        count = len(tokens) // SEQ_LEN
        if not count:
            raise SystemExit(f"{file} holds {len(tokens)} tokens, fewer than one sequence of {SEQ_LEN}")
        self.blocks = torch.tensor(tokens[: count * SEQ_LEN]).view(count, SEQ_LEN)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return example(self.blocks[index])


def example(ids):
    mask = torch.ones_like(ids)  # when: padded
    mask[-max(1, SEQ_LEN // 8) :] = 0  # when: padded
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}  # when: padded
    return {"input_ids": ids, "labels": ids}  # unless: padded


def dataset(file, model):
    return TextBlocks(file) if file else RandomTokens(model.config.get_text_config().vocab_size)
