#!/usr/bin/env python3
"""What jinja2 makes of chat templates, in the environment that transformers renders them in.

    python make_chat_golden.py                  rewrites chat_templates.json: small templates, one construct each
    python make_chat_golden.py templates TIME   prints, a line each, the templates of the llama.cpp source package,
                                                conversations and their prompts; TIME is that of strftime_now.
                                                $HPCDL_CHAT_TEMPLATES is a folder that holds them; otherwise the package
                                                llama-cpp-python is fetched. Exit status 77: it cannot be.
"""
import datetime
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
PACKAGE = "llama-cpp-python==0.3.36"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters.update(tojson=tojson, from_json=json.loads)
    env.globals.update(raise_exception=raise_exception,
                       strftime_now=lambda form: datetime.datetime.fromtimestamp(now).strftime(form))
    return env


def rendered(template, variables):
    """None for an error."""
    try:
        return template.render(**variables)
    except Exception:
        return None


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def tool_call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Gets the weather <in> \"a\" citt\u00e0 & more",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "City name"}, "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object", "required": ["lat"], "properties": {
                "lat": {"type": "number"}, "lon": {"type": ["number", "null"]}}}}},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "The time",
                                      "parameters": {"type": "object", "properties": {}}}},
]
CALL = tool_call("get_weather", {"city": "Paris", "days": 2, "tags": ["a", "b"], "where": {"lat": 1.5, "lon": None},
                                 "ok": True}, "call12345")
CONVERSATIONS = [
    [user("Hello")],
    [system("Be brief."), user("Hi  there\n")],
    [user("One"), assistant("Two"), user("Three"), assistant("Four\n\n"), user("Five")],
    [user(""), assistant(""), user("x")],
    [system("\u00dcn\u00efcode \u2603"), user("\u65e5\u672c\u8a9e \U0001f600 <b>'q' \"d\"</b>\t\\n"), assistant("caf\u00e9 & co"), user("ok?")],
    [user("2+2?"), assistant("<think>\nadd them\n</think>\n\n4"), user("sure?"), assistant("yes", reasoning_content="hmm"), user("and?")],
    [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "text", "text": "this"}]}],
    [system("Use tools"), user("Weather?"), assistant("", tool_calls=[CALL]),
     {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"t\": 20}"}, assistant("It is 20."), user("Thanks")],
    [user("Weather?"), assistant(None, tool_calls=[tool_call("get_weather", "{\"city\": \"Rome\"}", "abcdefghi"), tool_call("now", "{}", "abcdefgh2")]),
     {"role": "tool", "tool_call_id": "abcdefghi", "content": "warm"}, {"role": "tool", "tool_call_id": "abcdefgh2", "content": "noon"}],
    [user("a"), user("b")],
    [user("a"), assistant("b")],
    [],
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
KWARGS = [{}, {"enable_thinking": False},
          {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "date_string": "26 Jul 2024"}]


def sources():
    folder = os.environ.get("HPCDL_CHAT_TEMPLATES")
    if folder:
        return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).glob("*.jinja"))}
    with tempfile.TemporaryDirectory() as place:
        # Its metadata is made by its build system, which pip fetches as well.
        fetched = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--retries", "1",
                                  "--timeout", "30", "-d", place, PACKAGE], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        archives = list(pathlib.Path(place).glob("*.tar.gz"))
        if fetched.returncode != 0 or not archives:
            sys.stderr.write(f"cannot fetch {PACKAGE}: set HPCDL_CHAT_TEMPLATES to a folder of *.jinja\n")
            sys.exit(77)
        with tarfile.open(archives[0]) as archive:
            return {pathlib.Path(m.name).name: archive.extractfile(m).read() for m in archive.getmembers()
                    if "/models/templates/" in m.name and m.name.endswith(".jinja")}


