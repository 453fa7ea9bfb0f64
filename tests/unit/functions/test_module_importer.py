"""The user's modules on a worker: found first, replaced as a whole."""

import gc
import importlib
import inspect
import linecache
import sys
import traceback
import weakref

import pytest

from millrace.functions.module_importer import current_finder, install, switch_to, uninstall
from millrace.functions.user_modules import Module

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def clean():
    before = dict(sys.modules)
    yield
    install([], {})
    finder = current_finder()
    assert finder is not None
    sys.meta_path.remove(finder)
    assert {name for name in sys.modules if name.startswith("mr_")} == {n for n in before if n.startswith("mr_")}


def test_modules_are_imported_from_text():
    install(
        [Module("mr_a", "import mr_b\nX = mr_b.Y + 1\n", "/u/mr_a.py"), Module("mr_b", "Y = 1\n", "/u/mr_b.py")], {}
    )
    module = importlib.import_module("mr_a")
    assert module.X == 2
    assert module.__file__ == "/u/mr_a.py"
    assert module.__package__ == ""
    assert module.__spec__ is not None
    assert module.__spec__.has_location


def test_what_is_taken_out_is_gone_with_all_that_it_holds():
    class Held:
        pass

    uninstall()  # there is nothing yet
    install([Module("mr_a", "HELD = []\n", "/u/mr_a.py")], {"/u/cell.py": "x = 1\n"})
    held = Held()
    importlib.import_module("mr_a").HELD.append(held)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is not None
    uninstall()
    gc.collect()
    assert gone() is None
    assert current_finder() is None
    assert "mr_a" not in sys.modules
    assert not {"/u/mr_a.py", "/u/cell.py"} & linecache.cache.keys()


def test_packages_and_relative_imports():
    install(
        [
            Module("mr_p", "from .q import deep\nfrom . import side\n", "/u/mr_p/__init__.py", is_package=True),
            Module("mr_p.q", "", "", is_package=True),
            Module("mr_p.q.deep", "from ..side import S\n", "/u/d.py"),
            Module("mr_p.side", "S = 5\n", "/u/mr_p/side.py"),
        ],
        {},
    )
    package = importlib.import_module("mr_p")
    assert package.deep.S == 5
    assert package.deep.__package__ == "mr_p.q"
    assert package.__path__ == []


