"""report.html and compare.html: one file each, with everything in it."""

import html
from collections.abc import Mapping, Sequence

from loadtests.results import Report
from loadtests.table import LEGEND, ratio_rows, rows

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 64rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e4e7eb; }
.facts th, .facts td { text-align: left; } .wide { overflow-x: auto; }
.broken { color: #b42318; } .small { color: #616e7c; font-size: .85rem; }
svg { max-width: 100%; height: auto; }
"""
CAPTIONS = {
    "throughput": "Throughput and goodput",
    "ttft": "Time to first token",
    "itl": "Inter-token latency",
    "cdf": "Distributions",
    "server": "What the server said of itself",
}
CLOSED = (
    "Closed loop: a request is sent when another has ended, so a slow server is asked less. "
    "Times count from the sending."
)
OPEN = (
    "Open loop: requests are sent when they are due, whether or not others were answered, and "
    "times count from when they were due. Waiting that the load makes is seen whole: no "
    "coordinated omission."
)


def render(report: Report, pictures: Mapping[str, str]) -> str:
    loop = OPEN if report.levels[0].kind == "rate" else CLOSED
    parts = [
        f"<p>{_text(loop)}</p>",
        "<h2>Levels</h2>",
        _grid(rows(report.levels)),
        f'<p class="small">{_text(LEGEND)}</p>',
        *_complaints(report),
        *_pictures(pictures),
        *_facts(report),
    ]
    return _page(f"{report.label}: {report.scenario}", report.started, parts)


def render_comparison(before: Report, after: Report, pictures: Mapping[str, str]) -> str:
    parts = [
        f"<h2>{_text(after.label)} / {_text(before.label)}</h2>",
        _grid(ratio_rows(before, after)),
        '<p class="small">More is better for tok/s, req/s and good/s, less for the rest.</p>',
        *_pictures(pictures),
        f"<h2>{_text(before.label)}</h2>",
        _grid(rows(before.levels)),
        *_facts(before),
        f"<h2>{_text(after.label)}</h2>",
        _grid(rows(after.levels)),
        *_facts(after),
    ]
    return _page(f"{before.label} and {after.label}", after.started, parts)


def _page(title: str, started: str, parts: Sequence[str]) -> str:
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>",
            f'<h1>{_text(title)}</h1><p class="small">{_text(started)}</p>',
            *parts,
            "</body></html>\n",
        )
    )


def _complaints(report: Report) -> list[str]:
    """What failed, and which objectives weren't kept."""
    lines = [
        f"{level.label}: {', '.join(f'{num} × {kind}' for kind, num in level.errors.items())}; "  # noqa: RUF001
        f"the first: {level.first_error}"
        for level in report.levels
        if level.errors
    ]
    lines += [f"{level.label}: {broken}" for level in report.levels for broken in level.broken]
    return [f'<p class="broken">{_text(line)}</p>' for line in lines]


def _pictures(pictures: Mapping[str, str]) -> list[str]:
    return [f"<h2>{CAPTIONS[name]}</h2>{svg}" for name, svg in pictures.items()]


def _facts(report: Report) -> list[str]:
    work = {"scenario": report.scenario, "seed": str(report.seed)} | report.work
    groups = {
        "Work": work | {"objectives": report.objectives},
        "Server": report.server,
        "Machine of the load": report.machine,
    }
    return [f"<h3>{name}</h3>{_list(facts)}" for name, facts in groups.items()]


def _list(facts: Mapping[str, str]) -> str:
    lines = (f"<tr><th>{_text(name)}</th><td>{_text(value)}</td>" for name, value in facts.items())
    return f'<table class="facts">{"".join(lines)}</table>'


def _grid(grid: Sequence[Sequence[str]]) -> str:
    heads, *body = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in grid)
    head = heads.replace("td>", "th>")
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def _text(text: str) -> str:
    return html.escape(text)
