"""Makes the tables and plots of docs/performance.md, and the tables of docs/guarantees.md, from what ``--json`` wrote.

    python -m benchmarks.plot [RESULT.json ...]
    python -m benchmarks.plot --check

without arguments from all of benchmarks/results. With ``--check`` it changes nothing, and fails where a page says
something else than the results, and where one was measured at a commit that is not on main; it lists how old they are.
Between ``<!-- NAME -->`` and ``<!-- end NAME -->`` the page has the
table of benchmark NAME, and its plots are docs/performance/NAME-FIGURE.svg; between ``<!-- targets -->`` and its end
it has what was aimed at. No figure on that page is typed by hand, nor in the tables of the other.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence

from benchmarks import provenance
from benchmarks.papers.drawings import DRAWINGS, pyplot
from benchmarks.targets import TARGETS, Report

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(_ROOT, "docs", "performance.md")
GUARANTEES = os.path.join(_ROOT, "docs", "guarantees.md")
PLOTS = os.path.join(_ROOT, "docs", "performance")
RESULTS = os.path.join(_ROOT, "benchmarks", "results")


def main(arguments: Sequence[str]) -> int:
    """Brings pages and plots up to date; returns the exit status."""
    if list(arguments) == ["--check"]:
        return check()
    reports = read(arguments)
    os.makedirs(PLOTS, exist_ok=True)
    for path, texts in tables(reports).items():
        _rewrite(path, {name: "\n\n".join([text, *drawings(name, reports)]) for name, text in texts.items()})
    return 0


def read(paths: Sequence[str] = ()) -> dict[str, Report]:
    """Reads results, all of benchmarks/results if none is named, by name of the benchmark."""
    reports = {}
    for path in paths or sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        with open(path) as file:
            report = json.load(file)
        reports[report["benchmark"]] = report
    return reports


def tables(reports: Mapping[str, Report]) -> dict[str, dict[str, str]]:
    """Makes the text of each table with how it was measured, by page and by name; some results are on no page."""
    page, guarantees = dict[str, str](), dict[str, str]()
    for name, report in reports.items():
        if name == "memory":
            page[name] = memory_table(report)
        elif "table" in report:
            page[name] = f"{_table(report['table'])}\n\n`{report['command']}`. {_machine(report)}."
        elif name == "accuracy":
            guarantees[name] = accuracy_table(report)
        elif name == "accuracy_caching":
            guarantees[name] = accuracy_caching_table(report)
        elif "figures" in report:
            page[name] = table(report)
    page |= {"targets": targets_table(reports), "aims": aims_table(reports)}
    return {PAGE: page, GUARANTEES: guarantees}


def drawings(name: str, reports: Mapping[str, Report]) -> list[str]:
    """Draws the plots of a result; returns the paragraphs that show them."""
    report = reports.get(name, {})
    if name == "memory" or not report:
        return []
    if "table" in report:
        return DRAWINGS[name](report, PLOTS) if name in DRAWINGS else []
    plots = [_plot(name, figure, report) for figure in report.get("figures", ())]
    return ["\n".join(plot for plot in plots if plot)] if plots else []


def check() -> int:
    """Says what pages have that results don't, and which results can't be relied on; returns the exit status."""
    reports = read()
    wrong = [
        f"{os.path.relpath(path, _ROOT)} says something else of {name} than its result: run python -m benchmarks.plot"
        for path, texts in tables(reports).items()
        for name, text in texts.items()
        if text not in _parts(path).get(name, "")
    ]
    if provenance.is_whole(_ROOT):
        wrong += provenance.problems(reports, _ROOT)
        print("\n".join(provenance.ages(reports, _ROOT)))
    else:
        print("the history of the repository is not here, so the commits of results were not looked at")
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def _parts(path: str) -> dict[str, str]:
    """Finds what a page has between the marks of each name."""
    with open(path) as file:
        found = re.findall(r"(?ms)^<!-- (\S+) -->\n(.*?)^<!-- end \1 -->$", file.read())
    return dict(found)


def _rewrite(path: str, texts: Mapping[str, str]) -> None:
    """Puts each text between the marks of its name.

    Raises:
        SystemExit: the page has no such marks.
    """
    with open(path) as file:
        parts = re.split(r"(?m)^(<!-- .* -->\n)", file.read())
    for name, text in texts.items():
        try:
            first, last = parts.index(f"<!-- {name} -->\n"), parts.index(f"<!-- end {name} -->\n")
        except ValueError:
            sys.exit(f"{path} has no place for {name}: add <!-- {name} --> and <!-- end {name} -->")
        parts[first + 1 : last] = [f"\n{text}\n\n"]
    with open(path, "w") as file:
        file.write("".join(parts))


def targets_table(reports: Mapping[str, Report]) -> str:
    """What was aimed at, what was measured."""
    rows = [("question", "aim", "measured", "")]
    for target in TARGETS:
        report = reports.get(target.benchmark)
        value = None if report is None else target.value(report)
        verdict = "" if value is None else "met" if target.met(value) else "**missed**"
        rows.append((target.question, target.aim, "not measured" if value is None else f"{value:.3g}", verdict))
    return _table(rows)


def aims_table(reports: Mapping[str, Report]) -> str:
    """How many of its own aims each experiment met, and which not, with what was measured."""
    rows = [("experiment", "aims", "met", "missed")]
    for _, report in sorted(reports.items()):
        if aims := report.get("aims"):
            wrong = [each for each in aims if not each["met"]]
            missed = [f"{each['aim']}: {_value(each['value'])}, asked {each['asked']}" for each in wrong]
            command = report["command"].partition(" --json")[0]
            rows.append((f"`{command}`", str(len(aims)), str(len(aims) - len(missed)), "; ".join(missed)))
    return _table(rows)


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(report: Report) -> str:
    """Medians, spreads and ratios of one benchmark, and how they were measured."""
    figures = report["figures"]
    head = [""]
    for figure in figures.values():
        head += [figure["unit"], f"of {report['reference']}"]
    rows = [tuple(head)]
    for name, results in report["results"].items():
        note = report["notes"].get(name, "")
        cells = [f"{name} ({note})" if note else name]
        for figure, about in figures.items():
            cells += _cells(results.get(figure), about["digits"])
        rows.append(tuple(cells))
    lines = [_table(rows), "", _how(report)]
    lines += [f"Not installed: {name}." for name in report["skipped"]]
    lines += [f"Failed: {name}." for name in report["failed"]]
    return "\n".join(lines)


def memory_table(report: Report) -> str:
    """What each process held while its consumer stood still, in MiB."""
    rows = [("", "process", "empty", "bound", "held", "grew in the last half", "")]
    for row in report["results"]:
        figures = (f"{row[name] / (1 << 20):,.0f}" for name in ("base", "bound", "held", "grew"))
        rows.append((row["case"], row["role"], *figures, "" if row["kept"] else "**over**"))
    how = f"`{report['command']}`: MiB; each consumer stood still for {report['seconds']:g} s. {_machine(report)}."
    return f"{_table(rows)}\n\n{how}"


def accuracy_table(report: Report) -> str:
    """What was learnt under each guarantee, and whether killing workers changed a deterministic training."""
    found, size = report["identical"], report["size"]
    counts = {"elements": "elements", "lost": "lost", "repeated": "repeated", "steps": "steps"}
    learnt = (
        _learnt(report, counts | {"kills": "workers killed"})
        if report["results"]
        else f"The trainings that are to be compared have not been run yet. `{report['command']}`:"
        f" {size['epochs']} epochs of {report['elements']:,} images."
    )
    same = found["difference"] or "the loss of every step and the final weights are the same, bit for bit"
    return (
        f"{learnt} {_machine(report)}.\n\nThis command trained twice with one seed and `deterministic=True`, "
        f"undisturbed and with {found['kills']} workers killed in {found['seconds']:.0f} s "
        f"({found['at_work']} of them at work): of {found['steps']} steps, {same}."
    )


def accuracy_caching_table(report: Report) -> str:
    """What was learnt with a cache before and behind what augments the images."""
    counts = {"pictures": "different pictures", "kept": "elements kept"}
    return f"{_learnt(report, counts)} {_machine(report)}."


def _learnt(report: Report, counts: Mapping[str, str]) -> str:
    """A row for each way to read the data, and how they were measured.

    Args:
        report: of :mod:`benchmarks.accuracy` or its like.
        counts: name in the report -> column.
    """
    rows: list[tuple[str, ...]] = [("", "test accuracy, %", "against the first", "p", *counts.values())]
    for name, result in report["results"].items():
        mean, reach = result["accuracy"]
        gap, gap_reach = result["against"]
        first = len(rows) == 1
        rows.append(
            (
                name,
                f"{mean:.1f} ± {reach:.1f}",
                "" if first else f"{gap:+.1f} ± {gap_reach:.1f}",
                "" if first else f"{result['chance']:.2g}",
                *(f"{result[count]:,.{1 if count == 'kills' else 0}f}" for count in counts),
            )
        )
    size = report["size"]
    return (
        f"{_table(rows)}\n\n`{report['command']}`: {size['seeds']} seeds, {size['epochs']} epochs of "
        f"{report['elements']:,} images; ± is the 95 % confidence interval (Student's t), differences are paired by "
        f"seed, counts are means of a training."
    )


def _cells(result: Mapping[str, float] | None, digits: int) -> tuple[str, str]:
    if result is None:
        return "", ""
    median, low, high = (f"{result[which]:,.{digits}f}" for which in ("median", "min", "max"))
    return f"{median} ({low} to {high})", f"{result['ratio']:.3g}" if "ratio" in result else ""


def _how(report: Report) -> str:
    return (
        f"`{report['command']}`: medians of {len(report['rounds'])} rounds (smallest to largest), ratios within a"
        f" round. {_machine(report)}."
    )


def _machine(report: Report) -> str:
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    changes = f" (local changes: {machine['local_changes']})" if "local_changes" in machine else ""
    return (
        f"{machine['cpu']}{gpu}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, load before"
        f" {machine['load_before']:.1f}; {machine['python']}, {versions}; commit {machine['commit']}{changes}"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| --- |" + " ---: |" * (len(rows[0]) - 1), *lines[1:]])


def _plot(name: str, figure: str, report: Report) -> str:
    """Draws one figure's medians with their spread; returns the line that shows it, "" if there is nothing to see."""
    found = [(who, results[figure]) for who, results in report["results"].items() if figure in results]
    if len(found) < 2:
        return ""
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(8, 0.34 * len(found) + 0.9), layout="constrained")
    medians = [result["median"] for _, result in found]
    spread = [
        [result["median"] - result["min"] for _, result in found],
        [result["max"] - result["median"] for _, result in found],
    ]
    colours = ["#1f77b4" if who.startswith("millrace") else "#b8bec5" for who, _ in found]
    axes.barh([who for who, _ in found], medians, xerr=spread, color=colours, ecolor="#555555", height=0.7)
    axes.invert_yaxis()
    about = report["figures"][figure]
    axes.set_xlabel(f"{about['unit']} ({'more' if about['more_is_better'] else 'less'} is better)")
    axes.spines[["top", "right"]].set_visible(False)
    path = os.path.join(PLOTS, re.sub(r"[^\w.]+", "-", f"{name}-{figure}") + ".svg")
    drawing.savefig(path, metadata={"Date": None})
    plt.close(drawing)
    return f"![{report['question']} {about['unit']}](performance/{os.path.basename(path)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
