"""What the pictures say: bars are the estimate's terms, the line is the card, axes carry units, nothing overlaps."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from estimators import estimate
from estimators.cluster import parse_cluster
from estimators.memory import Estimate
from estimators.model import resolve_model
from estimators.time import StepTime
from estimators.time.clock import Clock, clock
from selector import plots, recommend
from selector.cli import main
from selector.plan import Question, counts_up_to, plan
from selector.plots.style import FILLS, printable

GIB = 2**30
UNITS = (
    "(GiB)",
    "(MiB)",
    "(tokens)",
    "(number)",
    "(s)",
    "(days)",
    "(GPU-hours)",
    "(unit of --price)",
    "per GPU)",
    "instant of the run",
)


def heights(axis: Any) -> dict[float, dict[str, float]]:
    """Bars by their middle: category -> GiB, and ``bottom`` of the lowest."""
    found: dict[float, dict[str, float]] = {}
    for bars in axis.containers:
        for bar in bars:
            middle = round(bar.get_x() + bar.get_width() / 2, 6)
            found.setdefault(middle, {})[bars.get_label()] = bar.get_height()
    return found


def line(axis: Any, which: str = "y") -> float:
    """Where the card's line stands."""
    dashed = [x for x in axis.get_lines() if "GiB" in str(x.get_label())]
    assert len(dashed) == 1
    return float((dashed[0].get_ydata() if which == "y" else dashed[0].get_xdata())[0])


def texts(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    ticks = set()  # labels of ticks that lie beyond their axis are not drawn
    for axes in figure.axes:
        for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            ticks |= {t for t in axis.get_ticklabels(which="both") if not low <= t.get_position()[place] <= high}
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in ticks]


def wrong_texts(figure: Any) -> list[str]:
    """Texts of the drawn picture whose boxes cut each other, or that its edge cuts."""
    figure.draw_without_rendering()
    page = figure.bbox
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts(figure)]
    found = [
        w for w, b in boxes if b.x0 < page.x0 - 1 or b.x1 > page.x1 + 1 or b.y0 < page.y0 - 1 or b.y1 > page.y1 + 1
    ]
    for at, (words, box) in enumerate(boxes):
        for other, rest in boxes[at + 1 :]:
            apart = box.x1 <= rest.x0 + 1 or rest.x1 <= box.x0 + 1 or box.y1 <= rest.y0 + 1 or rest.y1 <= box.y0 + 1
            if not apart:
                found.append(f"{words} | {other}")
    return found


