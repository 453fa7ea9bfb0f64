"""What functions are called, and which are refused where they are given."""

import functools
import inspect
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import PipelineError
from millrace.functions.signature import describe, name_of, where_of


def decode(element):
    return element


def augment(element, rng):
    return element


def pair(image, label):
    return image


class Augment:
    def __init__(self, strength):
        self.strength = strength

    def apply(self, element, rng):
        return element

    @classmethod
    def build(cls, element):
        return element

    @staticmethod
    def plain(element):
        return element

    def __call__(self, element, *, rng):
        return element


def line(fn):
    return f"{__file__.rpartition('/')[2]}:{fn.__code__.co_firstlineno}"


def passes_on(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def supplies_rng(fn):
    @functools.wraps(fn)
    def wrapper(element):
        return fn(element, rng=None)

    return wrapper


@pytest.mark.parametrize(
    ("fn", "takes_rng"),
    [
        (decode, False),
        (augment, True),
        (lambda element, *, rng: element, True),
        (lambda element, scale=2, rng=None: element, True),
        (lambda rng: rng, False),
        (lambda *everything: everything, False),
        (lambda element, **options: element, False),
        (lambda element, noise=None: element, False),
        (Augment(1), True),
        (Augment(1).apply, True),
        (Augment.build, False),
        (Augment.plain, False),
        (Augment, False),
        (functools.partial(augment), True),
        (functools.partial(augment, rng=None), False),
        (functools.partial(pair, 1), False),
        (functools.partial(lambda element, scale, rng: element, scale=2), True),
        (passes_on(augment), True),
        (passes_on(passes_on(augment)), True),
        (passes_on(decode), False),
        (supplies_rng(augment), False),
        (np.sqrt, False),
        (int, False),
        (len, False),
        (str.upper, False),
        (np.stack, False),
        (functools.cache(decode), False),
    ],
)
def test_who_gets_a_generator(fn, takes_rng):
    assert describe(fn, "map").takes_rng is takes_rng


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (decode, "decode"),
        (Augment, "Augment"),
        (Augment(1), "Augment"),
        (Augment(1).apply, "Augment.apply"),
        (Augment.build, "Augment.build"),
        (functools.partial(decode), "partial(decode)"),
        (passes_on(decode), "decode"),
        (np.sqrt, "sqrt"),
        (int, "int"),
        (len, "len"),
        ([1, 2], "list"),
    ],
)
def test_names(fn, name):
    assert name_of(fn) == name


def test_local_functions_are_named_without_what_is_around_them():
    def inner(element):
        return element

    assert name_of(inner) == "inner"


def test_a_lambda_is_named_by_its_place():
    def fn(element):
        return element

    here = lambda element: element  # noqa: E731
    assert describe(here, "map").name == f"lambda at {where_of(here)}"
    assert where_of(here).endswith(line(here))
    assert name_of(functools.partial(here)).startswith("partial(lambda at ")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (decode, decode),
        (functools.partial(decode), decode),
        (Augment(1).apply, Augment.apply),
        (Augment(1), Augment.__call__),
        (Augment, Augment.__init__),
        (passes_on(decode), decode),
        (functools.cache(decode), decode),
    ],
)
def test_places(value, code):
    assert where_of(value).endswith(line(code))


@pytest.mark.parametrize("value", [np.sqrt, int, len, [1], None, 7])
def test_what_is_not_python_has_no_place(value):
    assert where_of(value) == ""


def test_a_notebook_cell_is_called_so():
    space: dict[str, Any] = {}
    exec(compile("def cell(x):\n    return x\n", "/tmp/ipykernel_17/3204.py", "exec"), space)
    assert where_of(space["cell"]) == "notebook cell:1"


def test_places_are_relative_to_the_working_directory_or_short(tmp_path, monkeypatch):
    for path, place in [(tmp_path / "data" / "ops.py", "data/ops.py:1"), (tmp_path.parent / "ops.py", "ops.py:1")]:
        space: dict[str, Any] = {}
        exec(compile("def f(x): return x", str(path), "exec"), space)
        monkeypatch.chdir(tmp_path)
        assert where_of(space["f"]) == place


