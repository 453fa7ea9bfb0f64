"""User modules: which modules are the user's own, and which of them a set of functions needs.

A module is the user's unless it belongs to Python, to millrace, or is installed: it lies in ``site-packages`` or the
like, or where ``pip install --target`` has put it. The user's modules travel as source text, along with those that
they import in turn. Installed packages do not travel: workers have them, or say that they lack them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import glob
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import threading
import tokenize
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec

import msgspec

from millrace.errors import ShippingError

NEVER_SHIPPED = frozenset({"__main__", "__mp_main__", "millrace"})
"""Modules that never travel: the main program goes by value, function by function; millrace is installed on workers."""

_KEPT = 1024
"""Modules whose imports stay cached: a training that distributes again and again parses them once."""


class Module(msgspec.Struct, frozen=True, array_like=True):
    """User's module as text.

    Attributes:
        name: full dotted name.
        source: its text; empty for a namespace package.
        path: the file that it came from, for tracebacks and ``__file__``; empty for a namespace package.
        is_package: it may have modules below it.
    """

    name: str
    source: str
    path: str
    is_package: bool = False

    @property
    def is_namespace(self) -> bool:
        """Whether it is a package without ``__init__.py``."""
        return self.is_package and not self.path


class _Wanted(msgspec.Struct, frozen=True):
    """Module that something imports."""

    name: str
    users: tuple[str, ...]  # what wants it: the operator, then modules, each importing the next


def collect_modules(roots: Mapping[str, str]) -> list[Module]:
    """Collect the user's modules among ``roots``, and all of the user's modules that they import.

    Imports are read from the source, wherever they stand in it; modules of the user's packages that are loaded travel
    along even if no import statement shows them (plugins). Nothing is imported to find out.

    Args:
        roots: by name of a module, what needs it, for messages, e.g. ``{"transforms.crops": "map(crop)"}``.

    Returns:
        The modules, packages before what is in them.

    Raises:
        ShippingError: a module without Python source (a compiled one) is needed for sure; one that is imported inside
            a function, an ``if``, a ``try`` or a ``with`` is left out instead.
    """
    loaded = sorted(sys.modules)
    found: dict[str, Module] = {}
    foreign: set[str] = set()
    # What is surely needed goes first: then all that is found among the rest is optional all the way down.
    needed = deque(_Wanted(name, (user,)) for name, user in roots.items())
    possible: deque[_Wanted] = deque()
    while needed or possible:
        certain = bool(needed)
        wanted = needed.popleft() if certain else possible.popleft()
        for name in _with_parents(wanted.name):
            if name in found:
                continue
            module = None if name in foreign else _read(name, wanted, certain=certain)
            if module is None:
                foreign.add(name)
                break
            found[name] = module
            users = (*wanted.users, name)
            for imported, always in imports_of(module):
                (needed if certain and always else possible).append(_Wanted(imported, users))
            if module.is_package:
                possible.extend(_Wanted(other, users) for other in loaded if other.startswith(f"{name}."))
    return [found[name] for name in sorted(found)]


@functools.lru_cache(_KEPT)
def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package, rather than to the user."""
    if not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep)):
        return True
    real = os.path.realpath(path)
    return any(real.startswith(root) for root in _installed_roots()) or _is_recorded(real)


