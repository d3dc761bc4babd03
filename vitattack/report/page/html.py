"""HTML as values: a text is escaped wherever it is put, so no text from data can become markup."""

from __future__ import annotations

from collections.abc import Iterable

from vitattack.core.words import in_html


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


Content = str | Markup | None
CLOSED = ("line", "circle")  # of drawings, which have no content


def escaped(text: str) -> Markup:
    """A text as HTML shows it, without control characters and without marks that turn its direction."""
    return text if isinstance(text, Markup) else Markup(in_html(text))


def element(name: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` and `data_x` are written class and data-x; False and None attributes are left out."""
    words = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(attribute)
        elif value is not None and value is not False:
            words.append(f'{attribute}="{escaped(f"{value:g}" if isinstance(value, float) else str(value))}"')
    head = " ".join(words)
    return Markup(f"<{head}/>" if name in CLOSED else f"<{head}>{together(content)}</{name}>")


def together(parts: Iterable[Content]) -> Markup:
    """Several pieces of content, one after the other."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def name_of(text: str, **attributes: str) -> Markup:
    """A name from data, whose own direction does not touch what stands around it."""
    return element("bdi", text, **attributes)
