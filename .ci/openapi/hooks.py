"""Bounds what schemathesis asks for, without making it right or wrong."""

import schemathesis

WAIT_MS = 20
# Of a name, and of a name in an access list: limits count bytes, JSON Schema counts characters.
NAME_MAX = 1024
WHO_MAX = 256


def whole(value):
    """Whole numbers are written without a point: to JSON Schema both are integers, to us one is."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def within(text, limit):
    """A text of as many characters as are allowed, cut to as many bytes."""
    if not isinstance(text, str) or len(text) > limit:
        return text
    fits = len(text.encode("utf-8", "surrogatepass")) <= limit
    return text if fits else text[: limit // 4]


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Nobody waits for long: a short wait is as valid as a long one, and a wrong one stays wrong."""
    if isinstance(case.body, (dict, list, float)):
        case.body = whole(case.body)
    if "name" in (case.path_parameters or {}):
        case.path_parameters["name"] = within(case.path_parameters["name"], NAME_MAX)
    for side in ("read", "write"):
        if isinstance(case.body, dict) and isinstance(case.body.get(side), list):
            case.body[side] = [within(who, WHO_MAX) for who in case.body[side]]
    if not case.operation.path.endswith("/acquire"):
        return
    if not isinstance(case.body, (dict, list, str, bytes, int, float, bool, type(None))):
        # No body asks for the usual wait, which is long.
        case.body = {}
        case.media_type = "application/json"
    if isinstance(case.body, dict):
        name = case.path_parameters.get("name")
        if "slots" in case.body and isinstance(name, str) and 1000 < len(name) <= 1024:
            # The names of slots are longer than that of their semaphore.
            case.path_parameters["name"] = name[:1000]
        wait = case.body.get("wait_ms", WAIT_MS)
        if wait is None or (type(wait) is int and wait >= 0):
            case.body["wait_ms"] = WAIT_MS if wait is None else min(wait, WAIT_MS)