def is_users(name: str) -> bool:
    """Whether a module is the user's own, the main program included; False also if there is none of this name.

    Only its location is looked at: nothing is imported.
    """
    if name in ("__main__", "__mp_main__"):
        return True
    try:
        spec = None if name.partition(".")[0] in NEVER_SHIPPED else _find(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and _is_users(name, spec)


def resolve(name: str, level: int, package: str | None) -> str | None:
    """Resolve the absolute name of an import: ``from ..a import b`` in ``package`` is ``("a", 2, package)``.

    The result is None if the dots lead out of the package.
    """
    if level == 0:
        return name
    parts = (package or "").split(".")
    if not package or level > len(parts):
        return None
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name else base


@functools.lru_cache(_KEPT)
def imports_of(module: Module) -> tuple[tuple[str, bool], ...]:
    """List (name, always) of everything that ``module`` may import; ``always``: as soon as it is imported itself.

    ``from a import b`` gives ``a``, and ``a.b`` as a possibility, for b may be a module or not.
    """
    try:
        tree = _parse(module.source)
    except (SyntaxError, ValueError):
        return ()  # it can't have been imported; if the worker ever does, it says the same
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    visitor = _Imports(package, look_into_calls="import_module" in module.source or "__import__" in module.source)
    visitor.visit(tree)
    return tuple(visitor.found)


_parsing = threading.RLock()
_TRIES = 10


def _parse(source: str) -> ast.Module:
    """Parse a module, though other threads do so, too.

    CPython counts the depth of trees for all threads together, and raises a ``SystemError`` where one has let another
    parse in between (github.com/python/cpython/issues/106905). Nothing is wrong with the source then.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError), _parsing:
            return ast.parse(source)
    return ast.parse(source)


_CONDITIONAL = (
    ast.If,
    ast.Try,
    ast.TryStar,
    ast.With,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
)


class _Imports(ast.NodeVisitor):
    def __init__(self, package: str, *, look_into_calls: bool) -> None:
        self.package = package
        self.found: list[tuple[str, bool]] = []
        self._always = True
        self._look_into_calls = look_into_calls

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr) and not self._look_into_calls:
            return
        before = self._always
        self._always = before and not isinstance(node, _CONDITIONAL)
        super().generic_visit(node)
        self._always = before

    def visit_Import(self, node: ast.Import) -> None:
        self.found.extend((alias.name, self._always) for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = resolve(node.module or "", node.level, self.package)
        if base is not None:
            self.found.append((base, self._always))
            self.found.extend((f"{base}.{alias.name}", False) for alias in node.names if alias.name != "*")

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            name = node.args[0].value
            if isinstance(name, str):
                bare = name.lstrip(".")
                absolute = resolve(bare, len(name) - len(bare), self.package)
                if absolute:
                    self.found.append((absolute, False))
        self.generic_visit(node)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    if all(parts):
        for end in range(1, len(parts) + 1):
            yield ".".join(parts[:end])


def _read(name: str, wanted: _Wanted, *, certain: bool) -> Module | None:
    """Read the module if it is the user's and has source; None if it is not the user's to send, or is no module."""
    if name.partition(".")[0] in NEVER_SHIPPED:
        return None
    spec = _find(name)
    if spec is None or not _is_users(name, spec):
        return None
    if spec.origin is None or not spec.has_location:
        if spec.submodule_search_locations is not None:
            return Module(name, "", "", is_package=True)
        reason = "was made at run time and has no source file"
    elif spec.origin.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        reason = f"is compiled ({spec.origin})"
    else:
        source = _source(name, spec)
        if source is not None:
            return Module(name, source, spec.origin, is_package=spec.submodule_search_locations is not None)
        reason = f"has no Python source ({spec.origin})"
    if not certain:
        return None
    operator, *chain = wanted.users
    through = f" (imported by {' -> '.join(f'`{link}`' for link in chain)})" if chain else ""
    raise ShippingError(
        f"{operator}: module `{name}`{through} {reason}, and only modules of Python source can be sent to a worker. "
        f"Build a wheel of it and install it, here and where workers run; what is installed need not be sent."
    )


def _find(name: str) -> ModuleSpec | None:
    """Find the spec of a module, without importing it or its parents."""
    module = sys.modules.get(name)
    if module is not None:
        spec = getattr(module, "__spec__", None)
        if isinstance(spec, ModuleSpec):
            return spec
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            return importlib.util.spec_from_file_location(name, path)
        return ModuleSpec(name, None, is_package=hasattr(module, "__path__"))
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    above = _find(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    return _look_in(name, above.submodule_search_locations)


def _look_in(name: str, places: Iterable[str]) -> ModuleSpec | None:
    # Not PathFinder: it wants the parents of namespace packages to be imported.
    portions: list[str] = []
    for place in places:
        finder = pkgutil.get_importer(place)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions.extend(spec.submodule_search_locations or ())
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _is_users(name: str, spec: ModuleSpec) -> bool:
    if spec.origin in ("built-in", "frozen"):
        return False
    if spec.has_location and spec.origin:
        return not is_installed(spec.origin)
    if spec.submodule_search_locations:
        return not all(is_installed(place) for place in spec.submodule_search_locations)
    # Made at run time: it belongs to whoever its package belongs to.
    parent = name.rpartition(".")[0]
    above = _find(parent) if parent else None
    return above is None or _is_users(parent, above)


def _source(name: str, spec: ModuleSpec) -> str | None:
    reader = getattr(spec.loader, "get_source", None)
    if reader is not None:
        try:
            source = reader(name)
        except (ImportError, OSError):
            return None
        return source if isinstance(source, str) else None
    # A loader that can't tell, such as pytest's, which rewrites assertions.
    if spec.origin is None or not spec.origin.endswith(tuple(importlib.machinery.SOURCE_SUFFIXES)):
        return None
    try:
        with tokenize.open(spec.origin) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _is_recorded(real: str) -> bool:
    """Whether an installer has noted that it put the file, or files below the folder, into a folder of imports."""
    for root in map(os.path.realpath, sys.path):
        if real.startswith(os.path.join(root, "")) and os.path.relpath(real, root) in _recorded(root):
            return True
    return False


@functools.lru_cache(_KEPT)
def _recorded(root: str) -> frozenset[str]:
    """List what installers have put into a folder: files, and the folders they are in."""
    found: set[str] = set()
    for noted in glob.glob(os.path.join(glob.escape(root), "*.dist-info")):
        for file in importlib.metadata.Distribution.at(noted).files or ():
            found.update(map(str, (file, *file.parents)))
    return frozenset(found - {"."})


@functools.cache
def _installed_roots() -> tuple[str, ...]:
    # Not sys.prefix as a whole: it is /usr for many a Python, and containers keep the user's code in /usr/src/app.
    named: Iterable[str] = (sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    inside = (os.path.join(prefix, lib) for prefix in (sys.prefix, sys.base_prefix) for lib in ("lib", "lib64"))
    return tuple({os.path.join(os.path.realpath(root), "") for root in (*named, *inside)})
