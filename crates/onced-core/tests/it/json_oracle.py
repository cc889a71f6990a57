"""Pairs of JSON texts, and whether they are the same value: by Python's json and decimal modules, which share no code
with what is tested.

Usage: json_oracle.py COUNT SEED. For each pair one byte (1 for equal), then both texts, each after its length (four bytes,
big endian). Numbers are compared by exact decimal value, texts by code points, arrays in order, objects by names. A text
that has no such value (a name twice, half a surrogate pair, no JSON) equals itself only, byte for byte.
"""

import json
import random
import struct
import sys
from decimal import Decimal, MAX_EMAX, Context, setcontext

setcontext(Context(prec=10_000, Emax=MAX_EMAX, Emin=-MAX_EMAX))

WORDS = ["", "a", "b", "id", "é", "e\u0301", "é\u0301", "\U00010000", "\ue000", "\uffff", "\u2028", "\x7f", "\x00", "\n", '"', "\\", "/", "100", "null", "1", " a", "a "]


class Unreadable(Exception):
    pass


# Values are modelled as ("word", text) | ("number", mantissa, exponent) | ("text", text) | ("list", items) | ("map", {name: value}).

def some_number(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return ("number", rng.randrange(-12, 13), rng.randrange(-3, 4))
    if kind == 1:
        return ("number", rng.choice([2**53, 2**63, 2**64, 10**16, 10**17, 10**18]) + rng.randrange(-2, 3), 0)
    if kind == 2:
        return ("number", rng.randrange(10**17, 10**20), rng.randrange(-20, 3))
    if kind == 3:
        return ("number", rng.randrange(1, 30), rng.choice([-999999999, 999999999, -400, 308, 309, 400, 10**15]))
    if kind == 4:
        return ("number", 0, 0)
    if kind == 5:
        return ("number", rng.randrange(-10**6, 10**6), -2)
    if kind == 6:
        return ("number", rng.getrandbits(200) * rng.choice([1, -1]), rng.randrange(-60, 10))
    return ("number", 10 ** rng.randrange(0, 25), rng.randrange(-25, 5))


def some_value(rng, depth=0):
    kind = rng.randrange(10 if depth < 4 else 6)
    if kind == 0:
        return ("word", rng.choice(["null", "true", "false"]))
    if kind <= 3:
        return some_number(rng)
    if kind <= 5:
        return ("text", "".join(rng.choice(WORDS) for _ in range(rng.randrange(3))))
    if kind <= 7:
        return ("list", [some_value(rng, depth + 1) for _ in range(rng.randrange(4))])
    return ("map", {"".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 3))): some_value(rng, depth + 1) for _ in range(rng.randrange(5))})


def places(value, path=()):
    yield path
    if value[0] == "list":
        for at, item in enumerate(value[1]):
            yield from places(item, path + (at,))
    if value[0] == "map":
        for name, item in value[1].items():
            yield from places(item, path + (name,))


def changed(value, path, change):
    if not path:
        return change(value)
    if value[0] == "list":
        items = list(value[1])
        items[path[0]] = changed(items[path[0]], path[1:], change)
        return ("list", items)
    members = dict(value[1])
    members[path[0]] = changed(members[path[0]], path[1:], change)
    return ("map", members)


def near(rng, value):
    """Another value that a careless reader takes for the same."""
    kind = value[0]
    if kind == "number":
        mantissa, exponent = value[1:]
        return rng.choice([
            ("number", mantissa + 1, exponent), ("number", mantissa - 1, exponent), ("number", -mantissa, exponent),
            ("number", mantissa, exponent + 1), ("number", mantissa * 10, exponent), ("number", mantissa * 10 + 1, exponent - 1),
            ("number", mantissa * 10**20 + 1, exponent - 20), ("text", str(mantissa)), ("list", [value]),
        ])
    if kind == "text":
        text = value[1]
        return rng.choice([
            ("text", text + " "), ("text", text + "\u0301"), ("text", text.replace("é", "e\u0301")), ("text", text.upper()),
            ("text", text + "\x00"), ("text", "\ufffd" + text), ("number", 100, 0), ("word", "null"),
        ])
    if kind == "word":
        return rng.choice([("word", "null"), ("word", "true"), ("word", "false"), ("text", value[1]), ("number", 0, 0), ("number", 1, 0)])
    if kind == "list":
        items = list(value[1])
        how = rng.randrange(5)
        if how == 0:
            items.reverse()
        elif how == 1:
            items = items[:-1]
        elif how == 2:
            items.append(("word", "null"))
        elif how == 3:
            rng.shuffle(items)
        else:
            return ("map", {str(at): item for at, item in enumerate(items)})
        return ("list", items)
    members = dict(value[1])
    how = rng.randrange(4)
    if how == 0 and members:
        members.pop(rng.choice(list(members)))
    elif how == 1:
        members.setdefault(rng.choice(WORDS), ("word", "null"))
    elif how == 2 and members:
        name = rng.choice(list(members))
        members[name + rng.choice(["\u0301", " ", "\x00", ""])] = members.pop(name)
    elif len(members) > 1:
        one, two = rng.sample(list(members), 2)
        members[one], members[two] = members[two], members[one]
    return ("map", members)


