"""Large floats survive jsonb."""

from __future__ import annotations

from typing import Any

import asyncpg
from pydantic import JsonValue

from horsies.codec.canonical_json import canonical_json, parse_json


async def test_large_floats_stay_floats_after_jsonb(connection: asyncpg.Connection[Any]) -> None:
    floats: list[JsonValue] = [1e16, -1.5e22, 1.7976931348623157e308, 5e-324, 1.0]

    stored = await connection.fetchval("SELECT $1::text::jsonb::text", canonical_json(floats))

    found: Any = parse_json(stored)
    assert found == floats
    assert {type(number) for number in found} == {float}