def refused(fn, operator="map", **options):
    with pytest.raises(PipelineError) as raised:
        describe(fn, operator, **options)
    return str(raised.value)


def test_two_arguments_are_refused_with_what_to_write():
    message = refused(pair)
    assert message.startswith("map(pair): pair (")
    assert "takes (image, label), but is called with (element)" in message
    assert "tuples are not unpacked as in tf.data" in message
    assert "Write `lambda pair: pair(*pair)`" in message
    assert "if `label` is meant to be the random generator, name it `rng`" in message


def test_a_refused_lambda_is_placed_once():
    message = refused(lambda a, b: a)
    assert message.count("test_signature.py") == 2  # in map(...), and as the subject
    assert "`lambda pair: f(*pair)`" in message


def test_no_argument_is_refused():
    assert "takes no argument, but is called with (element)." in refused(lambda: 1)
    assert "takes no argument" in refused(lambda *, element: element)
    assert "takes no argument" in refused(lambda **options: options)


def test_a_required_keyword_is_refused():
    message = refused(lambda element, *, scale: element)
    assert "needs the keyword `scale`" in message
    assert "functools.partial(f, scale=...)" in message


def test_a_generator_by_position_only_is_refused():
    assert "takes `rng` by position only" in refused(lambda element, rng, /: element)


def test_what_cannot_be_called_is_refused():
    assert refused(3, "filter") == "filter() takes a function of (element), not 3 of type int."
    assert "not 'aaaaaaaaaa" in refused("a" * 500)
    assert len(refused("a" * 500)) < 120


def test_async_functions_are_refused():
    async def fetch(element):
        return element

    assert "map(fetch): fetch (" in refused(fetch)
    assert "is an async function" in refused(fetch)


def test_operators_of_two_arguments():
    two = ("key", "elements")
    assert describe(pair, "group_by_window", two) == (name_of(pair), where_of(pair), False)
    assert "takes only (element), but is called with (key, elements)." in refused(
        decode, "group_by_window", arguments=two
    )
    message = refused(lambda a, b, c: a, "group_by_window", arguments=two)
    assert "takes (a, b, c), but is called with (key, elements). Give `c` a default" in message
    assert "tuples" not in message
    assert describe(lambda a, rng: a, "group_by_window", two).takes_rng is False


def test_a_description_is_what_opaque_takes():
    assert describe(augment, "map")._fields == ("name", "where", "takes_rng")


NAMES = st.lists(st.sampled_from(["x", "y", "rng", "scale"]), unique=True, max_size=4)


@st.composite
def signatures(draw):
    """Source of a parameter list."""
    names = draw(NAMES)
    slash, star = sorted((draw(st.integers(0, len(names))), draw(st.integers(0, len(names)))))
    first_default = draw(st.integers(0, star))
    parts = []
    for number, name in enumerate(names):
        if number == star:
            parts.append(draw(st.sampled_from(["*", "*rest"])))
        default = number >= first_default if number < star else draw(st.booleans())
        parts.append(f"{name}=None" if default else name)
        if number + 1 == slash:
            parts.append("/")
    if draw(st.booleans()):
        parts.append("**options")
    return ", ".join(parts)


@given(signatures())
def test_accepted_exactly_if_the_call_works(text):
    fn = eval(f"lambda {text}: None")
    signature = inspect.signature(fn)
    try:
        description = describe(fn, "map")
    except PipelineError as error:
        if "by position only" in str(error):
            assert re.search(r"rng(=None)?,.*/", text)
            return
        for keywords in ({}, {"rng": None}):
            with pytest.raises(TypeError):
                signature.bind("element", **keywords)
        return
    signature.bind("element", **({"rng": None} if description.takes_rng else {}))
    names_rng = "rng" in list(signature.parameters)[1:]
    assert description.takes_rng is names_rng