def test_they_come_before_what_is_here(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mr_same.py").write_text("WHOSE = 'worker'\n")
    (tmp_path / "mr_pack").mkdir()
    (tmp_path / "mr_pack" / "__init__.py").write_text("WHOSE = 'worker'\n")
    (tmp_path / "mr_pack" / "only_here.py").write_text("")
    importlib.invalidate_caches()
    own = importlib.import_module("mr_same")
    own_child = importlib.import_module("mr_pack.only_here")
    install(
        [
            Module("mr_same", "WHOSE = 'user'\n", "/u/mr_same.py"),
            Module("mr_pack", "WHOSE = 'user'\n", "/u/mr_pack/__init__.py", is_package=True),
        ],
        {},
    )
    assert importlib.import_module("mr_same").WHOSE == "user"
    assert importlib.import_module("mr_pack").WHOSE == "user"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mr_pack.only_here")
    install([], {})
    assert importlib.import_module("mr_same") is own, "what was here before is back, not loaded twice"
    assert importlib.import_module("mr_pack.only_here") is own_child
    for name in ("mr_same", "mr_pack", "mr_pack.only_here"):
        del sys.modules[name]


def test_going_back_to_a_bundle_puts_its_modules_in_force_as_they_were(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mr_a.py").write_text("V = 'of the worker'\n")
    importlib.invalidate_caches()
    own = importlib.import_module("mr_a")
    first = install(
        [Module("mr_a", "V = []\n", "/u/mr_a.py"), Module("mr_late", "", "/u/mr_late.py")], {"/u/c.py": "1\n"}
    )
    importlib.import_module("mr_a").V.append("read")
    second = install([Module("mr_a", "V = 2\n", "/v/mr_a.py")], {"/v/c.py": "2\n"})
    assert importlib.import_module("mr_a").V == 2
    assert "/u/c.py" not in linecache.cache
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mr_late")
    for _ in range(2):
        switch_to(first, {"/u/c.py": "1\n"})
        assert importlib.import_module("mr_a").V == ["read"], "it is not executed twice"
        importlib.import_module("mr_late")
        assert linecache.getline("/u/c.py", 1) == "1\n"
        switch_to(second, {"/v/c.py": "2\n"})
        assert importlib.import_module("mr_a").V == 2
        assert "mr_late" not in sys.modules
    uninstall()
    assert importlib.import_module("mr_a") is own
    del sys.modules["mr_a"]
    install([], {})


def test_another_bundle_replaces_them_as_a_whole():
    install([Module("mr_a", "V = 1\n", "/u/mr_a.py"), Module("mr_gone", "", "/u/mr_gone.py")], {})
    first = importlib.import_module("mr_a")
    importlib.import_module("mr_gone")
    install([Module("mr_a", "V = 2\n", "/u/mr_a.py")], {})
    second = importlib.import_module("mr_a")
    assert (first.V, second.V) == (1, 2)
    assert "mr_gone" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mr_gone")
    assert linecache.getline("/u/mr_gone.py", 1) == ""
    assert len([finder for finder in sys.meta_path if type(finder).__name__ == "BundleFinder"]) == 1


def test_the_same_modules_stay_loaded():
    modules = [Module("mr_a", "V = object()\n", "/u/mr_a.py")]
    install(modules, {})
    first = importlib.import_module("mr_a")
    install(list(modules), {})
    assert importlib.import_module("mr_a") is first


def test_tracebacks_and_inspect_show_the_users_lines():
    text = "def fail(x):\n    return x / 0  # here\n"
    install([Module("mr_a", text, "/nowhere/mr_a.py")], {})
    module = importlib.import_module("mr_a")
    with pytest.raises(ZeroDivisionError) as raised:
        module.fail(1)
    shown = "".join(traceback.format_exception(raised.value))
    assert 'File "/nowhere/mr_a.py", line 2, in fail\n    return x / 0  # here' in shown
    assert inspect.getsource(module.fail) == text


def test_functions_by_value_show_their_lines_until_the_next_bundle():
    install([], {"<cell 1>": "a\nb\n"})
    assert linecache.getline("<cell 1>", 2) == "b\n"
    linecache.checkcache()
    install([], {"<cell 1>": "c\n"})
    assert linecache.getline("<cell 1>", 1) == "c\n"
    install([], {})
    assert linecache.getline("<cell 1>", 1) == ""


def test_a_module_is_not_shadowed_by_the_same_file_by_value():
    install([Module("mr_a", "module\n", "/u/mr_a.py")], {"/u/mr_a.py": "other\n"})
    assert linecache.getline("/u/mr_a.py", 1) == "module\n"


def test_a_namespace_is_shared_with_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mr_ns").mkdir()
    (tmp_path / "mr_ns" / "installed.py").write_text("X = 'worker'\n")
    importlib.invalidate_caches()
    bundle = [Module("mr_ns", "", "", is_package=True), Module("mr_ns.mine", "X = 'user'\n", "/u/mine.py")]
    install(bundle, {})
    assert importlib.import_module("mr_ns.mine").X == "user"
    assert importlib.import_module("mr_ns.installed").X == "worker"
    namespace = sys.modules["mr_ns"]
    install([], {})
    assert "mr_ns" not in sys.modules
    del sys.modules["mr_ns.installed"]
    # ... and one that is loaded already keeps what it has
    installed = importlib.import_module("mr_ns.installed")
    namespace = sys.modules["mr_ns"]
    install(bundle, {})
    assert importlib.import_module("mr_ns.mine").X == "user"
    assert sys.modules["mr_ns"] is namespace
    assert namespace.installed is installed
    install([], {})
    assert sys.modules["mr_ns"] is namespace
    assert "mr_ns.mine" not in sys.modules
    for name in ("mr_ns", "mr_ns.installed"):
        del sys.modules[name]


def test_what_is_not_in_the_bundle_is_found_as_ever():
    install([Module("mr_a", "import json, colorsys\n", "/u/mr_a.py")], {})
    assert importlib.import_module("mr_a").colorsys is importlib.import_module("colorsys")
    finder = current_finder()
    assert finder is not None
    with pytest.raises(ImportError, match="mr_other is not in the bundle"):
        finder.get_source("mr_other")