def written_number(rng, mantissa, exponent):
    zeros = rng.randrange(4) if mantissa else 0
    sign = "-" if mantissa < 0 or (mantissa == 0 and rng.randrange(2)) else ""
    digits, exponent = str(abs(mantissa)) + "0" * zeros, exponent - zeros
    if mantissa == 0 and rng.randrange(2):
        exponent = rng.randrange(-5, 400)
    fraction = ""
    if rng.randrange(2) and len(digits) > 1:
        cut = rng.randrange(1, len(digits))
        digits, fraction, exponent = digits[:cut], digits[cut:], exponent + len(digits) - cut
    elif rng.randrange(3) == 0:
        lead = rng.randrange(1, 4)
        fraction, digits, exponent = "0" * (lead - 1) + digits, "0", exponent + lead - 1 + len(digits)
    if rng.randrange(4) == 0:
        fraction += "0" * rng.randrange(1, 4)
    text = sign + digits + ("." + fraction if fraction else "")
    if exponent == 0 and rng.randrange(2):
        return text
    if 0 < exponent < 5 and not fraction and digits != "0" and rng.randrange(2):
        return text + "0" * exponent
    return text + rng.choice("eE") + ("-" if exponent < 0 else rng.choice(["", "+"])) + rng.choice(["", "", "0", "00"]) + str(abs(exponent))


SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def written_text(rng, text):
    out = []
    for c in text:
        needs = c < " " or c in '"\\'
        if c in SHORT and rng.randrange(2):
            out.append(SHORT[c])
        elif needs or rng.randrange(3) == 0:
            units = c.encode("utf-16-be")
            for at in range(0, len(units), 2):
                digits = units[at:at + 2].hex()
                out.append("\\u" + (digits.upper() if rng.randrange(2) else digits))
        else:
            out.append(c)
    return '"' + "".join(out) + '"'


def written(rng, value):
    def blank():
        return rng.choice(["", "", "", " ", "\n", "\t ", "\r\n"])

    kind = value[0]
    if kind == "word":
        text = value[1]
    elif kind == "number":
        text = written_number(rng, value[1], value[2])
    elif kind == "text":
        text = written_text(rng, value[1])
    elif kind == "list":
        text = "[" + ",".join(written(rng, item) for item in value[1]) + blank() + "]"
    else:
        members = list(value[1].items())
        rng.shuffle(members)
        text = "{" + ",".join(blank() + written_text(rng, name) + blank() + ":" + written(rng, item) for name, item in members) + blank() + "}"
    return blank() + text + blank()


def spoiled(rng, text):
    """A text that cannot be read in one way, or not at all."""
    return rng.choice([
        '{"a":1,"a":' + text + "}", '{"a":' + text + ',"\\u0061":1}', '["\\ud800",' + text + "]", '["\\udc00\\ud800",' + text + "]",
        text + ",", "[" + text, text + " 1", "+" + text, "[" + text + ",]", "\ufeff" + text, "[NaN," + text + "]", "[01," + text + "]",
    ])


def members_of(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unreadable
    return members


def refused(_word):
    raise Unreadable


def read(text):
    """The value by Python's own reader; not the model from which the text was written."""
    try:
        value = json.loads(text, parse_int=Decimal, parse_float=Decimal, parse_constant=refused, object_pairs_hook=members_of)
        whole(value)
    except ValueError as error:
        raise Unreadable from error
    return value


def whole(value):
    if isinstance(value, str):
        value.encode("utf-8")  # a ValueError for half a pair
    elif isinstance(value, list):
        for item in value:
            whole(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            whole(name)
            whole(item)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(item, b[name]) for name, item in a.items())
    return a == b


def equal(first, second):
    if first == second:
        return True
    try:
        return same(read(first), read(second))
    except Unreadable:
        return False


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    out = sys.stdout.buffer
    for _ in range(count):
        value = some_value(rng)
        kind = rng.randrange(20)
        other = value
        if kind >= 8:
            place = rng.choice(list(places(value)))
            other = changed(value, place, lambda at: near(rng, at)) if kind < 18 else some_value(rng)
        first, second = written(rng, value), written(rng, other)
        if rng.randrange(25) == 0:
            first = spoiled(rng, first)
            second = rng.choice([first, first, second, first + " "])
        one, two = first.encode("utf-8"), second.encode("utf-8")
        out.write(struct.pack(">BI", equal(first, second), len(one)) + one + struct.pack(">I", len(two)) + two)
    out.flush()


main()
