"""The panels put together with Gradio, once a language. Handlers take what the form holds and return HTML; none keeps anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from estimators.cluster import gpus
from estimators.errors import AdvisorError
from estimators.model.catalogue import names
from selector.ui import checking
from selector.ui.answer import answer
from selector.ui.explain import explain
from selector.ui.fields import CHOICE, CLUSTER, EXPLAIN, FIELDS, FIRST, MAIN, WORKLOAD, YES, Field, in_group
from selector.ui.files import files
from selector.ui.fitting import fitting
from selector.ui.html import message
from selector.ui.link import Values, parse, query
from selector.ui.pictures import pictures
from selector.ui.texts import LANGUAGES, Words, words

if TYPE_CHECKING:
    import gradio

HERE = os.path.dirname(__file__)
LAZY = {"explain": explain, "plots": pictures, "files": files}  # made when their tab is looked at


def asset(name: str) -> str:
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def values_of(given: Sequence[Any]) -> Values:
    """What components send -> one text a field: True is ``yes``, a list is joined by commas."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return YES if value else ""
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")

    return tuple(text(value) for value in given)


def shown(values: Values) -> list[Any]:
    """The other way: what each component is given."""
    made: list[Any] = []
    for field, value in zip(FIELDS, values, strict=True):
        if field.choices == (YES,):
            made.append(value == YES)
        else:
            made.append([w for w in value.split(",") if w] if field.several else value)
    return made


class Handlers:
    """The functions behind one page: ``language`` and what the page may read are fixed, everything else is an argument."""

    def __init__(self, language: str, local: bool) -> None:
        self.language, self.local, self.say = language, local, words(language)

    def answer(self, *given: Any) -> list[Any]:
        values = values_of(given)
        made = answer(values, self.language, self.local)
        return [made.summary, made.strategies, made.why, query(values), json.dumps(values)]

    def on_enter(self, *given: Any) -> list[Any]:
        """As ``answer``; a Hugging Face id may be looked up on the network first."""
        from selector.ui.questions import model_of, read

        try:
            model_of(read(values_of(given)).get("model", ""), self.local, online=True)
        except AdvisorError as wrong:
            made = self.answer(*given)
            return [message(self.say("wrong"), self.say.of(str(wrong))), *made[1:]]
        return self.answer(*given)

    def opened(self, search: str) -> list[Any]:
        """The form of a link, and its answer."""
        values, wrong = parse((search or "").lstrip("?"))
        if not any(values):
            values = tuple(FIRST.get(field.name, "") for field in FIELDS)
        made = self.answer(*shown(values))
        if wrong:
            made[0] = message(self.say("link.wrong"), ", ".join(wrong), "note") + made[0]
        return [*shown(values), *made]

    def panel(self, tab: str, *given: Any) -> list[Any]:
        """The panels whose tab is not open stay as they are; they are made again when it is opened."""
        import gradio

        values = values_of(given)
        made = [
            make(values, self.language, self.local) if name == tab else gradio.skip() for name, make in LAZY.items()
        ]
        return [*made, json.dumps([tab, *values])]

    def fit(self, *given: Any) -> Iterator[str]:
        yield from fitting(values_of(given), self.language, self.local)

    def check(self, paths: list[str] | None, target: str, *given: Any) -> str:
        return checking.checking(paths, target or "", values_of(given), self.language, self.local)


