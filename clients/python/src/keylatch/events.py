"""Server-sent events of a watch or a hold."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """What the service says on a stream: `type` is a word such as `acquired`."""

    type: str
    data: dict[str, Any]


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    """Makes events of the lines of a stream (WHATWG HTML, section 9.2)."""
    kind, data = "", ""
    async for line in lines:
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and kind:
            yield Event(kind, json.loads(data or "{}"))
            kind, data = "", ""
