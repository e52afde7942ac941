from __future__ import annotations

import pytest

from horsies_tui.widgets.page import coloured_json


def _parts(text: str) -> list[tuple[str, str]]:
    content = coloured_json(text)
    assert content.plain == text
    return [(content.plain[span.start : span.end], str(span.style).removeprefix("$text-")) for span in content.spans]


def test_kinds_of_values_have_their_own_colours() -> None:
    assert _parts('  "to": {"n": -2.5e3, "ok": true, "x": null, "s": "a \\"b\\": 1"},') == [
        ('"to"', "primary"),
        (":", "dim"),
        ("{", "dim"),
        ('"n"', "primary"),
        (":", "dim"),
        ("-2.5e3", "accent"),
        (",", "dim"),
        ('"ok"', "primary"),
        (":", "dim"),
        ("true", "secondary"),
        (",", "dim"),
        ('"x"', "primary"),
        (":", "dim"),
        ("null", "secondary"),
        (",", "dim"),
        ('"s"', "primary"),
        (":", "dim"),
        ('"a \\"b\\": 1"', "success"),
        ("},", "dim"),
    ]


@pytest.mark.parametrize("text", ['"cut off', "[" * 50_000, '"' + "\\" * 60_001, '"a":' * 10_000])
def test_any_text_keeps_its_characters(text: str) -> None:
    assert coloured_json(text).plain == text
