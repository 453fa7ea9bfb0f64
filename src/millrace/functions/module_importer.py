"""Importer of the user's modules on a worker, from the text that came with the functions.

Only a worker does this. One set of modules is in force at a time; installing another takes the former one's modules
out of the interpreter, and going back to that puts them there again, as they were.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from millrace.functions.package_versions import release
from millrace.functions.user_modules import Module


def install(modules: Sequence[Module], sources: Mapping[str, str]) -> BundleFinder:
    """Make ``modules`` importable, before everything of the same name that the interpreter would find by itself.

    If they are in force already, they are left as they are, imported or not.

    Args:
        modules: the modules; names not among them are found as ever.
        sources: by file name, the text of functions that came by value, for tracebacks.

    Returns:
        what finds them, to :func:`switch_to` when another set has been in force.
    """
    wanted = {module.name: module for module in modules}
    finder = current_finder()
    if finder is None or finder.modules != wanted:
        finder = BundleFinder(wanted)
    switch_to(finder, sources)
    return finder


def switch_to(finder: BundleFinder, sources: Mapping[str, str]) -> None:
    """Put the modules of ``finder`` in force, those that were imported as they were; see :func:`install`."""
    if current_finder() is not finder:
        uninstall()
        finder.enter()
        sys.meta_path.insert(0, finder)
        release.cache_clear()  # names may be those of other modules now
    finder.show_sources(sources)


def uninstall() -> None:
    """Take the modules in force, if any, out of the interpreter, with all that they hold."""
    former = current_finder()
    if former is not None:
        former.forget_sources()
        sys.meta_path.remove(former)
        former.leave()


def current_finder() -> BundleFinder | None:
    """Finder in force, if any."""
    return next((finder for finder in sys.meta_path if isinstance(finder, BundleFinder)), None)


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finder and loader of modules from text. Their ``__file__`` is the user's path, for tracebacks.

    Attributes:
        modules: by full name.
    """

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._displaced: dict[str, ModuleType] = {}
        self._shared: set[str] = set()
        self._imported: dict[str, ModuleType] = {}
        """Modules that were imported when others came in force."""
        self._shown: Mapping[str, str] = {}

    # -- finding

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the bundle; None for any other."""
        module = self.modules.get(fullname)
        if module is None:
            return None
        if not module.is_namespace:
            spec = ModuleSpec(fullname, self, origin=module.path, is_package=module.is_package)
            spec.has_location = True
            return spec
        # A namespace may have parts that are installed here. A real package of this name is as good: what the bundle
        # has below it is asked for here first.
        here = importlib.machinery.PathFinder.find_spec(fullname, path)
        if here is not None and here.submodule_search_locations is not None:
            return here
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = []
        return spec

    # -- loading

    def get_filename(self, fullname: str) -> str:
        """Path of the file on the user's machine."""
        return self._module(fullname).path

    def get_source(self, fullname: str) -> str:
        """Text of the module."""
        return self._module(fullname).source

    def is_package(self, fullname: str) -> bool:
        """Whether there may be modules below it."""
        return self._module(fullname).is_package

    def _module(self, fullname: str) -> Module:
        try:
            return self.modules[fullname]
        except KeyError:
            raise ImportError(f"module {fullname} is not in the bundle", name=fullname) from None

    # -- coming and going

    def enter(self) -> None:
        """Put aside modules that are loaded under the bundle's names, with what is below them."""
        for name in self._loaded():
            # A namespace that is here already is shared: what the bundle has in it is found all the same.
            if self._is_namespace(name) and hasattr(sys.modules[name], "__path__"):
                self._shared.add(name)
            else:
                self._displaced[name] = sys.modules.pop(name)
        sys.modules.update(self._imported)
        self._imported = {}
        for module in self.modules.values():
            if module.path:
                _show(module.path, module.source)

    def leave(self) -> None:
        """Take the bundle's modules out of the interpreter and put back what was there before."""
        for name in self._loaded():
            if name not in self._shared:
                self._imported[name] = sys.modules.pop(name)
        sys.modules.update(self._displaced)
        self._displaced, self._shared = {}, set()
        for module in self.modules.values():
            linecache.cache.pop(module.path, None)

    def show_sources(self, sources: Mapping[str, str]) -> None:
        """Show these files' lines in tracebacks, unless they are modules of the bundle, and no others."""
        if self._shown is sources:
            return
        self.forget_sources()
        self._shown = sources
        for path in self._beside():
            _show(path, sources[path])

    def forget_sources(self) -> None:
        """Take back what :meth:`show_sources` showed."""
        for path in self._beside():
            linecache.cache.pop(path, None)
        self._shown = {}

    def _beside(self) -> list[str]:
        return sorted(self._shown.keys() - {module.path for module in self.modules.values()})

    def _loaded(self) -> list[str]:
        """Names in ``sys.modules`` that are the bundle's, or are below a package of the bundle's."""
        return [name for name in list(sys.modules) if name in self.modules or self._is_below(name)]

    def _is_below(self, name: str) -> bool:
        above = name.rpartition(".")[0]
        while above:
            if above in self.modules and not self._is_namespace(above):
                return True
            above = above.rpartition(".")[0]
        return False

    def _is_namespace(self, name: str) -> bool:
        module = self.modules.get(name)
        return module is not None and module.is_namespace


def _show(path: str, source: str) -> None:
    # Without a time of modification linecache takes the entry as it is, whatever file is at that path here.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
