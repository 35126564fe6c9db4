"""The answer: a choice, the way to it, what was rejected, what else there is, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimators.errors import MissingDependency, NotModelled
from estimators.memory import Estimate
from estimators.values import cached_property, dataclass, replace
from selector.candidates import Candidate, Rejection, candidates
from selector.launch import FOLDER, from_folder, launch, on_each
from selector.near import FLAGS, Alternative, flags, instead_words, spelled, ways_out
from selector.question import Question, ask
from selector.ranking import Ranking, rank, situation_of
from selector.reasons import headline, reasons, tier_words, what_would_change
from selector.tree import Reading, Step
from selector.trust import NOT_SCORED, trust

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

MOST_ALTERNATIVES = 4


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What ``recommend`` answers. Everything is derived from the question when it is first read."""

    question: Question
    asked: Mapping[str, Any]  # keyword arguments as the caller gave them, for what_if

    @cached_property
    def _searched(self) -> tuple[list[Candidate], tuple[Rejection, ...], Ranking]:
        found, out = candidates(self.question)
        return found, tuple(out), rank(self.question, found)

    @property
    def ranking(self) -> Ranking:
        return self._searched[2]

    @property
    def choice(self) -> Candidate | None:
        return self.ranking.choice

    @property
    def reading(self) -> Reading:
        return self.ranking.reading

    @property
    def strategy(self) -> str | None:
        """Canonical name of the chosen strategy; with ``strategy=`` the user's own; None where nothing fits."""
        if self.question.strategy is not None:
            return self.question.strategy.name
        return self.choice.name if self.choice else None

    @property
    def engine(self) -> str | None:
        if self.question.strategy is not None:
            return self.question.strategy.engine
        return self.choice.strategy.engine if self.choice else None

    @property
    def policy(self) -> str:
        return self.question.policy

    @property
    def leaf(self) -> str:
        """``fsdp``, ``deepspeed`` or ``ddp``: where the tree ends."""
        return self.reading.leaf

    @property
    def path(self) -> tuple[Step, ...]:
        return self.reading.path

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        return self._searched[1]

    @property
    def estimate(self) -> Estimate | None:
        """Of the choice; of the user's own strategy even where it does not fit; None where nothing fits."""
        if self.choice:
            return self.choice.estimate
        return self.rejected[0].estimate if self.question.strategy is not None and self.rejected else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The free workload values that were chosen, by field."""
        if self.choice is None:
            return {}
        method = {} if self.choice.method == self.question.methods[0] else {"method": self.choice.method}
        work, said = self.choice.estimate.run.workload, " ".join(self.question.notes)
        precision = {"precision": work.precision} if " precision " in said else {}
        return {**method, **precision, **self.choice.settings}

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        return tuple(reasons(self.question, self.ranking, self.rejected))

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The next best choices; where nothing fits, verified changes that work and the nearest misses."""
        if self.question.strategy is not None:
            return self._beside_users_own()
        if self.choice is None:
            return ways_out(self.question, self.rejected)
        rest = self.ranking.order[1:]
        tree = self.ranking.tree
        if tree is not None and tree in rest:
            rest = (tree, *(c for c in rest if c is not tree))
        sure = self.ranking.sure
        if sure is not None and sure is not self.choice:
            rest = (sure, *(c for c in rest if c is not sure))
        return as_alternatives(rest)

    def _beside_users_own(self) -> tuple[Alternative, ...]:
        """What the answer would be if the strategy were free."""
        free = replace(self.question, strategy=None)
        found, rejected = candidates(free)
        order = [c for c in rank(free, found).order if c.name != self.strategy]
        if not order and self.choice is None:
            return ways_out(free, rejected)
        return as_alternatives(order)

    @cached_property
    def would_change(self) -> tuple[str, ...]:
        """What would change the tree's answer."""
        return tuple(what_would_change(self.question, self.ranking, situation_of(self.question, self._searched[0])))

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Where the documents disagree about this case: both places, and the rule that decides."""
        return tuple(f"{c.first} — {c.second} — {c.rule}" for c in self.reading.conflicts)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Guidance of the documents for this case, and what has aged, with sources."""
        aged = [f"{a.today} [instead of {a.aged.source}; {a.source}]" for a in self.reading.amendments]
        return (*aged, *(f"{r.text} [{r.place.source}]" for r in self.reading.remarks))

    @property
    def trust(self) -> str:
        """Of the choice; where there is none, of the strategy that came nearest: its "no" is what has to be trusted."""
        shown = self.estimate or next((r.estimate for r in self.rejected if r.estimate), None)
        return trust(shown) if shown else NOT_SCORED

    @property
    def commands(self) -> dict[str, str]:
        return {"launch": launch(self.estimate)} if self.estimate and self.strategy else {}

    @property
    def next_command(self) -> str:
        """What to type next: the launch line, or the question that shows what would fit."""
        if self.commands:
            command, estimate = self.commands["launch"], self.estimate
            own = estimate is not None and from_folder(estimate)
            return f"{command} (--emit {FOLDER}/ writes it)" if own else command
        where = self.question.cluster
        return f"dist-advisor fit --model {self.question.model.name} --gpus {spelled(where)}{flags(where)}"

    @cached_property
    def headline(self) -> str:
        if self.choice is None and self.question.strategy is not None:
            out = self.rejected[0]
            other = next((a for a in self.alternatives if not a.changes.keys() & FLAGS.keys()), None)
            does = f"; {other.strategy} does ({other.why})" if other and other.estimate.verdict != "no" else ""
            return f"{out.strategy} does not train {self.question.model.name} here: {out.why}{does}"
        unsaid = next((r.why for r in self.rejected if r.why.startswith("stack ")), None)
        if self.choice is None and unsaid and not any(r.estimate for r in self.rejected):
            return f"No strategy trains {self.question.model.name} here, whatever the memory: {unsaid}"
        nodes = self.question.cluster.nodes
        where = f" {on_each(nodes)}" if nodes > 1 and self.choice is not None else ""
        instead = "" if self.choice is not None else instead_words(self.alternatives, self.next_command)
        return headline(self.question, self.ranking, self.next_command, where, instead)

    def what_if(self, **changes: Any) -> Recommendation:
        """The same question with something else: ``what_if(seq_len=8192)``, ``what_if(gpus="8xH100", team="pytorch")``.

        Takes every argument of :func:`selector.recommend`; ``gpus`` is another name of ``cluster``.
        """
        if "gpus" in changes:
            changes["cluster"] = changes.pop("gpus")
        return answer({**self.asked, **changes})

    def document(self) -> dict[str, Any]:
        """``dist-advisor/recommendation/1``."""
        from selector.report.recommendation import document

        return document(self)

    def deepspeed_config(self) -> dict[str, Any]:
        """The DeepSpeed configuration of the choice. Raises ``MissingDependency`` while nothing here writes one."""
        return dict(self._configs().deepspeed_config(self))

    def accelerate_config(self) -> dict[str, Any]:
        """The accelerate configuration of the choice; raises like :meth:`deepspeed_config`."""
        return dict(self._configs().accelerate_config(self))

    def emit(self, folder: str | os.PathLike[str], **options: Any) -> Any:
        """Write everything that is needed to run the choice; raises like :meth:`deepspeed_config`."""
        return self._configs().emit(self, folder, **options)

    def _configs(self) -> Any:
        """What writes configurations: a module with ``emit``, ``deepspeed_config`` and ``accelerate_config``."""
        if self.strategy is None:
            raise NotModelled("nothing fits, so there is nothing to write; see the alternatives")
        try:
            from importlib import import_module

            return import_module("selector.configs")
        except ModuleNotFoundError:
            raise MissingDependency(
                f"this version writes no configuration files yet (no selector.configs); start with: {self.next_command}"
            ) from None

    def plot(self, kind: str = "memory") -> Figure:
        """A picture of the choice: ``memory`` by instant, ``clock`` of one step, ``host``; or all ``strategies``."""
        from selector.plots import of_recommendation

        return of_recommendation(self, kind)

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The whole answer as one HTML file that needs no network; written to ``path`` too, where one is given.

        Raises ``InputError`` when it cannot be written; then nothing is.
        """
        from selector.report.recommendation_page import recommendation_page
        from selector.report.writing import write_page

        text = recommendation_page(self)
        if path is not None:
            write_page(text, path)
        return text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from selector.report.recommendation import rendered

        yield from rendered(self, console.width)

    def _repr_html_(self) -> str:
        from selector.report.recommendation_html import html

        return html(self)

    def __repr__(self) -> str:
        return f"<Recommendation: {self.headline}>"


def as_alternatives(order: Sequence[Candidate]) -> tuple[Alternative, ...]:
    """The first few, with what sets each apart."""
    return tuple(Alternative(c.name, dict(c.settings), c.estimate, tier_words(c)) for c in order[:MOST_ALTERNATIVES])


def answer(asked: Mapping[str, Any]) -> Recommendation:
    """Resolve and search now, so that what is wrong with a question is raised where it was asked."""
    found = Recommendation(ask(**asked), asked)
    found._searched  # noqa: B018
    return found
