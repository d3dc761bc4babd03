"""The verdict of every row and the table of all numbers: plain HTML, which the script only sorts and filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitattack.core.percent import percent, span
from vitattack.records.stats import Accuracy
from vitattack.report.overview.attachments import CheckOutcome
from vitattack.report.overview.overview import ImageSet, Overview, Row
from vitattack.report.overview.published import ModelFacts, Published, model_facts
from vitattack.report.overview.run import ShownRun
from vitattack.report.page.html import Markup, element, name_of, together

MOST_VERDICTS = 6
BAR = 120  # width of a drawn interval
COLUMNS = (  # name, how it sorts, and when the script hides it
    ("Model", "text", ""),
    ("Threat", "text", ""),
    ("Images", "text", "same"),
    ("n", "number", ""),
    ("Attack", "text", ""),
    ("Clean %", "number", ""),
    ("Robust %", "number", ""),
    ("95 %", "number", ""),
    ("0 to 100 %", "", ""),
    ("Passes", "number", ""),
    ("Seconds", "number", ""),
    ("M param.", "number", "empty"),
    ("Published %", "number", "empty"),
    ("Gap", "number", "empty"),
    ("Doubts", "number", "empty"),
)
LONG = 32  # characters of a name that may be broken


def verdicts(overview: Overview, checks: Sequence[CheckOutcome] = ()) -> Markup:
    """The first thing on the page: what was found, how surely, at what cost, and why one might doubt it."""
    rows = [(images, row) for images in overview.sets for row in images.rows]
    # what was attacked most comes first, and of equals what withstands most
    rows.sort(key=lambda pair: (-len(pair[1].runs), -pair[0].n, -pair[1].worst.accuracy))
    cards = [_verdict(images, row, checks) for images, row in rows[:MOST_VERDICTS]]
    columns = 2 if len(cards) in (2, 4) else min(3, len(cards))
    more = len(rows) - len(cards)
    rest = element("p", f"{more} more in the leaderboard.", class_="muted") if more else None
    return together([element("div", *cards, class_=f"verdicts verdicts-{columns}"), rest])


def _verdict(images: ImageSet, row: Row, checks: Sequence[CheckOutcome]) -> Markup:
    worst = row.worst
    attacks = row.runs[0].attack if len(row.runs) == 1 else f"the worst case of {len(row.runs)} attacks"
    found = element(
        "p",
        element("strong", f"{worst.correct} of {worst.n}"),
        " images of ",
        name_of(images.data),
        " withstand ",
        name_of(attacks),
        "; ",
        _whole(percent(row.clean.accuracy)),
        " are classified correctly without an attack.",
    )
    cost = element(
        "p",
        f"{row.passes:,.0f} forward and backward passes per attacked image, ",
        _whole(_time(row.seconds)),
        class_="muted",
    )
    return element(
        "article",
        element("h3", name_of(row.model), " under ", name_of(row.threat)),
        element(
            "p",
            element("span", percent(worst.accuracy), class_="figure"),
            element("span", f"robust, 95 % interval {span(worst.low, worst.high, ' to ')}", class_="interval"),
        ),
        interval_line(worst, row.clean, 320),
        found,
        cost,
        *(
            _checked(each)
            for each in checks
            if (each.model, each.threat, each.data) == (row.model, row.threat, images.data)
        ),
        _doubts(row.doubts),
        class_="card verdict",
    )


def _whole(text: str) -> Markup:
    """A text that stays on one line."""
    return element("span", text, class_="whole")


def _checked(check: CheckOutcome) -> Markup:
    return together(
        [
            element("p", element("b", "Certificate: "), check.certificate),
            element("p", element("b", "Checked: "), check.verdict, "; ", "; ".join(check.reasons)),
        ]
    )


def _doubts(doubts: Sequence[str]) -> Markup:
    if not doubts:
        return element("p", "No doubt was raised.", class_="sure")
    head = "1 reason to doubt this number" if len(doubts) == 1 else f"{len(doubts)} reasons to doubt this number"
    items = [element("li", doubt) for doubt in doubts]
    return element("details", element("summary", head), element("ul", *items), class_="doubts", open=len(doubts) < 3)


def leaderboard(overview: Overview) -> Markup:
    """A row for the worst case of every model and threat, and one for each attack of it."""
    heads = [
        element(
            "th",
            element("button", name, type="button") if kind else name,
            scope="col",
            data_kind=kind or None,
            data_hide=hide or None,
        )
        for name, kind, hide in COLUMNS
    ]
    rows = [line for images in overview.sets for row in images.rows for line in _lines(images, row)]
    return element(
        "table",
        element("caption", "Robust accuracy by model, threat and attack", class_="visually-hidden"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        id="board",
    )


def _lines(images: ImageSet, row: Row) -> Iterator[Markup]:
    facts = model_facts(row)
    several = len(row.runs) > 1
    attack = f"worst of {len(row.runs)}" if several else row.runs[0].attack
    kind = "worst" if several else "only"
    yield _line(images, row, kind, attack, row.worst, row.passes, row.seconds, row.doubts, facts)
    for run in row.runs if several else ():
        passes = run.forwards + run.backwards
        yield _line(images, row, "attack", run.attack, run.robust, passes, run.seconds, run.doubts, facts, run)


def _line(
    images: ImageSet,
    row: Row,
    kind: str,
    attack: str,
    robust: Accuracy,
    passes: float,
    seconds: float,
    doubts: Sequence[str],
    facts: ModelFacts,
    run: ShownRun | None = None,
) -> Markup:
    alone = run is None
    published = facts.robust if alone else None
    cells = [
        element("th", name_of(row.model), scope="row", data_v=row.model, class_=_width(row.model)),
        element("td", name_of(row.threat), data_v=row.threat, class_=_width(row.threat)),
        element("td", name_of(images.data), data_v=images.data, class_=_width(images.data)),
        _number(f"{images.n:,}", images.n),
        element("td", name_of(attack), data_v=attack, class_=_width(attack), title=run.job.attack if run else None),
        _number(f"{100 * row.clean.accuracy:.1f}", row.clean.accuracy),
        element("td", element("b", f"{100 * robust.accuracy:.1f}"), class_="number", data_v=robust.accuracy),
        _number(span(robust.low, robust.high), robust.low),
        element("td", interval_line(robust, row.clean), class_="bar"),
        _number(f"{passes:,.1f}", passes),
        _number(f"{seconds:,.1f}", seconds),
        _number(f"{facts.parameters / 1e6:,.1f}", facts.parameters) if facts.parameters else _nothing(),
        _published(published),
        _gap(published),
        _number(str(len(doubts)), len(doubts), "doubted" if doubts else "") if doubts else _nothing(),
    ]
    return element("tr", *cells, class_=kind)


def _width(text: str) -> str:
    return "long" if len(text) > LONG else "short"


def _number(text: str, value: float, class_: str = "") -> Markup:
    return element("td", text, class_=f"number {class_}".strip(), data_v=float(value))


def _nothing() -> Markup:
    return element("td", "", class_="number")


def _published(published: Published | None) -> Markup:
    if published is None:
        return _nothing()
    source = f"{published.source}, n = {published.n or 'not stated'}"
    return element("td", f"{100 * published.value:.1f}", class_="number", data_v=published.value, title=source)


def _gap(published: Published | None) -> Markup:
    if published is None:
        return _nothing()
    gap = published.gap
    colour = "inside" if gap.inside else "above" if gap.difference > 0 else "below"
    what = "explained by sampling" if gap.inside else "more than sampling explains"
    title = f"95 % interval {span(gap.low, gap.high, ' to ', signed=True)}: {what}"
    return element(
        "td", f"{100 * gap.difference:+.1f}", class_=f"number gap {colour}", data_v=gap.difference, title=title
    )


def interval_line(accuracy: Accuracy, clean: Accuracy, width: int = BAR) -> Markup:
    """The share with its interval on a line from 0 to 100 %, and the clean accuracy as a tick."""

    def at(share: float) -> float:
        return round(2 + share * (width - 4), 1)

    low, high = at(accuracy.low), at(accuracy.high)
    parts = [
        element("line", x1=2, x2=width - 2, y1=8, y2=8, class_="rail"),
        element("line", x1=at(clean.accuracy), x2=at(clean.accuracy), y1=2, y2=14, class_="clean"),
        element("line", x1=low, x2=high, y1=8, y2=8, class_="span"),
        element("circle", cx=at(accuracy.accuracy), cy=8, r=4, class_="point"),
    ]
    label = (
        f"{percent(accuracy.accuracy)}, interval {span(accuracy.low, accuracy.high)}, clean {percent(clean.accuracy)}"
    )
    return element("svg", *parts, viewBox=f"0 0 {width} 16", width=width, height=16, role="img", aria_label=label)


def _time(seconds: float) -> str:
    unit, length = ("s", 1) if seconds < 600 else ("min", 60) if seconds < 36000 else ("h", 3600)
    return f"{seconds / length:,.0f} {unit}"
