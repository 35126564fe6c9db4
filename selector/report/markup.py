"""HTML of reports: one page that needs no network, legible on a phone and on paper. Every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLOURS = {"fits": "#1a7f37", "tight": "#8a5a00", "unknown": "#0550ae", "no": "#b00020"}
WORDS = {"fits": "fits", "tight": "tight", "unknown": "unknown", "no": "does not fit"}
STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:62rem;background:#fff;color:#1a1a1a;font:16px/1.5 system-ui,"DejaVu Sans",sans-serif;
overflow-wrap:anywhere}
h1{font-size:1.45rem;line-height:1.25;margin:.2em 0 .5em}
h2{font-size:1.15rem;margin:1.8em 0 .5em;border-bottom:1px solid #ccc;padding-bottom:.2em}
h3{font-size:1rem;margin:1.2em 0 .3em}
p,ul,ol{margin:.5em 0}ul,ol{padding-left:1.3em}
table{border-collapse:collapse;width:100%;font-size:.9rem}
.wide{overflow-x:auto}
th,td{text-align:left;vertical-align:top;padding:.3em .6em .3em 0;border-bottom:1px solid #e2e2e2}
th{font-weight:600}thead th{color:#555}
td.n,th.n{text-align:right;white-space:nowrap;padding-right:1em;font-variant-numeric:tabular-nums}
th,td{overflow-wrap:break-word}
.facts th{width:34%;font-weight:400;color:#555}
.verdict{display:inline-block;padding:0 .5em;border:1.5px solid;border-radius:.4em;font-weight:600;white-space:nowrap}
pre{background:#f5f5f5;padding:.7em;font-size:.8rem;line-height:1.4;white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0}
code{font-size:.9em}
.quiet{color:#555;font-size:.9rem}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
svg.tree{display:block;width:100%;max-width:30rem;height:auto;margin:.5em 0}
svg.plot{display:block;width:100%;max-width:34rem;height:auto}
summary{cursor:pointer;padding:.25em 0}
@media (min-width:30rem){table.stack td.k{width:34%}}
@media (max-width:30rem){body{padding:12px}td,th{padding-right:.4em}
table.stack thead{display:none}table.stack tr{display:block;border-bottom:1px solid #ccc;padding:.35em 0}
table.stack td{display:block;border:0;padding:.05em 0;text-align:left;white-space:normal;overflow-wrap:anywhere}
table.stack td.k{font-weight:600}
table.stack td[data-title]:not(:empty)::before{content:attr(data-title) ": ";color:#555}
table.stack td:empty{display:none}}
@media print{body{max-width:none;padding:0;font-size:10.5pt}h2,h3{break-after:avoid}
svg,tr{break-inside:avoid}.wide{overflow:visible}table{font-size:8.5pt}td.n,th.n{padding-right:.5em;white-space:normal}
pre{border:1px solid #ccc}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.pictures{grid-template-columns:1fr 1fr}a{color:inherit}}
@page{margin:15mm}
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document: no script, no font, no picture from elsewhere."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it; nothing where there is nothing to say."""
    inner = "\n".join(p for p in parts if p)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inner}\n</section>" if inner else ""


def bullets(lines: Iterable[str]) -> str:
    """Lines as a list."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def paragraph(text: str, quiet: bool = False) -> str:
    return f"<p{' class=quiet' if quiet else ''}>{escape(text)}</p>" if text else ""


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Name and value, a row each."""
    lines = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in rows)
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, stack: bool = False) -> str:
    """A table; columns of numbers to the right. ``stack``: a phone shows each row as a block.

    A cell ``verdict:fits`` is drawn as a verdict.
    """
    body = [[str(c) for c in row] for row in rows]
    if not body:
        return ""
    numeric = {i for i in range(len(titles)) if all(_number(row[i]) for row in body) and any(row[i] for row in body)}

    def cell(i: int, text: str) -> str:
        mark = ' class="n"' if i in numeric else ' class="k"' if i == 0 else ""
        title = f' data-title="{escape(titles[i])}"' if stack and i else ""
        shown = verdict(text.removeprefix("verdict:")) if text.startswith("verdict:") else escape(text)
        return f"<td{mark}{title}>{shown}</td>"

    head = "".join(
        f'<th scope="col"{" class=n" if i in numeric else ""}>{escape(title)}</th>' for i, title in enumerate(titles)
    )
    lines = "".join("<tr>" + "".join(cell(i, text) for i, text in enumerate(row)) + "</tr>" for row in body)
    kind = ' class="stack"' if stack else ""
    return f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _number(text: str) -> bool:
    bare = text.removesuffix(" %").removesuffix("%").lstrip("-+").replace(",", "").replace(".", "")
    return not text or text in ("-", "none") or bare.isdigit()


def verdict(name: str) -> str:
    """The verdict in its colour and in words."""
    colour = COLOURS.get(name, "#555")
    return f'<span class="verdict" style="color:{colour}">{escape(WORDS.get(name, name))}</span>'


def pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
