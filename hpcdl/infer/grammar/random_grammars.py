"""Random schemas and patterns for random_grammars.test.cpp, and what the original libraries say about them.

  random_grammars.py schemas SEED COUNT   lines {"schema": ..., "documents": [text, ...]}: texts that jsonschema finds valid
  random_grammars.py validate FILE        lines {"schema": ..., "text": ...} of FILE: fails for a text that is not valid
  random_grammars.py patterns SEED COUNT  lines {"pattern": ..., "texts": [[text, whether re.fullmatch accepts it], ...]}
"""
import json
import random
import re
import sys

NAMES = ["a", "b", "ab", "id", "name", 'quo"te', "é", "new\nline", "", "x1", "tags", "次"]
ALPHABET = ["a", "b", "z", "0", "9", " ", '"', "\\", "/", "\n", "\t", "\x01", "\x7f", "é", "日", "\U0001f600"]
PATTERNS = [("^[a-z]{1,5}$", lambda r: "".join(r.choice("abz") for _ in range(r.randint(1, 5)))),
            ("^(foo|bar)-\\d+$", lambda r: r.choice(["foo", "bar"]) + "-" + str(r.randint(0, 999))),
            ("[\"\\n]", lambda r: text(r, 3) + r.choice('"\n') + text(r, 3)),
            ("^[^@\\s]{1,8}@[a-z]{2,4}\\.com$", lambda r: "me@here.com"),
            ("^[^a]*$", lambda r: text(r, 5).replace("a", ""))]
FORMATS = [("date", lambda r: "2024-02-29"), ("date-time", lambda r: "1999-12-31T23:59:59.5Z"),
           ("uuid", lambda r: "123e4567-e89b-12d3-a456-426614174000"), ("ipv4", lambda r: "127.0.0.1"),
           ("time", lambda r: "12:30:00+02:00")]


def text(r, most, least=0):
    return "".join(r.choice(ALPHABET) for _ in range(r.randint(least, most)))


def a_string(r):
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "string"}, lambda: text(r, 12)
    if kind == 1:
        least = r.choice([0, 1, 3, 20])
        most = least + r.choice([0, 2, 30])
        return {"type": "string", "minLength": least, "maxLength": most}, lambda: text(r, most, least)
    if kind == 2:
        pattern, make = r.choice(PATTERNS)
        return {"type": "string", "pattern": pattern}, lambda: make(r)
    name, make = r.choice(FORMATS)
    return {"type": "string", "format": name}, lambda: make(r)


def an_integer(r):
    if r.random() < 0.3:
        return {"type": "integer"}, lambda: r.randint(-10**r.randint(1, 17), 10**r.randint(1, 17))
    low = r.choice([-1000, -37, -5, 0, 1, 8, 99])
    high = low + r.choice([0, 1, 9, 95, 12345])
    schema = {"type": "integer", "minimum": low, "maximum": high}
    if r.random() < 0.4:
        del schema["minimum"], schema["maximum"]
        schema.update(exclusiveMinimum=low - 1, exclusiveMaximum=high + 1)
    return schema, lambda: r.randint(low, high)


def a_number(r):
    if r.random() < 0.4:
        return {"type": "number"}, lambda: r.choice([r.randint(-99, 99), round(r.uniform(-1e3, 1e3), r.randint(1, 9)), 1.5e-7])
    low = r.choice([-12.5, -1, 0, 0.001, 3.75])
    high = low + r.choice([0.5, 1.25, 100])
    return {"type": "number", "minimum": low, "exclusiveMaximum": high}, lambda: min(max(round(r.uniform(low, high), 3), low), high - 0.01)


def a_list(r, depth, names):
    schema, rest, prefix = {"type": "array"}, None, []
    if r.random() < 0.3:
        prefix = [a_schema(r, depth - 1, names) for _ in range(r.randint(1, 3))]
        schema["prefixItems"] = [s for s, _ in prefix]
    if r.random() < 0.8 or depth <= 1:
        item = a_schema(r, depth - 1, names)
        schema["items"], rest = item
    least = r.choice([0, 0, 1, 2, 18])
    most = least + r.choice([0, 1, 5])
    if least:
        schema["minItems"] = least
    schema["maxItems"] = most
    others = rest or (lambda: r.choice([None, 1, "x", [], {"k": [True]}]))
    return schema, lambda: [prefix[i][1]() if i < len(prefix) else others() for i in range(r.randint(least, most))]


def an_object(r, depth, names):
    chosen = r.sample(NAMES, r.randint(0, 4))
    inner = {name: a_schema(r, depth - 1, names) for name in chosen}
    required = [name for name in chosen if r.random() < 0.5]
    schema = {"type": "object", "properties": {name: s for name, (s, _) in inner.items()}, "required": required}
    more, extra = r.choice([False, None, True, "schema"]), None
    if more == "schema":
        schema["additionalProperties"], extra = a_schema(r, depth - 1, names)
    elif more is not None:
        schema["additionalProperties"] = more
    if more in (None, True):
        extra = lambda: r.choice([1, "y", None])

    def make():
        out = {name: m() for name, (_, m) in inner.items() if name in required or r.random() < 0.5}
        if extra and r.random() < 0.5:
            for name in r.sample(NAMES, 2) + ["idx", "na"]:
                if name not in chosen:
                    out[name] = extra()
        return out

    return schema, make


