"""What schemathesis leaves out, and why: the document cannot say these rules.

* The pattern of a key in quotes cannot count its characters.
* A stream does not end, so `hold` and `events` are left out as a whole (`run.py`).
* A copy is of an `embedded:` store, and these requests are of `memory:`: `backup` is left out likewise.
* A cursor is one that the service gave.
* The service counts bytes where a schema counts characters.
* `body`, `body_base64` and `json` exclude one another, and so do `not-executed` or `undone` and an answer.
* `fingerprint` and `request` exclude one another.
* `body_base64` has to be base64.
* A `limit` is for the mode `shared`, and `max_ahead` for a request that waits.
* A header's value may be a text alone, where the document has the list of values.
* A member of null is absent, though the document has no null for a member that may be absent. So is a body of null.
* A name with a dot segment (`.`, `..`) is gone before the request is sent, and a control character in a path
  may become U+FFFD, after it was found to be valid or not.
* The toy shop fails when it is asked to (`fail`), and takes its time (`delay_ms`).
* Waiting takes its time (`wait_ms`).
* schemathesis takes a large number with a fraction for an integer (`fencing_token`).
"""

import schemathesis

# The name of the identity stands before a label, which has 256 bytes with it.
LABEL = 240


def too_long(value, limit):
    return isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > limit


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


def has_null(value):
    if isinstance(value, dict):
        value = list(value.values())
    return value is None or (isinstance(value, list) and any(has_null(one) for one in value))


def has_surrogate(value):
    return any("\ud800" <= c <= "\udfff" for text in texts(value) for c in text)


def is_left_out(body):
    if not isinstance(body, dict):
        return False
    if any(is_left_out(body.get(name)) for name in ("answer", "request")):
        return True
    two_prints = "fingerprint" in body and "request" in body
    one_body = sum(name in body for name in ("body", "body_base64", "json")) > 1
    no_answer = body.get("outcome") in ("not-executed", "undone") and "answer" in body
    no_limit = "limit" in body and body.get("mode") != "shared"
    no_wait = "max_ahead" in body and "wait_ms" not in body
    headers = body.get("headers")
    text_header = isinstance(headers, dict) and any(isinstance(value, str) for value in headers.values())
    null_items = any(has_null(one) for name, one in body.items() if name != "json")
    takes_time = is_within(body.get("wait_ms"), 20, 300_000) or is_within(body.get("delay_ms"), 20, 60_000)
    fails = is_within(body.get("fail"), 399, 599)
    no_base64 = body.get("body_base64") is not None
    token = body.get("fencing_token")
    if isinstance(token, float) and abs(token) > 2**49:
        return True
    return two_prints or one_body or no_answer or no_limit or no_wait or text_header or null_items or takes_time or fails or no_base64


def is_within(value, above, most):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and above < value <= most


@schemathesis.hook
def filter_case(context, case):
    path, query, body = case.path_parameters or {}, case.query or {}, case.body
    segments = [value for value in path.values() if isinstance(value, str)]
    if any(segment in (".", "..") or not segment.replace("\ufffd", "\n").isprintable() for segment in segments):
        return False
    if query.get("cursor") is not None or body is None:
        return False
    if too_long((case.headers or {}).get("Idempotency-Key"), 255):
        return False
    names = body.get("names") if isinstance(body, dict) else None
    names = names if isinstance(names, list) else []
    if any(too_long(name, 255) for name in [path.get("name"), *names]):
        return False
    if too_long(query.get("entry"), 64) or too_long(query.get("prefix"), 255):
        return False
    if isinstance(body, dict):
        labels = [body.get(name) for name in ("owner", "by")]
        if any(too_long(label, LABEL) for label in labels) or too_long(body.get("reason"), 256):
            return False
        if too_long(body.get("entry"), 64):
            return False
        if too_long(body.get("fingerprint"), 1024):
            return False
    return not is_left_out(body) and not has_surrogate(body)
