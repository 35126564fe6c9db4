"""``check`` over mutated and random files, in process: ``python benchmarks/fuzz.py [FILES] [SEED]`` (10,000, seed 0).

Every file must give findings or one message (``AdvisorError``), in at most 20 ms of processor time, the fastest of three
for a file that took longer: a busy machine is not a slow check. Starting points are the example configurations that the
tests keep. Prints how many files gave what, and the slowest; exit status 1 if one raised anything else or was slow.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from estimators.errors import AdvisorError  # noqa: E402
from selector.checks import check_files  # noqa: E402
from selector.checks.fixing import corrected  # noqa: E402
from selector.checks.machine import Machine  # noqa: E402

LIMIT_SECONDS = 0.02
SUFFIXES = (".json", ".yaml", ".yml", ".py", ".cfg", "")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**70, 1e300, 0.5, "auto", "true", "1e9", "", "é" * 60, "cpu", "nvme", "NO_SHARD"),
    *([], [1], [[{}]], {}, {"a": 1}, {"stage": "3"}, ["full_shard", "auto_wrap"], "full_shard auto_wrap", "x" * 5000),
)
KEYS = (
    *("zero_optimization", "offload_param", "fsdp_config", "deepspeed_config", "deepspeed_config_file", "optimizer"),
    *("bf16", "fsdp", "deepspeed", "num_processes", "distributed_type", "train_batch_size", "base_model", "adapter"),
    *("model_name_or_path", "finetuning_type", "scheduler", "stage", "fsdp_version", "mixed_precision"),
)
SNIPPETS = (
    "{",
    "]",
    '"',
    ":",
    "&a ",
    "*a ",
    "!!python/object:os.system",
    "\n",
    "\t",
    "<<: *a\n",
    "1e999",
    "'''",
    "((((",
)
SNIPPETS += (
    "\\",
    "\x00",
    "\ufeff",
    "- ",
    "? ",
    "%YAML 9\n",
    "---\n",
    "...\n",
    "{a: {a: ",
    "[[[[[[[[",
    "lambda x: ",
    "\udcff",
)


def examples() -> list[Any]:
    """Configurations of the tests, as values."""
    shipped = (ROOT / "tests/checks/configs/shipped.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["data"] for line in shipped]


def texts() -> list[bytes]:
    """Configurations of the tests, as they stand in files."""
    return [path.read_bytes() for path in sorted((ROOT / "tests/readers/configs").iterdir())]


def mutated(data: Any, chance: random.Random) -> Any:
    """The same with keys cut, values replaced and keys of other files added."""
    if isinstance(data, list):
        return [mutated(item, chance) for item in data]
    if not isinstance(data, dict):
        return chance.choice(VALUES) if chance.random() < 0.06 else data
    made: dict[Any, Any] = {}
    for key, value in data.items():
        draw = chance.random()
        if draw < 0.08:
            made[key] = chance.choice(VALUES)
        elif draw < 0.94:
            made[key[: -1 if draw < 0.12 else None]] = mutated(value, chance)
    if chance.random() < 0.15:
        made[chance.choice(KEYS)] = chance.choice((*VALUES, dict(made)))
    return made


def yaml_text(data: Any, depth: int = 0) -> str:
    """Block style for dictionaries, JSON for the rest: JSON is YAML."""
    if not isinstance(data, dict) or not data:
        return f" {json.dumps(data)}\n"
    lines = (f"{'  ' * depth}{key or 'empty'}:{yaml_text(value, depth + 1)}" for key, value in data.items())
    return ("\n" if depth else "") + "".join(lines)


def torn(raw: bytes, chance: random.Random) -> bytes:
    """Bytes cut out, doubled, flipped or put in."""
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(raw) + 1)
        match chance.randrange(4):
            case 0:
                raw = raw[:at] + raw[at + chance.randrange(1, 40) :]
            case 1:
                raw = raw[:at] + raw[max(0, at - chance.randrange(1, 200)) :]
            case 2:
                raw = (
                    raw[:at]
                    + chance.choice(SNIPPETS).encode("utf-8", "surrogateescape") * chance.choice((1, 1, 40))
                    + raw[at:]
                )
            case _:
                raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    return raw


def script(data: Any, chance: random.Random) -> bytes:
    """A ``train.py`` whose arguments are those of a configuration."""
    pairs = data.items() if isinstance(data, dict) else ()
    arguments = ", ".join(f"{key}={value!r}" for key, value in pairs if str(key).isidentifier())
    made = chance.choice(("TrainingArguments", "Accelerator", "FSDP", "deepspeed.initialize", "fully_shard", "DDP"))
    return f"import deepspeed\nargs = {made}({arguments})\n".encode("utf-8", "replace")


def content(number: int, chance: random.Random, rows: list[Any], files: list[bytes]) -> bytes:
    """One file: random bytes, random syntax, or an example changed in its values, its bytes, or both."""
    kind = number % 8
    if kind == 0:
        return chance.randbytes(chance.randrange(2000))
    if kind == 1:
        letters = "{}[]:,\"'-&*!|>#%@` \n\tatrue1.e()=\\"
        return "".join(chance.choice(letters) for _ in range(chance.randrange(600))).encode()
    if kind == 2:
        return torn(chance.choice(files), chance)
    data = mutated(chance.choice(rows), chance)
    if kind == 3:
        return json.dumps(data, indent=1).encode()
    if kind == 4:
        return torn(json.dumps(data).encode(), chance)
    if kind == 5:
        return torn(script(data, chance), chance) if chance.random() < 0.5 else script(data, chance)
    text = yaml_text(data).encode()
    return text if kind == 6 else torn(text, chance)


def check(file: Path) -> tuple[str, float]:
    """What a file gave, and the seconds of processor time it took."""
    best, outcome, found = float("inf"), "", ()
    for _ in range(3):
        start = time.process_time()
        try:
            found = check_files([file], machine=Machine())
            outcome = "findings" if found else "nothing"
        except AdvisorError as error:
            message = str(error)
            assert message.strip() and len(message) < 2000, f"a message of {len(message)} characters"
            outcome = "message"
        best = min(best, time.process_time() - start)
        if best < LIMIT_SECONDS:
            break
    corrected(found)  # what --fix would write; nothing is written
    return outcome, best


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[tuple[float, int]], list[str]]:
    """Outcomes, (seconds, number) from the slowest down, and what went wrong."""
    rows, files = examples(), texts()
    warm = folder / "warm.json"
    warm.write_text(json.dumps(rows[0]), encoding="utf-8")
    check(warm)
    outcomes: Counter[str] = Counter()
    spent: list[tuple[float, int]] = []
    wrong: list[str] = []
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        file = folder / f"{number}{chance.choice(SUFFIXES)}"
        file.write_bytes(content(number, chance, rows, files))
        try:
            outcome, seconds = check(file)
        except Exception as error:  # the point of the whole program
            wrong.append(f"file {number}: {type(error).__name__}: {error}")
            continue
        outcomes[outcome] += 1
        spent.append((seconds, number))
        if seconds >= LIMIT_SECONDS:
            wrong.append(f"file {number}: {seconds * 1000:.1f} ms")
        file.unlink()
    return outcomes, sorted(spent, reverse=True), wrong


def main() -> int:
    count, seed = (int(given) for given in (sys.argv[1:] + ["10000", "0"][len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory() as folder:
        outcomes, spent, wrong = fuzz(count, seed, Path(folder))
    print(f"{count:,} files, seed {seed}: " + ", ".join(f"{n:,} {name}" for name, n in outcomes.most_common()))
    if spent:
        print(f"median {spent[len(spent) // 2][0] * 1000:.2f} ms, slowest {spent[0][0] * 1000:.1f} ms (at most 20 ms)")
    for line in wrong[:20]:
        print(line)
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
