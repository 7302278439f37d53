"""The page of the evaluation: plots, and the paper's claims beside our numbers.

Model: the tables of an output folder (`data`) go into plots (`lines`, `bars`, in the look of
`style`) and into verdicts (`claims`, `rules`); `page` sets both on one page, as Markdown and HTML.
Nothing is simulated here, and no verdict is typed by hand: rules decide, on what the tables hold.
A table that is not there leaves out its plot and its verdicts, and the page says so.
Thread rule: one thread. Cost: some seconds, nearly all of it drawing.
"""

from __future__ import annotations

from pathlib import Path

from examples.paper.report import bars, claims, data, lines, page
from examples.paper.report.style import context, save

_DRAW = {
    "overhead": lines.overhead,
    "latency": lines.latency,
    "fragmentation": bars.fragmentation,
    "budgets": bars.budgets,
    "published": lines.published,
    "ablation-overhead": lines.ablation_overhead,
    "ablation-published": lines.ablation_published,
    "ablation-fragmentation": bars.ablation_fragmentation,
    "batch": bars.batch,
    "real": bars.real,
}


def write(folder: Path) -> None:
    """Writes the plots (PNG and SVG), index.md and index.html into a folder of tables.

    Args:
      folder: where the CSV files are. Any of them may be missing.

    Raises:
      ValueError: a file there is no table of ours; the message names it and the line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = data.read(folder)
    drawn = []
    for name, draw in _DRAW.items():
        with context():
            figure = draw(results)
        if figure is None:  # a plot of an earlier run would not be of these tables
            for ending in ("png", "svg"):
                (folder / f"{name}.{ending}").unlink(missing_ok=True)
        else:
            save(figure, folder / name)
            drawn.append(name)
    blocks = page.blocks(results, claims.judge_all(results), drawn)
    (folder / "index.md").write_text(page.markdown(blocks), encoding="utf-8")
    (folder / "index.html").write_text(page.html(blocks), encoding="utf-8")
