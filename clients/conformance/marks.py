"""The list of all scenarios, and what marks one that some clients cannot play."""

SCENARIOS = []
#: Clients in a web page, which `--page` names, and all clients in JavaScript.
PAGE = ("page",)
JAVASCRIPT = ("node", "deno", "bun", "page")


def scenario(function):
    SCENARIOS.append(function)
    return function


def not_with(*clients, why):
    """Marks what no client of these names can play, with the reason: a name of the command line, or `page`."""

    def mark(function):
        function.not_with = dict.fromkeys(clients, why)
        return function

    return mark


def why_not(function, name, pages):
    """Why this client cannot play the scenario; `None` where it can."""
    marks = getattr(function, "not_with", {})
    return marks.get("page" if name in pages else name)
