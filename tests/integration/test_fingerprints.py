"""Fingerprints in fresh interpreters: other hash seeds, folders, orders of imports, and names of the main program."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

INTERPRETERS = 20

_HELPERS = '''
"""Helpers of a pipeline."""
import functools
import re
import numpy as np
from . import tables

SCALE = 0.5
WORD = re.compile(r"[a-z]+")


def scale(x):
    return x * SCALE


def twice(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(fn(*args, **kwargs))
    return wrapper


class Crop:
    def __init__(self, size):
        self.size = size

    def __call__(self, x):
        return tables.clip(x[: self.size])


@functools.cache
def words(text):
    return frozenset(WORD.findall(text))
'''
_TABLES = """
import enum
import numpy as np

NAMES = {"cat": 0, "dog": 1, "fish": 2}
STOP = {"the", "a", "an", "of", "and", ("x", 1), None, 2.5}
MEAN = np.linspace(0, 1, 1000, dtype=np.float32)


class Kind(enum.Flag):
    TRAIN = enum.auto()
    TEST = enum.auto()


def clip(x):
    return x if x < LIMIT else LIMIT


LIMIT = 7
"""
_PROGRAM = '''
import dataclasses, functools, json, logging, operator, pathlib, random, sys
import numpy as np
from PIL import Image
import mrlib.helpers
import mrlib.tables as t
from mrlib.helpers import Crop, scale, twice, words
from millrace.functions.fingerprint import fingerprint

log = logging.getLogger("pipeline")
THRESHOLD = 3


@dataclasses.dataclass(frozen=True)
class Options:
    size: int = 3
    names: frozenset = frozenset({"a", "b", "c", "d"})


options = Options()


def decode(element):
    """Pictures."""
    return np.asarray(Image.open(element["bytes"]).convert("RGB"), np.float32) / 255

def normalise(x): return (x - t.MEAN) * mrlib.helpers.SCALE
def known(x): return x in t.STOP or x in {"u", "v", "w"}
def labelled(x): return t.NAMES[x], t.Kind.TRAIN | t.Kind.TEST
def noisy(x, rng): return x + rng.normal()
def impure(x): return x + random.random() + np.random.rand()
def recursive(x): return x and recursive(x - 1)
def even(x): return x == 0 or odd(x - 1)
def odd(x): return x != 0 and even(x - 1)
def spread(x): yield from (y for y in x if y > THRESHOLD)
def lazily(x):
    from mrlib.tables import clip
    import PIL.ImageOps
    return clip(PIL.ImageOps.invert(x))
def whole(x):
    import mrlib.tables
    return mrlib.tables.clip(x)
def configured(x):
    log.info("%s", x)
    return x[: options.size], options.names
@twice
def decorated(x): return scale(x)
def guarded(x):
    try:
        return int(x)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(x)) from error
def matched(x):
    match x:
        case {"a": [first, *_]}: return first
        case Options(size=size): return size
def make(factor, seen):
    return lambda x: x * factor if x not in seen else 0
class Local(Crop):
    kinds = {t.Kind.TRAIN, t.Kind.TEST}
    def __call__(self, x): return super().__call__(x) + 1
class Slots:
    __slots__ = ("b", "a")
slots = Slots()
slots.a, slots.b = {"x", "y", "z"}, pathlib.PurePosixPath("a/b")
cycle = {"name": "cycle", "set": frozenset("qwerty")}
cycle["self"] = [cycle]

found = [
    decode, normalise, known, labelled, noisy, impure, recursive, even, odd, spread, lazily, whole, configured,
    decorated, guarded, matched, make(2, {"k", "l", "m"}), Local, Local(4), Local(4).__call__, Crop(5), slots, cycle,
    words, functools.partial(scale, x=1), operator.itemgetter(2), np.add, np.linalg.norm, t.STOP, t.MEAN, options,
    t.Kind.TRAIN, Options,
]
print(json.dumps([fingerprint(value).hex() for value in found]))
'''
IMPORTS = ["mrlib.tables", "mrlib.helpers", "json", "wave", "PIL.ImageOps", "numpy.ma", "decimal", "mrlib.unrelated"]


def project(folder: Path) -> None:
    package = folder / "mrlib"
    package.mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "helpers": _HELPERS,
        "tables": _TABLES,
        "unrelated": "import turtledemo",
    }.items():
        (package / f"{name}.py").write_text(text)


def test_all_interpreters_find_the_same(tmp_path):
    answers = []
    for number in range(INTERPRETERS):
        chance = random.Random(number)
        folder = tmp_path / f"{number}" / ("deep/" * (number % 3))
        project(folder)
        first = chance.sample(IMPORTS, chance.randrange(len(IMPORTS)))
        lines = [f"import {name}" for name in first] + [""] * chance.randrange(20)
        program = folder / f"train_{number}.py"
        program.write_text("\n".join(lines) + _PROGRAM)
        as_module = number % 4 == 0  # then its functions are not those of __main__
        command = ["-c", f"import train_{number}"] if as_module else [str(program)]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(number),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        }
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert len(answers[0]) >= 30
    assert len(set(answers[0])) == len(answers[0]), "all are different functions"
    assert all(answer == answers[0] for answer in answers), [
        index for index, each in enumerate(zip(*answers, strict=True)) if len(set(each)) > 1
    ]
