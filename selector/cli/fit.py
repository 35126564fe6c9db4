"""``dist-advisor fit``: the largest micro-batch and sequence of each strategy, the fewest GPUs of a kind."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from estimators.errors import IllegalCombination
from selector.cli.following import question_words, say_next
from selector.cli.output import check_format, emit, picture
from selector.cli.parser import add_plot_flag, add_question_flags, question_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor fit --model llama-8b --gpus 8xA100-80GB
  dist-advisor fit --model llama-70b --gpu H100 --strategy zero3 --strategy fsdp
  dist-advisor fit --model qwen2.5-7b --gpus 4xA10 --method qlora --checkpointing full --format csv
  dist-advisor fit --model llama-8b --gpus 8xA100-80GB --plot limits.svg"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    add_question_flags(command)
    for action in command._actions:
        if action.dest in ("gpus",):
            action.required = False
    command.add_argument("--gpu", metavar="KIND", help="a card: the fewest of it that do, in place of --gpus")
    command.add_argument("--strategy", action="append", metavar="S", help="only this one; may be repeated")
    add_plot_flag(command, "memory against sequence, micro-batch and GPUs, and the frontier of what fits")
    command.add_argument("--require-fit", action="store_true", help="exit with 1 when nothing fits")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.time.towers import only_images
    from selector.fit import fit

    if bool(parsed.gpus) == bool(parsed.gpu):
        raise IllegalCombination("fit takes --gpus (what fits there) or --gpu (how many it takes), one of the two")
    only_count = parsed.gpu is not None
    parsed.gpus = parsed.gpus or parsed.gpu
    model, cluster, fields = question_of(parsed)
    if only_count and cluster.ranks > 1:
        raise IllegalCombination(
            f"--gpu {parsed.gpu} names a cluster; name the card alone, or write --gpus {parsed.gpu}"
        )
    found, left_out = fit(model, cluster, parsed.strategy, sizes=not only_count, **fields)
    if not found:
        raise IllegalCombination("no strategy is legal here: " + "; ".join(dict.fromkeys(left_out.values())))
    rows = [asdict(f) for f in found]
    document = {
        "schema": "dist-advisor/fit/1",
        "strategies": rows,
        "left_out": [{"strategy": name, "why": why} for name, why in left_out.items()],
    }
    notes = [f"{name} left out: {why}" for name, why in left_out.items()]
    title = f"{model.name} on {parsed.gpus}: what fits"
    images = only_images(model)
    emit(parsed, document, rows, lambda c: draw(c, title, rows, not only_count, images), notes)
    picture(parsed, lambda: draw_picture(model, cluster, parsed.strategy, fields))
    best = next((row for row in rows if row["micro_batch"] or row["seq_len"] or row["fewest_gpus"]), rows[0])
    if only_count and best["fewest_gpus"]:
        count = best["fewest_gpus"]
        parsed.gpus = f"{count // 8}x8x{parsed.gpu}" if count > 8 and count % 8 == 0 else f"{count}x{parsed.gpu}"
    say_next(parsed, f"explain {question_words(parsed)} {best['strategy']}")
    works = any(row["micro_batch"] or row["seq_len"] or row["fewest_gpus"] for row in rows)
    return 1 if parsed.require_fit and not works else 0


def draw_picture(model: Any, cluster: Any, strategies: list[str] | None, fields: dict[str, Any]) -> Figure:
    """Memory against what may grow."""
    from selector.plots import limits

    return limits(model, cluster, strategies, **fields)


def draw(console: Console, title: str, rows: list[dict[str, Any]], sizes: bool, images: bool = False) -> None:
    """The table; ``images``: the model sees nothing else, and a micro-batch is so many of them."""
    from rich.table import Table

    console.print(title, style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("strategy", no_wrap=True, overflow="ellipsis", min_width=20)
    names = () if not sizes else ("images",) if images else ("micro-batch", "tokens")
    for name in names:
        table.add_column(name, justify="right")
    if sizes and not images:
        table.add_column("tok/s", justify="right")
    table.add_column("fewest GPUs", justify="right")
    table.add_column("limited by", overflow="fold")
    for row in rows:
        numbers = [row["micro_batch"], row["seq_len"]][: len(names)]
        rates = [row["tokens_per_s_per_gpu"]] if sizes and not images else []
        cells = [f"{n:,.0f}" if n else "-" for n in (*numbers, *rates, row["fewest_gpus"])]
        table.add_row(row["strategy"], *cells, row["limited_by"] or "")
    console.print(table)
    if images and sizes:
        console.print("images: the largest micro-batch of a GPU", style="dim")
    elif sizes:
        console.print("micro-batch: at the sequence length asked; tokens: of a sequence at the micro-batch asked; tok/s: expected, "
                      "of one GPU at that micro-batch", style="dim")  # fmt: skip
