# mypy: ignore-errors
"""Arguments that every script takes."""

import argparse

from selector.configs.templates.settings import SAVE_EVERY, STEPS


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="JSONL file with a 'text' field; without it random tokens are trained on")
    parser.add_argument("--random-weights", action="store_true", help="build from model/config.json, download nothing")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    parser.add_argument("--save-every", type=int, default=SAVE_EVERY, help="steps between checkpoints; 0: none")
    parser.add_argument("--output", default="checkpoints", help="folder of the checkpoints, shared by all nodes")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint there")
    return parser.parse_args()