def a_choice(r, depth, names):
    parts = [a_schema(r, depth - 1, names) for _ in range(r.randint(1, 3))]
    return {"anyOf": [s for s, _ in parts]}, lambda: r.choice(parts)[1]()


def one_of(r, depth, names):
    tags = r.sample(["x", "y", "z"], 2)
    parts = []
    for tag in tags:
        inner, make = a_schema(r, depth - 1, names)
        parts.append(({"type": "object", "properties": {"kind": {"const": tag}, "v": inner}, "required": ["kind", "v"],
                       "additionalProperties": False}, lambda tag=tag, make=make: {"kind": tag, "v": make()}))
    return {"oneOf": [s for s, _ in parts]}, lambda: r.choice(parts)[1]()


def a_schema(r, depth, names):
    if depth > 0 and r.random() < 0.6:
        return r.choice([a_list, an_object, an_object, a_choice, one_of])(r, depth, names)
    kind = r.randrange(8)
    if kind == 0 and names:
        name = r.choice(names)
        # A tree: its own values end soon.
        return {"$ref": "#/$defs/" + name}, lambda: tree(r, 2)
    if kind == 1:
        values = r.sample([None, True, 0, -3, 2.5, "a", "aa", 'q"', "é", [1, {"b": "c"}], {"k": [], "l": None}, 10**12], r.randint(1, 6))
        return {"enum": values}, lambda: r.choice(values)
    if kind == 2:
        value = r.choice(["c", 7, None, [], {"z": 1, "a": 2}])
        return {"const": value}, lambda: value
    if kind == 3:
        one, two = a_string(r), an_integer(r)
        return {**one[0], **two[0], "type": ["string", "integer", "null"]}, lambda: r.choice([one[1](), two[1](), None])
    if kind == 4:
        return r.choice([({"type": "boolean"}, lambda: r.random() < 0.5), ({"type": "null"}, lambda: None), ({}, lambda: r.choice([1, {}, "t"]))])
    return r.choice([a_string, an_integer, a_number])(r)


def tree(r, depth):
    return {"value": r.randint(0, 9), "children": [tree(r, depth - 1) for _ in range(r.randint(0, 2) if depth else 0)]}


def written(r, value):
    style = r.choice([{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}])
    return json.dumps(value, ensure_ascii=False, **style)


def validator(schema):
    import jsonschema
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def print_schemas(seed, count):
    for i in range(count):
        r = random.Random(seed * 1000003 + i)
        schema, make = a_schema(r, 3, ["tree"])
        schema["$defs"] = {"tree": {"type": "object", "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                                    "required": ["value", "children"], "additionalProperties": False}}
        check, documents = validator(schema), []
        for _ in range(4):
            value = make()
            if check.is_valid(value):
                documents.append(written(r, value))
        print(json.dumps({"schema": json.dumps(schema), "documents": documents}))


def validate(path):
    count = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            value = json.loads(case["text"])
            validator(json.loads(case["schema"])).validate(value)
            count += 1
    print("valid", count)


def a_pattern(r, depth, inside=False):
    kind = r.randrange(9 if depth else 4)
    if kind == 0:
        return r.choice(["a", "b", "é", "\\.", "\\n", "x", " ", "日"])
    if kind == 1:
        return r.choice([".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "[ab]", "[^a]", "[a-c0-2é]", "[^\\d\\n]", "[]x]", "[\\w-]"])
    if kind == 2:
        return r.choice(["ab", "ba", "aab"])
    if kind == 3:
        return r.choice(["", "a", "b"])
    if kind in (4, 5):
        return "".join(a_pattern(r, depth - 1, inside) for _ in range(r.randint(1, 3)))
    if kind == 6:
        return "(?:" + "|".join(a_pattern(r, depth - 1, inside) for _ in range(r.randint(1, 3))) + ")"
    # re takes exponential time for long repeats inside of repeats.
    repeat = r.choice(["?", "{2}", "??", "{0,2}"] if inside else ["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,20}", "{17,18}", "*?", "+?"])
    return "(" + a_pattern(r, depth - 1, True) + ")" + repeat


def print_patterns(seed, count):
    for i in range(count):
        r = random.Random(seed * 1000003 + i)
        pattern = a_pattern(r, 4)
        compiled, texts = re.compile(pattern, re.ASCII), []
        lengths = [0, 1, 2, 3, 4, 6] + ([18, 36] if pattern.count("(") < 2 else [])
        for _ in range(30):
            some = "".join(r.choice("aaabbx1. \né日") for _ in range(r.choice(lengths)))
            texts.append([some, compiled.fullmatch(some) is not None])
        print(json.dumps({"pattern": pattern, "texts": texts}))


if __name__ == "__main__":
    if sys.argv[1] == "validate":
        validate(sys.argv[2])
    else:
        {"schemas": print_schemas, "patterns": print_patterns}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
