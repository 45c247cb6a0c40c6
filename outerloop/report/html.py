"""Write report.html: a self-contained page with all figures, without references to other files and without scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import outerloop
from outerloop.report import contributors, style, table
from outerloop.report.figures import HOW_TO_READ, Picture
from outerloop.report.groups import Comparison
from outerloop.report.table import Table

CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1500px; margin: 2rem auto;
  padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; }
p { max-width: 75ch; margin: 0.4rem 0; } .quiet { color: #666; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid #e4e4e4; text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { border-bottom: 2px solid #bbb; vertical-align: bottom; }
th.word, td.word { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; max-width: 32rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure img { width: 100%; max-width: 936px; } figcaption { font-size: 0.9rem; color: #444; }
figcaption b { color: #222; }
.swatch { display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px; margin-right: 0.5em; }
details { margin: 0.8rem 0; } summary { cursor: pointer; } pre { white-space: pre-wrap; font-size: 0.8rem; }
"""

UNITS = (
    "val_loss: final validation loss, nats per token. bits/param/round: payload bits per parameter and round, counting"
    " every byte of a worker's messages. sent/worker: payload bytes sent by one worker, counting every copy. tokens:"
    " of the workers on the machine whose run folder was read. wait_s: seconds that a worker waited for its rounds;"
    " not shown if workers took turns in one process. wall_s: duration of the run, seconds."
    " No ±: a single run, or equal values. front: ● if no other group has both a lower loss and fewer bytes."
)


def page(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    """Return the complete HTML page."""
    counts = f"{sum(len(g.finished) for g in comparison.groups)} finished, {len(comparison.unfinished)} unfinished runs"
    body = [
        f"<h1>outerloop report</h1><p class=quiet>{counts} in {len(comparison.groups)} groups"
        f" · outerloop {escape(outerloop.__version__)}</p>",
        *finished_part(comparison),
        *unfinished_part(comparison),
        *(f"<p>Note: {escape(note)}.</p>" for note in comparison.notes()),
        f'<h2>Figures</h2><p class="quiet">{HOW_TO_READ}</p>',
        f'<div class="figures">{"".join(figure_html(picture) for picture in pictures)}</div>',
        *settings_part(comparison),
    ]
    head = f'<meta charset="utf-8"><title>outerloop report</title><style>{CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(body)}\n</body></html>\n'


def finished_part(comparison: Comparison) -> list[str]:
    """Return the HTML of the section on finished runs."""
    if not comparison.finished:
        return ["<h2>Results</h2><p>No run has finished.</p>"]
    results = table.results(comparison)
    runs = f"<details><summary>Every finished run</summary>{table_html(table.runs(comparison), {})}</details>"
    return [
        heading(results),
        table_html(results, swatches(comparison)),
        f"<p class=quiet>{UNITS}</p>",
        runs,
        *map(contributors_html, contributors.tables(comparison)),
    ]


def heading(content: Table) -> str:
    """Return the heading of a table as HTML. Titles may contain names of recipes and values of settings."""
    return f"<h2>{escape(content.title)}</h2>"


def contributors_html(content: Table) -> str:
    """Return the HTML of the contributors of one run."""
    return f"<details><summary>{escape(content.title)}</summary>{table_html(content, {})}</details>"


def unfinished_part(comparison: Comparison) -> list[str]:
    """Return the HTML of the section on runs that died, stopped or are still running, with the reason for each."""
    if not comparison.unfinished:
        return []
    unfinished = table.unfinished(comparison)
    traces = [
        f"<details><summary>Error text of {escape(str(run.path))}</summary><pre>{escape(run.trace)}</pre></details>"
        for _, run in comparison.unfinished
        if "\n" in run.trace.strip()
    ]
    return [heading(unfinished), table_html(unfinished, {}), *traces]


def settings_part(comparison: Comparison) -> list[str]:
    """Return the HTML of the section on settings that differ between groups."""
    if len(comparison.groups) < 2:
        return ["<h2>Settings that differ</h2><p>None: there are fewer than two groups.</p>"]
    few, all_of_them = (table_html(table.settings(comparison, everything=x), {}) for x in (False, True))
    everything = "<summary>All settings that differ, including those implied by a recipe</summary>"
    return ["<h2>Settings that differ</h2>", few, f"<details>{everything}{all_of_them}</details>"]


def swatches(comparison: Comparison) -> dict[str, str]:
    """Return the colour of each group in the figures, by group label."""
    return {group.label: style.colour(i) for i, group in enumerate(comparison.groups)}


def table_html(content: Table, colours: dict[str, str]) -> str:
    """Return a table as HTML. `colours`: text of a row's first cell -> colour of the swatch in front of it."""
    kinds = ["word" if i < content.words else "number" for i in range(len(content.columns))]
    head = "".join(f'<th class="{k}">{escape(c)}</th>' for k, c in zip(kinds, content.columns, strict=True))
    rows = []
    for row in content.rows:
        cells = [f'<td class="{k}">{escape(cell)}</td>' for k, cell in zip(kinds, row, strict=True)]
        if colour := colours.get(row[0]):
            cells[0] = cells[0].replace(">", f'><span class="swatch" style="background:{colour}"></span>', 1)
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def figure_html(picture: Picture) -> str:
    """Return the HTML of one figure, with the PNG embedded."""
    data = base64.b64encode(picture.path.read_bytes()).decode()
    alt, caption = escape(picture.title, quote=True), escape(picture.caption)
    return (
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{escape(picture.title)}.</b> {caption}</figcaption></figure>"
    )
