"""Which modules travel with a function."""

import ast
import importlib.util
import sys
import sysconfig
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ShippingError
from millrace.functions.user_modules import Module, collect_modules, imports_of, is_installed, resolve


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes the user's files; forgets what was imported from them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("___init__", "/\0").replace("_", "/").replace("\0", "__init__")
            path = path.with_suffix(".py") if not path.suffix else path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return tmp_path

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def names(*roots):
    return [module.name for module in collect_modules(dict.fromkeys(roots, "map(f)"))]


def test_what_is_installed_stays(project):
    assert names("json", "os.path", "builtins", "numpy", "numpy.linalg", "_thread", "_bisect", "array") == []
    assert names("__main__", "__mp_main__", "millrace", "millrace.errors", "no_such_module_anywhere") == []


def test_a_text_that_is_as_it_was_is_not_parsed_again(project, monkeypatch):
    project(mrone="import mrtwo\n", mrtwo="")
    parse, parsed = ast.parse, []

    def counted(text, *more, **named):
        parsed.append(text)
        return parse(text, *more, **named)

    monkeypatch.setattr(ast, "parse", counted)
    assert names("mrone") == names("mrone") == ["mrone", "mrtwo"]
    assert sorted(parsed) == ["", "import mrtwo\n"]
    project(mrone="")
    assert names("mrone") == ["mrone"]


def test_the_users_modules_travel_with_all_they_import(project):
    root = project(
        mrone="import mrtwo, json\nimport numpy as np\nfrom mrpack.deep import low\n",
        mrtwo="def f():\n    import mrthree\n",
        mrthree="try:\n    import mrfour\nexcept ImportError:\n    import mrfive\n",
        mrfour="",
        mrfive="X = 1\n",
        mrpack___init__="",
        mrpack_deep___init__="from . import low\nfrom .. import side\nfrom .high import *\n",
        mrpack_deep_low="",
        mrpack_deep_high="from ..other.thing import x",
        mrpack_deep_unused="",
        mrpack_side="import importlib\nimportlib.import_module('mrlazy')\nimportlib.import_module('.late', 'mrpack')\n",
        mrpack_late="",
        mrpack_other_thing="x = 1",
        mrlazy="",
        mralone="",
    )
    modules = collect_modules({"mrone": "map(f)"})
    assert [module.name for module in modules] == [
        "mrfive",
        "mrfour",
        "mrlazy",
        "mrone",
        "mrpack",
        "mrpack.deep",
        "mrpack.deep.high",
        "mrpack.deep.low",
        "mrpack.late",
        "mrpack.other",
        "mrpack.other.thing",
        "mrpack.side",
        "mrthree",
        "mrtwo",
    ]
    by_name = {module.name: module for module in modules}
    assert by_name["mrfive"] == Module("mrfive", "X = 1\n", str(root / "mrfive.py"))
    assert by_name["mrpack.deep"].is_package
    assert by_name["mrpack.deep"].path == str(root / "mrpack" / "deep" / "__init__.py")
    assert by_name["mrpack.other"] == Module("mrpack.other", "", "", is_package=True)
    assert by_name["mrpack.other"].is_namespace
    assert not any(name.startswith("mr") for name in sys.modules), "nothing is imported to find out"


def test_packages_come_before_what_is_in_them(project):
    project(mrp___init__="", mrp_q___init__="", mrp_q_m="")
    assert names("mrp.q.m") == ["mrp", "mrp.q", "mrp.q.m"]


def test_loaded_plugins_of_a_package_travel(project):
    project(mrplug___init__="", mrplug_registry="", mrplug_one="", mrplug_two="")
    importlib.import_module("mrplug." + "one")
    assert names("mrplug.registry") == ["mrplug", "mrplug.one", "mrplug.registry"]


def test_cycles_end(project):
    project(mrtick="import mrtock", mrtock="import mrtick")
    assert names("mrtick") == ["mrtick", "mrtock"]


def test_sources_are_read_as_python_reads_them(project):
    (project() / "mrlatin.py").write_bytes("# coding: latin-1\nNAME = 'Zürich'\n".encode("latin-1"))
    (module,) = collect_modules({"mrlatin": "map(f)"})
    assert "Zürich" in module.source


def test_a_module_under_a_loader_without_source_is_read_from_its_file(project):
    # pytest's own loader, which rewrites assertions, is such a one
    assert sys.modules[__name__].__spec__ is not None
    (module,) = (m for m in collect_modules({__name__: "map(f)"}) if m.name == __name__)
    assert "def test_a_module_under_a_loader_without_source" in module.source


def test_a_script_without_spec_is_found_by_its_file(project, monkeypatch):
    path = project(mrbare="X = 1\n") / "mrbare.py"
    bare = types.ModuleType("mrbare")
    bare.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "mrbare", bare)
    assert collect_modules({"mrbare": "map(f)"}) == [Module("mrbare", "X = 1\n", str(path))]


SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def compiled(folder, name):
    (folder / f"{name}{SUFFIX}").write_bytes(b"")


def test_a_compiled_module_is_refused_and_named(project):
    compiled(project(mrtransforms="import mrfast"), "mrfast")
    with pytest.raises(ShippingError) as raised:
        collect_modules({"mrtransforms": "map(decode)"})
    message = str(raised.value)
    assert message.startswith("map(decode): module `mrfast` (imported by `mrtransforms`) is compiled (")
    assert f"mrfast{SUFFIX})" in message
    assert "Build a wheel of it and install it" in message


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import mrfast\nexcept ImportError:\n    mrfast = None\n",
        "def train():\n    import mrfast\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mrfast\n",
        "with suppress(ImportError):\n    import mrfast\n",
        "def f():\n    import mrmiddle\n",
    ],
)
def test_a_compiled_module_that_may_not_be_needed_is_left_out(project, text):
    compiled(project(mrtransforms=text, mrmiddle="import mrfast"), "mrfast")
    assert "mrfast" not in names("mrtransforms")