def page(language: str, local: bool) -> gradio.Blocks:
    """The page in one language. ``local``: it is served to this machine only and may read paths that a user types."""
    import gradio

    say = words(language)
    handlers = Handlers(language, local)
    with gradio.Blocks(title=say("title"), analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        gradio.HTML(_head(language, say), padding=False)
        hidden = {name: gradio.Textbox(visible="hidden", elem_id=name) for name in ("asked", "answered", "made")}
        hidden["tab"] = gradio.Textbox("strategies", visible="hidden", elem_id="tab")
        again = {
            name: gradio.Button(visible="hidden", elem_id=name) for name in ("ask-again", "make-again", "look-again")
        }
        with gradio.Row(equal_height=False, elem_id="page"):
            with gradio.Column(scale=2, min_width=300, elem_id="form"):
                made = _form(say)
            with gradio.Column(scale=5, min_width=340, elem_id="answer"):
                summary = gradio.HTML(elem_id="summary", padding=False)
                panels, fields = _tabs(say)
        inputs = [{**made, **fields}[field.name] for field in FIELDS]
        top = [summary, panels["strategies"], panels["why"], hidden["asked"], hidden["answered"]]
        _wire(blocks, handlers, inputs, top, panels, {**hidden, **again})
    return blocks


def _wire(
    blocks: Any, handlers: Handlers, inputs: list[Any], top: list[Any], panels: dict[str, Any], hidden: dict[str, Any]
) -> None:
    """Typing -> answer -> address of the page -> the open panel; and what the buttons do.

    While one answer is under way other keystrokes wait; when it is there the browser asks again if the form holds
    something else by then (``page.js``). Gradio's own ``always_last`` loses a keystroke that comes while an answer is
    being put into the page.
    """
    import gradio

    asked, answered, tab, made = (hidden[name] for name in ("asked", "answered", "tab", "made"))
    # on one component: Gradio tells every one that may show progress, at each event and whether it shows or not
    quiet: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": asked, "queue": False}
    many: dict[str, Any] = {**quiet, "trigger_mode": "multiple"}
    typed = gradio.on(
        [i.input for i in inputs], handlers.answer, inputs, top, api_name="answer", **quiet, trigger_mode="once"
    )
    again = hidden["ask-again"].click(handlers.answer, inputs, top, api_visibility="private", **many)
    entered = inputs[0].submit(handlers.on_enter, inputs, top, api_visibility="private", **many)
    search = "() => window.location.search"
    first = blocks.load(handlers.opened, asked, [*inputs, *top], js=search, api_name="open", **quiet)
    shown_ = [*(panels[name] for name in LAZY), made]

    def make_panel(event: Any, name: str | None = None) -> None:
        named = {"api_name": name} if name else {"api_visibility": "private"}
        done = event(handlers.panel, [tab, *inputs], shown_, **named, **many)
        done.then(None, [made, tab, *inputs], js="(...all) => window.advisorMade(...all)", **many)

    js = f"(m, t, ...now) => window.advisorAnswered(m, t, '{','.join(LAZY)}', ...now)"
    for event in (typed, again, entered, first):
        event.then(None, asked, js="(q) => window.advisorAsked(q)", **many)
        event.then(None, [answered, tab, *inputs], js=js, **many)
    hidden["look-again"].click(None, [answered, tab, *inputs], js=js, **many)
    make_panel(hidden["make-again"].click)
    for name in ("strategies", "why", "fit", "check", *LAZY):
        chosen = panels[f"{name}.tab"].select(None, None, tab, js=f"() => '{name}'", **many)
        if name in LAZY:
            make_panel(chosen.then, name)
    panels["fit.button"].click(
        handlers.fit, inputs, panels["fit"], show_progress="hidden", show_progress_on=asked, api_name="fit"
    )
    gradio.on(
        [panels["check.files"].change, panels["check.target"].input, panels["check.button"].click],
        handlers.check, [panels["check.files"], panels["check.target"], *inputs], panels["check"],
        api_name="check", **many,
    )  # fmt: skip


def _head(language: str, say: Words) -> str:
    """Title, the way to the other language, and the names that the browser offers while typing."""
    other = next(name for name in LANGUAGES if name != language)
    models = "".join(f'<option value="{escape(name)}">' for name in sorted(set(names())))
    cards = "".join(f'<option value="{n}x{escape(card["id"])}">' for card in gpus() for n in (1, 4, 8))
    return (
        f'<header class="top"><h1>{escape(say("title"))}</h1><p>{escape(say("subtitle"))}</p>'
        f'<a id="language" href="/{other}/" data-base="/{other}/" lang="{other}">{LANGUAGES[other]}</a></header>'
        f'<datalist id="models">{models}</datalist><datalist id="cards">{cards}</datalist>'
    )


def _form(say: Words) -> dict[str, Any]:
    """Everything that is asked, what is most asked for first."""
    import gradio

    made: dict[str, Any] = {}
    pairs = ({"model"}, {"gpus"}, {"method", "team"}, {"seq_len", "micro_batch"})
    for names_ in pairs:
        with gradio.Row():
            for field in in_group(MAIN):
                if field.name in names_:
                    made[field.name] = _input(field, say)
    for group in (WORKLOAD, CHOICE, CLUSTER):
        with gradio.Accordion(say(f"group.{group}"), open=False, elem_id=f"group-{group}"):
            for field in in_group(group):
                made[field.name] = _input(field, say)
    return made


def _input(field: Field, say: Words) -> Any:
    """The component of one field."""
    import gradio

    label, named = say(f"field.{field.name}"), f"field-{field.name}"
    info = say(f"info.{field.name}") if _has_info(field.name) else None
    if field.choices == (YES,):
        return gradio.Checkbox(label=label, info=info, elem_id=named)
    if field.several:
        return gradio.CheckboxGroup(list(field.choices), label=label, info=info, elem_id=named)
    if field.choices:
        empty = say("default", value=field.hint) if field.hint else say("not.given")
        options = [(empty, ""), *((choice, choice) for choice in field.choices)]
        return gradio.Dropdown(
            options, value="", label=label, info=info, elem_id=named, allow_custom_value=field.open, min_width=130
        )
    return gradio.Textbox(
        label=label, info=info, placeholder=field.hint, max_lines=1, elem_id=named, min_width=130,
        html_attributes=gradio.InputHTMLAttributes(autocorrect="off", spellcheck=False, autocapitalize="off", autocomplete="off"),
    )  # fmt: skip


def _has_info(name: str) -> bool:
    from selector.ui.texts import has

    return has(f"info.{name}")


def _tabs(say: Words) -> tuple[dict[str, Any], dict[str, Any]]:
    """The panels under the answer, and the two fields that stand in one of them."""
    import gradio

    panels: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    with gradio.Tabs(elem_id="panels"):
        for name in ("strategies", "why", "plots", "explain", "fit", "check", "files"):
            with gradio.Tab(say(f"tab.{name}"), id=name, elem_id=f"panel-{name}") as panels[f"{name}.tab"]:
                if name == "explain":
                    with gradio.Row():
                        for field in in_group(EXPLAIN):
                            fields[field.name] = _input(field, say)
                if name == "fit":
                    panels["fit.button"] = gradio.Button(say("fit.button"), variant="primary", elem_id="fit-button")
                if name == "check":
                    panels["check.files"] = gradio.File(
                        label=say("check.label"), file_count="multiple", file_types=list(checking.ENDINGS),
                        elem_id="check-files", height=150,
                    )  # fmt: skip
                    with gradio.Row():
                        panels["check.target"] = gradio.Dropdown(
                            [(say("convert.not"), ""), *((t, t) for t in checking.TARGETS)], value="",
                            label=say("convert.to"), elem_id="check-target",
                        )  # fmt: skip
                        panels["check.button"] = gradio.Button(say("check.button"), elem_id="check-button")
                panels[name] = gradio.HTML(elem_id=f"{name}-html", padding=False)
    return panels, fields