def print_templates(now):
    env = environment(now)
    for name, source in sources().items():
        text = source.decode("utf-8")
        template = env.from_string(text)
        cases = []
        for messages in CONVERSATIONS:
            for tools in (None, TOOLS):
                for kwargs in KWARGS:
                    variables = {"messages": messages, "tools": tools, "documents": None,
                                 "add_generation_prompt": len(cases) % 2 == 0, **SPECIAL, **kwargs}
                    cases.append({"variables": variables, "text": rendered(template, variables)})
        print(json.dumps({"name": name, "template": text, "cases": cases}))


VARIABLES = {
    "n": 7, "x": 2.5, "big": 1e20, "tiny": 1e-7, "yes": True, "no": False, "nothing": None, "word": "Stra\u00dfe \u0130 na\u00efve",
    "text": " \tone, two\r\nthree \u3000", "html": "<a href='x'>\"&\"</a>", "empty": "", "numbers": [3, 1, 2, 1], "names": ["b", "A", "c", "a"],
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cid", "age": 30, "tags": []}],
    "map": {"b": 1, "a": [1, {"\u00e9": None}], "items": "hidden", "C": 1.0, "10": True}, "none_list": [],
    "odd": "tab\t nl\n q' dq\" bs\\ nul\x00 \x7f \x1b \u2028 \U0001f600 \ue000",
}
EXPRESSIONS = """
n + 1, n - 1, n * 2, n / 2, n // 2, n % 3, -n // 2, -n % 3, 7 // -2, 7 % -2, n ** 2, 2 ** -1, -2 ** 2, 2 ** 3 ** 2, x // 1, -x % 2, 7.5 // -2
x, big, tiny, 1.0, 100000.0, 1e15, 1e16, 123456789.123, 0.1 + 0.2, 1e-4, 0.00001, 1 / 3, -0.0
yes + yes, yes == 1, 1 == 1.0, '1' == 1, none == nothing, undefined_a == undefined_b, [1] == [1.0], {'a': 1} == {'a': true}
'a' < 'b', [1, 2] < [1, 3], 1 < 2 < 3, 1 < 3 < 2, 'a' in 'abc', 3 in numbers, 'b' in map, 'z' not in map, not 1 in [1], 1 if no, (1 if no) is defined
yes and n, no and n, n or no, empty or nothing, not empty, 'a' ~ 1 ~ none ~ true ~ x ~ undefined_a, 'a' 'b', 'ab' * 3, [1] * 2, 2 * 'x'
[1, 'a', none, true, 1.5, ('x',), (), [], {}, {'k': [1]}], (1, 2), {'a': 1, 1: 'b', none: true, 'a': 2}
word[0], word[-1], word[1:4], word[::-1], word[10:2], word[-3:], numbers[1:], numbers[::-1], numbers[::2], numbers[-10:10], numbers[99] is defined
map.b, map['a'][1], map.items is callable, map['items'], map.nope is defined, people.0.name, people[0]['age'], map.get('b'), map.get('q'), map.get('q', 5)
map.items() | list, map.keys() | list, map.values() | list, map | list, map | length, map | items | list, map | dictsort, map | dictsort(reverse=true)
word | upper, word | lower, word | title, word | capitalize, word.upper(), word.title(), 'hello wORLD-foo_bar' | title, 'hello wORLD-foo_bar'.title()
text | trim, text.strip(), text.lstrip(), text.rstrip(), 'xxaxx'.strip('x'), 'xxaxx' | trim('x'), text.split(), text.split(','), 'a b c'.split(' ', 1), 'a  b '.split(' ')
'a b c'.rsplit(' ', 1), 'a b c'.rsplit(none, 1), ' a b  c '.split(none, 1), text.splitlines(), 'a\\n\\nb\\n'.splitlines(true), 'a-b-c'.partition('-'), 'abc'.rpartition('-')
'abc'.startswith('a'), 'abc'.startswith(('x', 'a')), 'abc'.endswith('c'), 'abc'.replace('b', 'x'), 'aaa'.replace('a', 'b', 2), 'abc' | replace('', '-'), 'abc'.find('c'), 'n\u00e4\u00df'.find('\u00df'), 'abcabc'.rfind('b'), 'abcb'.count('b')
'abc'.removeprefix('a'), 'abc'.removesuffix('c'), ', '.join(names), names | join(', '), people | join('-', attribute='name'), 'a1'.isalnum(), '12'.isdigit(), 'ab'.isalpha(), '  '.isspace(), ''.isdigit(), 'AB'.isupper(), 'ab1'.islower()
'{} and {}'.format(1, 'b'), '{0}{1}{0} {x}'.format(1, 2, x=3), '{{}}'.format(), '%s is %d %%' % ('a', 3), '%s' % 'q', '%s' | format('z'), '%r' % 'z'
numbers | sort, names | sort, names | sort(case_sensitive=true), numbers | sort(reverse=true), people | sort(attribute='age') | map(attribute='name') | list, numbers | unique | list, names | unique | list
numbers | min, numbers | max, names | min, [] | max is defined, numbers | sum, people | sum(attribute='age'), numbers | first, numbers | last, [] | first is defined, numbers | reverse | list, 'abc' | reverse, numbers | length, 'n\u00e4h' | length
people | map(attribute='tags') | list, people | map(attribute='tags', default='-') | list, names | map('upper') | list, numbers | select('odd') | list, numbers | reject('odd') | list, numbers | select('gt', 1) | list, numbers | select | list
people | selectattr('tags') | map(attribute='name') | list, people | selectattr('age', 'equalto', 30) | list | length, people | rejectattr('tags', 'defined') | list | length, people | selectattr('name', 'in', ['Ann', 'Cid']) | map(attribute='age') | list
nothing | selectattr('a') | list, [1, 2, 3, 4, 5] | batch(2) | list, [1, 2, 3] | batch(2, 'x') | list, 'abc' | list, (1, 2) | list, undefined_a | list, undefined_a | length, undefined_a | default('d'), empty | default('d'), empty | default('d', true), nothing | d('x')
map | tojson, map | tojson(indent=2), people | tojson(indent=1), map | tojson(sort_keys=true), odd | tojson, odd | tojson(ensure_ascii=true), html | tojson, numbers | tojson(separators=(',', ':')), [] | tojson(indent=2), {} | tojson, {'a': {}} | tojson(indent=4), {1: 2, none: 3, true: 4} | tojson, x | tojson, big | tojson, undefined_a | tojson, (1, 2) | tojson
odd | string, [odd] | string, {'k': odd} | string, html | e, html | escape | string, html | safe, ('<b>' | safe) + '<i>', '<i>' + ('<b>' | safe), ('<b>' | safe) ~ '<i>', n | string, yes | string, nothing | string
'12' | int, '12.7' | int, 'x' | int, 'x' | int(5), ' 3 ' | int, 'ff' | int(0, 16), 2.9 | int, -2.9 | int, nothing | int, '1.5' | float, 'x' | float, 2.5 | round, 3.5 | round, 2.675 | round(2), 2.1 | round(method='ceil'), 2.9 | round(0, 'floor'), 5 | round, -3 | abs, 2.5 | abs
'a\\nb\\n\\nc' | indent, 'a\\nb\\n\\nc' | indent(2, first=true), 'a\\n\\nb' | indent(1, blank=true), 'a\\n' | indent, 'a\\nb' | indent('> ')
n is odd, n is even, n is number, yes is number, yes is integer, x is float, x is integer, word is string, map is mapping, numbers is sequence, map is sequence, numbers is iterable, n is iterable, word is iterable, undefined_a is iterable, nothing is none, nothing is not none, n is divisibleby 7, n is eq 7, n is sameas 7, yes is true, no is false, yes is boolean, range is callable, 'a' is in 'abc', 'A' is upper, 'a' is lower, undefined_a is undefined, n is not defined, 3 is gt 2, n is ge(7)
range(3) | list, range(1, 10, 3) | list, range(5, 0, -2) | list, range(0) | list, dict(a=1, b=2), namespace(a=1).a, [namespace(a=1)] | map(attribute='a') | list
"a\\tb\\x41\\u00e9\\'\\q", 'it\\'s', "\\101", 1_000, 1_0.5, 2e3, 1.e, 'a'.b, nothing.x, nothing.x.y, undefined_a.b, undefined_a + 1, -undefined_a, undefined_a < 1, undefined_a[0], undefined_a(), n(), map.nope.nope, numbers.append(1), 'a' + 1, nothing + 1, nothing | length, n | list, 1 // 0, [] < {}, 'abc'[none], map[undefined_a] is defined
""".strip().split("\n")
TEMPLATES = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\n  {% if yes %}  \n b\n  {%- endif -%}  \n c\n\n", "  {%+ if yes %}x{% endif +%}\ny", "{# c #}\na\n  {# d -#}\n  b {#- e #} c",
    "{% raw %} {{ x }} {% if %}{% endraw %}\nx", "a {%- raw -%} {{ y }} {%- endraw -%} b", "{{ 'a' }}\n{{ 'b' }}\n\n", "a\r\nb\rc\n{{ 'd' }}\r\n", "{{- ' a ' -}} b {{- n -}} \n", "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{% for i in numbers %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ ',' if not loop.last }}{% endfor %}", "{% for i in numbers %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in numbers if i > 1 %}{{ loop.index }}{{ i }}{% else %}none{% endfor %}", "{% for i in none_list %}x{% else %}empty{% endfor %}", "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for c in word %}{{ c }}.{% endfor %}", "{% for x in undefined_a %}x{% endfor %}", "{% for x in n %}x{% endfor %}", "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in numbers %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in numbers %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y is defined }}", "{% if yes %}{% set q = 1 %}{% endif %}{{ q }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set t = 1, %}{{ t }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]", "{% filter upper %}abc{{ word }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aca{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% macro f(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, c=2) }}|{{ f(b=1, a=2) }}|{{ f() }}", "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(3) %}<{{ y }}>{% endcall %}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ f() }}", "{% for i in [1] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}",
    "{% macro f() %}\n  a\n{% endmacro %}{{ f() | trim }}", "{% generation %}x{{ n }}{% endgeneration %}", "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if undefined_a %}a{% else %}b{% endif %}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}", "{% set n.a = 1 %}", "{{ raise_exception('x') }}",
    "{% for p in people | sort(attribute='age') %}{{ p.name }}{% endfor %}", "{{ loop is defined }}", "{% for a in [1, 2] %}{% for b in [3] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% set d = {'x': 1} %}{% set d.y = 2 %}",
]


def golden():
    env = environment(0)
    cases = []
    for template in TEMPLATES + ["{{ %s }}" % e for line in EXPRESSIONS for e in split_expressions(line)]:
        try:
            text = rendered(env.from_string(template), VARIABLES)
        except jinja2.TemplateSyntaxError:
            text = None
        cases.append({"template": template, "text": text})
    return {"variables": VARIABLES, "cases": cases}


def split_expressions(line):
    """At commas outside brackets and strings."""
    out, depth, quote, begin = [], 0, "", 0
    for i, c in enumerate(line):
        if quote:
            if c == quote and line[i - 1] != "\\":
                quote = ""
        elif c in "'\"":
            quote = c
        else:
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                out.append(line[begin:i].strip())
                begin = i + 1
    return out + [line[begin:].strip()]


if sys.argv[1:2] == ["templates"]:
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")
    print_templates(int(sys.argv[2]))
else:
    (HERE / "chat_templates.json").write_text(json.dumps(golden(), indent=0) + "\n", encoding="utf-8")
