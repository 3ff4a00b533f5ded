"""A hostile chat template gets nowhere: not out, not on for ever, not too large."""

import pytest

from model.errors import ModelError
from service.text import limits
from service.text.chat_template import ChatTemplate, ChatTemplateError

CHAT = [{"role": "user", "content": "Hi"}]


def render(source: str) -> str:
    return ChatTemplate(source).render(CHAT)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ (messages | attr('__class__')).__mro__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict.mro() }}",
    "{{ range.__globals__.sys }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ raise_exception.__code__.co_code }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': 1}) }}",
    "{{ ''.format.__self__.__class__.__mro__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% for x in messages recursive %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].clear() }}",
    "{% set messages[0].role = 'system' %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends 'base' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises((ChatTemplateError, ModelError)):
        render(source)
    assert CHAT == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    ],
)
def test_a_template_that_takes_too_long_is_cut_off(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.05)
    with pytest.raises(ChatTemplateError, match=r"more than 0\.05 seconds"):
        render(source)


DOUBLING = """{% set n = namespace(a='x') -%}
{% for i in range(40) %}{% set n.a = OPERATION %}{% endfor %}{{ n.a }}"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", r"\*\*"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "characters"),
        ("{{ 'x' * 1000000000 }}", "too large"),
        ("{{ 1000000000 * [0] }}", "too large"),
        ("{{ 10 ** 10 ** 10 }}", "too large"),
        ("{{ '%0999999999d' % 1 }}", "too large"),
        ("{{ '%.999999999f' % 1 }}", "too large"),
        ("{{ '%000000001000000000d' % 1 }}", "too large"),
        ("{{ '%*d' % (999999999, 1) }}", "too large"),
        ("{{ '%((a))0999999999d' % {'(a)': 1} }}", "too large"),
        ("{{ ('%(a)s' * 100000) % {'a': 'x' * 100000} }}", "too large"),
        ("{{ ('%9999d' * 100000) % ((1,) * 100000) }}", "too large"),
        ("{{ '%0999999999d' | format(1) }}", "too large"),
        ("{{ '{:>999999999}'.format(1) }}", "too large"),
        ("{{ '{:{}}'.format(1, 999999999) }}", "too large"),
        ("{{ '{a:>999999999}'.format_map({'a': 1}) }}", "too large"),
        ("{{ ('{0}' * 100000).format('x' * 100000) }}", "too large"),
        ("{{ ('{0.content}' * 10).format(messages) }}", "too large"),
        ("{{ 'x' | center(999999999) }}", "too large"),
        ("{{ ['x'] | map('center', 999999999) | list }}", "too large"),
        ("{{ 'x' | indent(999999999, true) }}", "too large"),
        ("{{ 'x y' | wordwrap(1, wrapstring='x' * 16000000) }}", "too large"),
        ("{{ [] | slice(999999999) | list }}", "too large"),
        ("{{ [1] | batch(999999999, 0) | list }}", "too large"),
        ("{{ 1 | round(999999999, 'ceil') }}", "too large"),
        ("{{ ([[0] * 10000] * 10000) | sum(start=[]) }}", "too large"),
        ("{{ 'x'.center(999999999) }}", "too large"),
        ("{{ 'x'.ljust(999999999) }}", "too large"),
        ("{{ 'x'.rjust(999999999) }}", "too large"),
        ("{{ ('x' | attr('zfill'))(999999999) }}", "too large"),
        ("{{ ('x' | safe).zfill(999999999) }}", "too large"),
        ("{{ '\t'.expandtabs(999999999) }}", "too large"),
        ("{{ ('a' * 100000).translate({97: 'x' * 100000}) }}", "too large"),
        ("{{ 'x'.encode().ljust(999999999) }}", "too large"),
        ("{{ (1).to_bytes(999999999, 'big') }}", "too large"),
        ("{{ ('a' * 100000).replace('a', 'x' * 100000) }}", "too large"),
        ("{{ ('a' * 100000) | replace('a', 'x' * 100000) }}", "too large"),
        ("{{ ('x' * 100000) .join(['a'] * 100000) }}", "too large"),
        ("{{ ''.join(['x' * 100000] * 100000) }}", "too large"),
        ("{{ range(99999) | join('x' * 100000) }}", "too large"),
        ("{{ (['x' * 100000] * 100000) | join }}", "too large"),
        ("{{ ([{'a': 'x' * 100000}] * 100000) | join(attribute='a') }}", "too large"),
        ("{{ ['x' * 100000] * 100000 }}", "too large"),
        ("{{ (['x' * 100000] * 100000) | string }}", "too large"),
        ("{{ (['x' * 100000] * 100000) | tojson }}", "too large"),
        ("{{ [[[[[0]]]]] | tojson(indent=9999999) }}", "too large"),
        ("{{ {'a': ['x' * 100000] * 100000}.values() | upper }}", "too large"),
        ("{{ (['x' * 100000] * 100000) ~ '' }}", "too large"),
        ("{% set n = namespace(a=['x' * 100000] * 100000) %}{{ n }}", "namespace"),
        (DOUBLING.replace("OPERATION", "n.a + n.a"), "too large"),
        (DOUBLING.replace("OPERATION", "n.a ~ n.a"), "too large"),
        (DOUBLING.replace("OPERATION", "'%s%s' % (n.a, n.a)"), "too large"),
        (DOUBLING.replace("OPERATION", "[n.a, n.a]"), "too large|seconds"),
        (DOUBLING.replace("OPERATION", "{'a': n.a, 'b': n.a}"), "too large|seconds"),
        ("{% set a %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}", "large"),
    ],
)
def test_a_template_that_grows_too_large_is_cut_off(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "seconds" not in reason:  # then the size must stop it, on however slow a machine
        monkeypatch.setattr(limits, "MAX_SECONDS", 60.0)
    with pytest.raises(ChatTemplateError, match=reason):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '%s: %d%%' % ('a' * 4000000, 5) }}", 4_000_004),
        ("{{ ('ab' * 4000000).replace('b', '') | length }}", 7),
        ("{{ ('a' * 8000000) ~ ('b' * 8000000) }}", 16_000_000),
        ("{{ 'On 2026-11-29: %s' % 1764374400 }}", 25),
        ("{{ ('word ' * 20000) | wordwrap(80) | length }}", 5),
        ("{% for i in range(50000) %}{{ 'x' | upper }}{% endfor %}", 50_000),
    ],
)
def test_what_is_large_but_allowed_is_rendered(source: str, expected: int) -> None:
    assert len(render(source)) == expected


def test_nothing_is_computed_at_load() -> None:
    template = ChatTemplate("{{ 'x' | center(999999999) }}{{ 'x'.center(999999999) }}")
    with pytest.raises(ChatTemplateError, match="too large"):
        template.render(CHAT)