def every_picture(many: list[Estimate]) -> dict[str, Any]:
    model, cluster = resolve_model("llama-8b"), parse_cluster("8xH100")
    run = Question(model, cluster, 1e12, {}, 2048, counts_up_to(512, 8))
    long = "zero3:hpz=8,quantized_weights,reduce_bucket_size=50000000+optimizer@cpu+params@nvme"
    tiny = estimate("smollm2-135m", "2x8xH100", "ddp")
    rows = [
        {"id": f"row-{q}-{n}", "quantity": q, "predicted": p, "measured": m, "error": p / m - 1}
        for q in ("allocated", "reserved", "process")
        for n, (p, m) in enumerate([(10.0, 12.0), (70.0, 71.5), (3.0, 9.0)])
    ]
    score = {q: {"mape": 0.1, "bias": -0.05} for q in ("allocated", "reserved", "process")}
    return {
        "memory": plots.memory_by_instant(many[0]),
        "memory over the card": plots.memory_by_instant(many[-1]),
        "memory on a phone": plots.memory_by_instant(many[-1], width=4.4),
        "memory of a tiny model": plots.memory_by_instant(tiny),
        "host": plots.memory_by_instant(many[0], place="host"),
        "clock": plots.step_clock(many[0]),
        "clock with accumulation": plots.step_clock(estimate("llama-8b", "4xA10", "zero3-offload", grad_accum=16)),
        "clock on a phone": plots.step_clock(tiny, width=4.4),
        "clock without seconds": plots.step_clock(estimate("llama-8b", parse_cluster("2xMyCard", gpu_memory="24GB"), "zero3")),
        "one strategy": plots.strategies(many[:1]),
        "many strategies": plots.strategies(many),
        "many strategies on a phone": plots.strategies(many, width=4.4),
        "a long name": plots.strategies([estimate("llama-8b", "8xH100", long), tiny]),
        "difference": plots.difference(many[0], many[-1]),
        "difference on a phone": plots.difference(many[-1], many[-2], width=4.6),
        "limits": plots.limits(model, cluster),
        "plan": plots.time_and_cost(plan(run), deadline_seconds=30 * 86400),
        "accuracy": plots.accuracy({"rows": rows, "by_quantity": score, "scored": 9, "cases": 12, "groups": 3}),
        "validation": plots.validation(
            {"instants": [{"name": n, "predicted_bytes": p, "measured_bytes": m}
                          for n, p, m in (("load", 40 * 2**20, 40 * 2**20), ("step", 90 * 2**20, 91 * 2**20))],
             "status": "differs", "error": -0.011, "strategy": "zero3", "mode": "cpu", "ranks": 2, "model": {"name": ""}}
        ),
        "sweep": plots.combinations(
            [
                {"model": "llama-8b", "gpus": g, "seq_len": s, "strategy": long, "verdict": v, "gpu_process_bytes": b * GIB,
                 "gpu_capacity_bytes": 22 * GIB, "error": None}
                for g, s, v, b in (("4xA10", 2048, "fits", 9), ("4xA10", 8192, "tight", 21), ("2xA10", 2048, "no", 300))
            ]
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def pictures(many: list[Estimate]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return every_picture(many)


def test_bars_are_the_terms_and_the_line_is_the_card(over_the_card: Estimate) -> None:
    axis = plots.memory_by_instant(over_the_card).axes[0]
    assert line(axis) == pytest.approx(over_the_card.gpu.capacity / GIB)
    drawn = heights(axis)
    assert len(drawn) == len(over_the_card.instants)
    for at, instant in enumerate(over_the_card.instants):
        bar = dict(drawn[at])
        beside = bar.pop("outside")
        assert beside == pytest.approx(sum(o.expected for o in over_the_card.gpu.runtime) / GIB)
        assert sum(bar.values()) == pytest.approx(sum(t.bytes for t in instant.terms if t.place == "gpu") / GIB)
        assert bar == pytest.approx({c: b / GIB for c, b in instant.by_category().items()})


def test_strategies_show_peaks_and_one_line_a_card(many: list[Estimate]) -> None:
    axis = plots.strategies(many).axes[0]
    assert line(axis, "x") == pytest.approx(many[0].gpu.capacity / GIB)
    for row, one in enumerate(many):
        widths = [b.get_width() for bars in axis.containers for b in bars
                  if bars.get_label() != "outside" and round(b.get_y() + b.get_height() / 2) == row]  # fmt: skip
        assert sum(widths) == pytest.approx(one.peak.gpu_bytes / GIB)
    assert [t.get_text() for t in axis.get_yticklabels()] == [e.strategy for e in many]


def test_phases_of_the_clock_are_the_step() -> None:
    for grad_accum in (1, 2, 7):
        one = estimate("llama-8b", "2x8xH100", "zero2", grad_accum=grad_accum)
        found = clock(one.run)
        assert isinstance(found, Clock) and isinstance(one.time, StepTime)
        assert found.total == pytest.approx(one.time.step_seconds.expected)
        assert (found.earlier > 0) == (grad_accum > 1)
        assert min(found.forward, found.loss, found.backward, found.reduce, found.step) > 0


def test_every_axis_has_a_unit(pictures: dict[str, Any]) -> None:
    for name, figure in pictures.items():
        for axis in figure.axes:
            labels = [axis.get_xlabel(), axis.get_ylabel()]
            assert any(labels), name
            for words in filter(None, labels):
                assert any(unit in words for unit in UNITS) or "no seconds" in words, (name, words)


def test_no_text_overlaps_or_is_cut(pictures: dict[str, Any]) -> None:
    wrong = {name: wrong_texts(figure) for name, figure in pictures.items()}
    assert not {name: found for name, found in wrong.items() if found}


def test_type_is_legible(pictures: dict[str, Any]) -> None:
    for name, figure in pictures.items():
        assert min(t.get_fontsize() for t in texts(figure)) >= 7.5, name


def test_categories_differ_for_the_colour_blind_and_in_print() -> None:
    """Machado 2009's matrices at full severity; in print, luminance or hatch tells neighbours apart."""
    kinds = {
        "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    }

    def linear(colour: str) -> list[float]:
        values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]

    fills = list(FILLS.values())
    for at, one in enumerate(fills):
        for other in fills[at + 1 :]:
            a, b = linear(one.colour), linear(other.colour)
            grey = [0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2] for c in (a, b)]
            told = one.hatch != other.hatch
            assert told or (max(grey) + 0.05) / (min(grey) + 0.05) > 1.5, (one, other)
            for matrix in kinds.values():
                seen = [[sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix] for rgb in (a, b)]
                far = max(abs(x - y) for x, y in zip(*seen, strict=True))
                assert told or far > 0.1, (one, other)


def test_a_users_text_is_drawn_as_it_is_written() -> None:
    assert printable("a\nb\tc") == "a b c"
    assert printable("cost $x^2$") == "cost $x^2$"
    assert printable("\u4f60\u597d\x07") == "???"
    assert len(printable("x" * 5000)) == 120
    figure = plots.memory_by_instant(estimate({**resolve_model("smollm2-135m").config, "_name_or_path": "$\\frac{1}{0$"},
                                              "1xA10", "single"))  # fmt: skip
    assert plots.svg(figure, "<x>").startswith('<svg role="img" aria-label="&lt;x&gt;"')


def test_the_same_picture_is_the_same_bytes(tmp_path: Path, over_the_card: Estimate) -> None:
    for kind in ("png", "svg", "pdf"):
        files = [tmp_path / f"{n}.{kind}" for n in (1, 2)]
        for file in files:
            plots.save(plots.strategies([over_the_card], width=4.4), file)
        assert files[0].read_bytes() == files[1].read_bytes()


def test_results_draw_themselves(over_the_card: Estimate) -> None:
    answer = recommend("llama-8b", "8xH100")
    assert "fits" in answer.plot().get_suptitle()
    assert len(answer.plot("strategies").axes[0].get_yticklabels()) > 3
    assert "one step takes" in over_the_card.plot("clock").get_suptitle()
    nothing = recommend("llama-8b", "1xA10", host_memory="64GB", strategy="zero3-offload")
    assert nothing.plot().get_suptitle().endswith("no: host RAM")  # the card is not to blame
    assert over_the_card.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "command",
    [
        ["estimate", "--model", "llama-8b", "--gpus", "4xA10"],
        ["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--strategy", "zero3"],
        ["explain", "--model", "llama-8b", "--gpus", "4xA10", "zero3"],
        ["explain", "--model", "llama-8b", "--gpus", "4xA10", "zero3", "zero2"],
        ["fit", "--model", "llama-8b", "--gpus", "4xA10", "--strategy", "zero3-offload"],
        ["plan", "--model", "llama-8b", "--gpu", "H100", "--tokens", "1T", "--max-gpus", "32", "--price", "2"],
        ["recommend", "--model", "llama-8b", "--gpus", "8xH100"],
    ],
)
def test_commands_draw(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.svg"
    assert main([*command, "--plot", str(file), "--format", "json"]) == 0
    assert "<svg" in file.read_text(encoding="utf-8")
    shown = capsys.readouterr()
    assert shown.out.startswith("{") and f"the picture is in {file}" in shown.err
    assert [f.name for f in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("name", ["a.gif", "a", "no-such-folder/a.png", "folder.png"])
def test_a_wrong_name_is_refused_before_anything_is_computed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.png").mkdir()
    assert main(["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--plot", str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert not shown.out and "Traceback" not in shown.err and "picture" in shown.err


def test_without_matplotlib_the_message_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from selector.cli import main\n"
        f"sys.exit(main(['estimate', '--model', 'llama-8b', '--gpus', '4xA10', '--plot', {str(tmp_path / 'a.png')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3 and not done.stdout
    assert "pip install 'dist-advisor[plots]'" in done.stderr


def test_drawing_brings_no_state_of_the_process(over_the_card: Estimate) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.memory_by_instant(over_the_card)
    assert dict(matplotlib.rcParams) == before
