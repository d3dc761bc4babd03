"""The file: the skeleton with style, script, content and columns inside, and a policy that allows nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.core.versions import package_version
from vitattack.report.overview.attachments import Attachments
from vitattack.report.overview.figures import figures
from vitattack.report.overview.overview import Overview
from vitattack.report.page import details, leaderboard
from vitattack.report.page.html import Markup, element, escaped
from vitattack.report.page.packing import Packing
from vitattack.report.page.payload import json_for_page, payload
from vitattack.report.page.pictures import strips
from vitattack.report.page.skeleton import filled, policy, source

SCRIPTS = ("dom", "data", "theme", "board", "charts", "figures", "images", "compare", "main")


def page(
    overview: Overview,
    attachments: Attachments = Attachments(),
    *,
    title: str = "Robustness report",
    classes: Sequence[str] = (),
    pictures: int = 60,
) -> str:
    """The HTML of a report; the same stores give the same bytes.

    `classes` are names of classes, and `pictures` is how many images of a run are shown, where it has them.
    """
    style = source("page.css")
    script = "'use strict';(() => {\n" + "\n".join(source(f"{name}.js") for name in SCRIPTS) + "\n})();"
    packing = Packing()
    shown = figures(overview, attachments)
    content = json_for_page(payload(overview, shown, classes, strips(overview.runs, pictures), packing))
    parts = {
        "policy": policy(style, script),
        "title": escaped(title),
        "style": style,
        "script": script,
        "content": content,
        "columns": packing.text(),
        "main": _main(overview, attachments, has_figures=bool(shown)),
        "about": escaped(_about(overview)),
        "version": escaped(package_version("vitattack") or ""),
    }
    return filled("page.html", parts)


def _about(overview: Overview) -> str:
    runs, models = len(overview.runs), len({run.job.model for run in overview.runs})
    if not runs:
        return "no finished run"
    return f"{runs} run{'s' * (runs > 1)} on {models} model{'s' * (models > 1)}"


def _main(overview: Overview, attachments: Attachments, *, has_figures: bool) -> Markup:
    if not overview.runs:
        empty = element(
            "section",
            element("h2", "Nothing to show yet"),
            element("p", "No run in these stores is finished. Start one with ", element("code", "vitattack eval"), "."),
            class_="card",
        )
        sections = [empty, details.unfinished(overview.unfinished)]
    else:
        sections = [
            element(
                "section", element("h2", "Verdict"), leaderboard.verdicts(overview, attachments.checks), id="verdict"
            ),
            element(
                "section",
                element("h2", "Leaderboard"),
                element("div", id="board-tools", class_="tools"),
                element(
                    "div",
                    leaderboard.leaderboard(overview),
                    class_="scroll",
                    tabindex=0,
                    role="region",
                    aria_label="Leaderboard",
                ),
                id="leaderboard",
            ),
            details.unfinished(overview.unfinished),
        ]
    sections += [details.compared(attachments.compared), details.checks(attachments.checks)]
    if overview.runs:
        sections.append(_filled_by_script("compare", "Compare, image by image"))
    if has_figures:
        sections.append(_filled_by_script("figures", "Figures"))
    if overview.runs:
        sections.append(_filled_by_script("images", "Images"))
        runs = element("section", element("h2", "Runs"), details.run_details(overview), id="runs")
        sections.append(runs)
    return Markup("\n".join(section for section in sections if section is not None))


def _filled_by_script(name: str, title: str) -> Markup:
    needs = element("p", "This part needs JavaScript.", class_="muted")
    return element("section", element("h2", title), element("div", needs, class_="filled"), id=name)
