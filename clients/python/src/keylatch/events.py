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


class EventParser:
    """Makes events of the lines of a stream (WHATWG HTML, section 9.2)."""

    def __init__(self) -> None:
        self._type, self._data = "", ""

    def take(self, line: str) -> Event | None:
        if line.startswith("event:"):
            self._type = line[6:].strip()
        elif line.startswith("data:"):
            self._data += line[5:].strip()
        elif not line and self._type:
            event = Event(self._type, json.loads(self._data or "{}"))
            self._type, self._data = "", ""
            return event
        return None


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    parser = EventParser()
    async for line in lines:
        if (event := parser.take(line)) is not None:
            yield event
