"""Runs every scenario with every client, and prints one table.

    run.py KEYLATCH NAME=COMMAND... [--page NAME=COMMAND] [--only SCENARIO,...]

KEYLATCH is the binary of the service; COMMAND starts the program of a client, which `README.md` describes. That of `--page`
has its client in a web page. Where a client has no such thing as a scenario needs, the table has a number in place of a
result, and below it says why; `marks.py` knows the clients by their NAME.
"""

import argparse
import asyncio
import shlex
import shutil
import sys
import traceback
from pathlib import Path

import language  # noqa: F401
import scenarios  # noqa: F401
from marks import SCENARIOS, why_not
from stage import Stage

# Most of a scenario is waiting, so more of them run at once than there are cores.
AT_ONCE = 8


async def play(scenario, keylatch, command, turns):
    async with turns:
        stage = Stage(keylatch, command)
        try:
            async with stage:
                await scenario(stage)
            # A browser that is killed may still be writing.
            shutil.rmtree(stage.directory, ignore_errors=True)
            return None
        except Exception:
            return traceback.format_exc() + (stage.directory / "log").read_text()[-2000:]


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("keylatch")
    arguments.add_argument("clients", nargs="+")
    arguments.add_argument("--page", action="append", default=[])
    arguments.add_argument("--only")
    arguments = arguments.parse_args()
    keylatch = str(Path(arguments.keylatch).resolve())
    pages = dict(client.split("=", 1) for client in arguments.page)
    clients = dict(client.split("=", 1) for client in arguments.clients) | pages
    only = arguments.only.split(",") if arguments.only else [each.__name__ for each in SCENARIOS]
    played = [each for each in SCENARIOS if each.__name__ in only]
    turns = asyncio.Semaphore(AT_ONCE)
    unplayed = {(each, name): why for each in played for name in clients if (why := why_not(each, name, pages))}
    reasons = sorted(set(unplayed.values()))
    pairs = [(each, name) for each in played for name in clients if (each, name) not in unplayed]
    plays = (play(scenario, keylatch, shlex.split(clients[name]), turns) for scenario, name in pairs)
    results = dict(zip(pairs, await asyncio.gather(*plays)))

    def cell(pair):
        if pair in unplayed:
            return f"[{reasons.index(unplayed[pair]) + 1}]"
        return "red" if results[pair] else "ok"

    width = max(len(scenario.__doc__.splitlines()[0]) for scenario in played)
    print(" " * width, *clients, sep=" | ")
    for scenario in played:
        cells = [cell((scenario, name)).ljust(len(name)) for name in clients]
        print(scenario.__doc__.splitlines()[0].ljust(width), *cells, sep=" | ")
    for number, reason in enumerate(reasons, 1):
        print(f"[{number}] {reason}")
    red = {pair: failure for pair, failure in results.items() if failure}
    for (scenario, name), failure in red.items():
        print(f"\n{scenario.__name__} with {name}:\n{failure}", file=sys.stderr)
    print(f"{len(played)} scenarios, {len(clients)} clients, {len(red)} red")
    sys.exit(bool(red))


asyncio.run(main())