def test_what_one_can_do_without_and_another_needs_is_refused(project):
    folder = project(mra="try:\n    import mrfast\nexcept ImportError: pass\nimport mrb\n", mrb="import mrfast")
    compiled(folder, "mrfast")
    with pytest.raises(ShippingError, match=r"`mrfast` \(imported by `mra` -> `mrb`\)"):
        collect_modules({"mra": "map(f)"})


def test_a_module_made_at_run_time_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "mrmade", types.ModuleType("mrmade"))
    with pytest.raises(ShippingError, match=r"map\(f\): module `mrmade` was made at run time and has no source file"):
        collect_modules({"mrmade": "map(f)"})


def test_a_module_made_at_run_time_by_an_installed_package_stays(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.made", types.ModuleType("numpy.made"))
    assert names("numpy.made") == []


def test_a_module_of_bytecode_alone_is_refused(project):
    folder = project(mrbyte="X = 1")
    import py_compile

    py_compile.compile(str(folder / "mrbyte.py"), cfile=str(folder / "mrbyte.pyc"))
    (folder / "mrbyte.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ShippingError, match=r"module `mrbyte` has no Python source \(.*mrbyte.pyc\)"):
        collect_modules({"mrbyte": "map(f)"})


def test_a_module_that_does_not_parse_travels_as_it_is(project):
    project(mrbroken="def (", mrtop="def f():\n    import mrbroken\n")
    assert names("mrtop") == ["mrbroken", "mrtop"]


def test_what_an_installer_has_put_elsewhere_is_installed(tmp_path, monkeypatch):
    """As ``pip install --target`` does, which writes a RECORD beside the packages; sources of a project have none."""
    noted = tmp_path / "target" / "tools-1.0.dist-info"
    noted.mkdir(parents=True)
    (noted / "RECORD").write_text(
        "tools/__init__.py,,\ntools/deep/_core.so,,\nsingle.py,,\ntools-1.0.dist-info/RECORD,,\n"
    )
    (tmp_path / "mine" / "mine.egg-info").mkdir(parents=True)
    (tmp_path / "mine" / "mine.egg-info" / "SOURCES.txt").write_text("mine.py\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "target"), str(tmp_path / "mine"), *sys.path])
    for name in ("tools/__init__.py", "tools/deep/_core.so", "tools/deep", "tools", "single.py"):
        assert is_installed(str(tmp_path / "target" / name))
    for name in ("target/own.py", "target/tools/own.py", "mine/mine.py", "tools/__init__.py"):
        assert not is_installed(str(tmp_path / name))


def test_installed_or_not(tmp_path):
    assert is_installed(np.__file__)
    assert is_installed(importlib.util.__file__)
    assert is_installed(sysconfig.get_path("purelib") + "/x.py")
    assert is_installed("/home/me/proj/.venv/lib/python3.11/site-packages/x.py")
    assert is_installed("/usr/lib/python3/dist-packages/x.py")
    assert not is_installed(str(tmp_path / "x.py"))
    assert not is_installed(sys.prefix + "/src/app/train.py")
    assert not is_installed(sys.prefix + "/libs/train.py")


def test_conditions_reach_what_is_inside_and_end_with_it():
    text = "import a\nclass C:\n    import b\n    def m(self):\n        import c\nimport d\nimport e.f\n"
    assert list(imports_of(Module("m", text, "m.py"))) == [
        ("a", True),
        ("b", True),
        ("c", False),
        ("d", True),
        ("e.f", True),
    ]


def test_odd_names_are_no_modules():
    text = "from importlib import import_module\nimport_module('a..b')\nimport_module('..')\nimport_module('')\n"
    assert names() == []
    found = [name for name, _ in imports_of(Module("m", text, "m.py"))]
    assert found == ["importlib", "importlib.import_module", "a..b"]
    assert names("a..b", "", ".") == []


PARTS = st.text("abc", min_size=1, max_size=3)
DOTTED = st.lists(PARTS, min_size=1, max_size=4).map(".".join)


@given(name=st.one_of(st.just(""), DOTTED), level=st.integers(1, 5), package=DOTTED)
def test_relative_names_are_resolved_as_importlib_does(name, level, package):
    try:
        expected = importlib.util.resolve_name("." * level + name, package)
    except ImportError:
        assert resolve(name, level, package) is None
    else:
        assert resolve(name, level, package) == expected.rstrip(".")


def test_absolute_names_stay():
    assert resolve("a.b", 0, None) == "a.b"
    assert resolve("a", 1, None) is None
    assert resolve("a", 1, "") is None


def test_modules_are_looked_into_though_python_mixes_up_what_several_threads_parse(monkeypatch):
    """A collection amid the making of a tree lets another thread make one; Python counts their depths together."""
    parse, tries = ast.parse, 0

    def mixed_up(source: str) -> ast.Module:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise SystemError("AST constructor recursion depth mismatch (before=48, after=44)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", mixed_up)
    assert imports_of(Module("mixed_up", "import json", "m.py")) == (("json", True),)
    assert tries == 4


def test_what_python_never_gets_right_is_said(monkeypatch):
    def never(_source: str) -> ast.Module:
        raise SystemError("AST constructor recursion depth mismatch (before=48, after=44)")

    monkeypatch.setattr(ast, "parse", never)
    with pytest.raises(SystemError, match="mismatch"):
        imports_of(Module("never", "import json", "m.py"))
