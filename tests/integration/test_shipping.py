"""Functions in a fresh interpreter, in another directory: what a worker sees."""

import os
import subprocess
import sys
import textwrap

import pytest

PACK = """
import sys
from millrace.functions.bundles import pack
from millrace.functions.signature import describe

def send(*fns):
    with open(sys.argv[1], "wb") as file:
        file.write(pack(fns, [f"map({describe(fn, 'map').name})" for fn in fns]))
"""
UNPACK = """
import sys
from millrace.functions.bundles import unpack

def receive(number=0):
    with open(sys.argv[1 + number], "rb") as file:
        return unpack(file.read())
"""


class Machines:
    """A user's directory and a worker's; each command runs in a process of its own."""

    def __init__(self, folder):
        self.client = folder / "client"
        self.worker = folder / "worker"
        self.bundles = folder / "bundles"
        self.bundles.mkdir()
        self.write("client", {"sending.py": PACK})
        self.write("worker", {"receiving.py": UNPACK})

    def write(self, machine, files):
        for name, text in files.items():
            path = getattr(self, machine) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def pack(self, files, *, command=("train.py",), path=(), bundle="bundle"):
        """Runs the user's program, which calls ``send``; the result is the bundle's path."""
        self.write("client", files)
        where = self.bundles / bundle
        self.run([*command, str(where)], self.client, path)
        return where

    def unpack(self, code, *bundles, path=()):
        """Runs a worker's code, which calls ``receive()``; the result is what it printed."""
        code = "from receiving import receive\n" + textwrap.dedent(code)
        return self.run(["-c", code, *map(str, bundles)], self.worker, path)

    @staticmethod
    def run(arguments, folder, path=()):
        source = os.path.join(os.path.dirname(__file__), "..", "..", "src")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.abspath(source), *map(str, path)])}
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def machines(tmp_path):
    return Machines(tmp_path)


def test_everything_the_main_program_defines(machines):
    train = """
    import dataclasses, enum, functools, math
    import numpy as np
    from sending import send
    class Color(enum.Enum):
        RED = 1
        BLUE = 2
    @dataclasses.dataclass
    class Picture:
        pixels: np.ndarray
        color: Color = Color.BLUE
        @property
        def size(self):
            return self.pixels.size
    class Base:
        def __call__(self, x):
            return self.scale * x
    class Scale(Base):
        def __init__(self, scale):
            self.scale = scale
        def __call__(self, x):
            return super().__call__(x) + 1
        def apply(self, x):
            return self(x) + 100
        @staticmethod
        def plain(x):
            return x - 1
        @classmethod
        def named(cls, x):
            return f"{cls.__name__}{x}"
    def compose(*fns):
        def run(x):
            for fn in fns:
                x = fn(x)
            return x
        return run
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)
    @functools.cache
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)
    def logged(fn):
        @functools.wraps(fn)
        def wrapper(x):
            return ("logged", fn(x))
        return wrapper
    @logged
    def decorated(x):
        return helper(x)
    def helper(x):
        return OFFSET + x
    OFFSET = 1000
    table = {"a": [1, 2]}
    def default(x, y=[10], *, z={"k": 5}):
        return x + y[0] + z["k"]

    send(
        lambda x: Picture(np.full((2, x), 1.5)),
        lambda p: (p.size, p.color is Color.BLUE, isinstance(p, Picture)),
        Scale(3), Scale(3).apply, Scale.plain, Scale.named,
        compose(lambda x: x + 1, lambda x: (lambda y: y * x)(2), math.sqrt),
        factorial, fib, decorated, helper,
        functools.partial(pow, 2), functools.partial(default, 1, z={"k": 0}), default,
        lambda x: table["a"].append(x) or len(table["a"]),
        lambda x: table["a"],
        np.negative, str.upper, Scale,
    )
    """
    bundle = machines.pack({"train.py": train})
    printed = machines.unpack(
        """
        picture, look, *fns = receive()
        print(look(picture(3)))
        print(*(fn(x) for fn, x in zip(fns[:10], [5, 5, 5, 5, 7, 5, 30, 5, 5, 1])))
        print(fns[10]([10]), fns[11](9), fns[12](9), fns[13](5), fns[14](5), fns[15]("a"), fns[16](4)(2))
        """,
        bundle,
    )
    assert printed.splitlines() == [
        "(6, True, True)",
        "16 116 4 Scale5 4.0 120 832040 ('logged', 1005) 1005 2",
        "11 24 3 [1, 2, 9] -5 A 9",
    ]


PROJECT = {
    "train.py": """
        import transforms.crops as crops
        import settings
        from sending import send
        from transforms import flip
        from transforms.crops import Crop

        def lazily(x):
            import lazy
            from transforms.more import deep
            return lazy.NAME, deep.NAME

        send(crops.crop, flip, Crop(2), lambda x: crops.crop(x) + settings.SIZE, lazily, crops.make(3))
        """,
    "settings.py": "SIZE = 1000\n",
    "lazy.py": "from settings import SIZE\nNAME = f'lazy {SIZE}'\n",
    "transforms/__init__.py": "from .flips import flip\n",
    "transforms/flips.py": """
        from functools import reduce
        import threading

        lock = threading.Lock()  # in a module: fine

        def flip(x):
            with lock:
                return -x
        """,
    "transforms/crops.py": """
        from dataclasses import dataclass
        from . import constants

        @dataclass
        class Crop:
            by: int

            def __call__(self, x):
                return x - self.by

        def crop(x):
            return x - constants.BY

        def make(by):
            return lambda x: fail(x, by)

        def fail(x, by):
            raise ValueError("on purpose")  # the user's line
        """,
    "transforms/constants.py": "BY = 10\n",
    "transforms/more/deep.py": "NAME = 'deep'\n",
}


def test_modules_of_the_user_travel_as_source(machines):
    bundle = machines.pack(PROJECT)
    printed = machines.unpack(
        """
        import sys, traceback
        crop, flip, Crop, outer, lazily, failing = receive()
        print(crop(12), flip(3), Crop(12), outer(12), *lazily(0))
        print(sys.modules["transforms.crops"].crop is crop, type(Crop) is sys.modules["transforms.crops"].Crop)
        try:
            failing(1)
        except ValueError:
            print(traceback.format_exc())
        try:
            outer("a")
        except TypeError:
            print(traceback.format_exc())
        """,
        bundle,
    )
    assert printed.startswith("2 -3 10 1002 lazy 1000 deep\nTrue True\n")
    assert f'{machines.client}/transforms/crops.py", line ' in printed
    assert 'raise ValueError("on purpose")  # the user\'s line' in printed
    assert f'{machines.client}/train.py", line ' in printed
    assert "send(crops.crop, flip, Crop(2)," in printed


def test_the_users_lines_are_shown_where_their_files_are_not(machines):
    bundle = machines.pack(PROJECT)
    machines.client.rename(machines.client.with_name("elsewhere"))
    printed = machines.unpack(
        """
        import traceback
        crop, flip, Crop, outer, lazily, failing = receive()
        for fn, argument in [(failing, 1), (outer, "a")]:
            try:
                fn(argument)
            except Exception:
                print(traceback.format_exc())
        """,
        bundle,
    )
    assert 'raise ValueError("on purpose")  # the user\'s line' in printed
    assert "send(crops.crop, flip, Crop(2)," in printed


def test_the_users_modules_come_before_the_workers_and_go_with_the_bundle(machines):
    machines.write("worker", {"settings.py": "SIZE = 'worker'\n", "transforms.py": "WHOSE = 'worker'\n"})
    first = machines.pack(PROJECT)
    second = machines.pack(
        {
            "train.py": "import settings\nfrom sending import send\nsend(lambda x: settings.SIZE + x)\n",
            "settings.py": "SIZE = 1\n",
        },
        bundle="second",
    )
    printed = machines.unpack(
        """
        import settings, transforms, sys
        own = settings
        outer = receive()[3]
        import settings
        print(own.SIZE, settings.SIZE, outer(12))
        again = receive()[3]
        import settings as same
        print(same is settings, again(12))
        (other,) = receive(1)
        print(other(1), outer(12), sorted(n for n in sys.modules if n.startswith("transforms")))
        import transforms
        print(transforms.WHOSE)
        """,
        first,
        second,
    )
    assert printed.splitlines() == ["worker 1000 1002", "True 1002", "2 1002 ['transforms']", "worker"]


def test_a_program_run_as_a_module(machines):
    files = {
        "app/__init__.py": "",
        "app/train.py": """
            from sending import send
            from .ops import double

            def late(x):
                from . import ops
                from .sub.thing import X
                return ops.double(x) + X

            if __name__ == "__main__":
                send(late, lambda x: double(x))
            """,
        "app/ops.py": "def double(x):\n    return 2 * x\n",
        "app/sub/thing.py": "X = 100\n",
    }
    bundle = machines.pack(files, command=("-m", "app.train"))
    printed = machines.unpack("late, plain = receive()\nprint(late(3), plain(3))", bundle)
    assert printed == "106 6\n"


def test_functions_sent_from_a_spawned_process(machines):
    train = """
    import multiprocessing, sys

    SIZE = 3

    class Scale:
        def __call__(self, x):
            return SIZE * x

    def decode(x):
        return SIZE + x

    def rank(index):
        from sending import send
        assert decode.__module__ == "__mp_main__"
        send(decode, Scale(), lambda x: decode(x))

    if __name__ == "__main__":
        process = multiprocessing.get_context("spawn").Process(target=rank, args=(0,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
    """
    bundle = machines.pack({"train.py": train})
    assert machines.unpack("print(*(fn(2) for fn in receive()))", bundle) == "5 6 5\n"


def test_functions_of_a_notebook(machines):
    # As IPython does it: each cell is compiled under a file name that only linecache knows.
    train = """
    import linecache
    cells = [
        "from sending import send\\nimport numpy as np\\nSCALE = 4",
        "def decode(x):\\n    return SCALE * np.asarray(x) / 0  # cell two",
        "send(decode, lambda x: SCALE)",
    ]
    for number, cell in enumerate(cells):
        name = f"/tmp/ipykernel_123/{number}.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), globals())
    """
    bundle = machines.pack({"train.py": train})
    printed = machines.unpack(
        """
        import traceback
        decode, scale = receive()
        print(scale(0))
        try:
            decode("a")
        except Exception:
            print(traceback.format_exc())
        """,
        bundle,
    )
    assert printed.startswith("4\n")
    assert "return SCALE * np.asarray(x) / 0  # cell two" in printed


def test_an_editable_installation_of_the_user_travels(machines):
    # pip's editable installs put a path file, or a finder, into site-packages; the package itself lies elsewhere.
    machines.write(
        "client", {"repo/src/mypkg/__init__.py": "", "repo/src/mypkg/ops.py": "def f(x):\n    return x + 7\n"}
    )
    train = "from mypkg.ops import f\nfrom sending import send\nsend(f)\n"
    bundle = machines.pack({"train.py": train}, path=[machines.client / "repo" / "src"])
    assert machines.unpack("print(receive()[0](1))", bundle) == "8\n"


def refusal(machines, code, *bundles, **options):
    return machines.unpack(
        f"""
        try:
            {code}
        except Exception as error:
            print(type(error).__name__, error)
        """,
        *bundles,
        **options,
    )


def test_an_installed_module_missing_on_the_worker_is_named(machines):
    machines.write("client", {"venv/site-packages/foo.py": "def load(x):\n    return x\n"})
    site = machines.client / "venv" / "site-packages"
    train = "import foo\nfrom sending import send\nsend(lambda x: x, foo.load)\n"
    bundle = machines.pack({"train.py": train}, path=[site])
    message = refusal(machines, "receive()", bundle)
    assert message.startswith("ShippingError module `foo` is not installed on the worker (Python 3.")
    assert f"at {sys.executable}), and map(load) needs it. Install it there" in message
    assert machines.unpack("print(receive()[1](4))", bundle, path=[site]) == "4\n"


def test_an_installed_module_that_the_users_module_needs(machines):
    machines.write("client", {"venv/site-packages/foo.py": "def load(x):\n    return x\n"})
    site = machines.client / "venv" / "site-packages"
    files = {
        "train.py": "from ops import decode\nfrom sending import send\nsend(decode)\n",
        "ops.py": "import foo\n\ndef decode(x):\n    return foo.load(x)\n",
    }
    message = refusal(machines, "receive()", machines.pack(files, path=[site]))
    assert "module `foo` is not installed on the worker" in message
    assert "and map(decode) needs it" in message


def test_a_users_module_that_fails_on_the_worker_is_shown(machines):
    files = {
        "train.py": "from ops import decode\nfrom sending import send\nsend(decode)\n",
        "ops.py": "LABELS = open('labels.txt').read()\n\ndef decode(x):\n    return LABELS\n",
        "labels.txt": "a\n",
    }
    with_warnings_off = ("-W", "ignore", "train.py")
    message = refusal(machines, "receive()", machines.pack(files, command=with_warnings_off))
    assert message.startswith("ShippingError map(decode) cannot be restored on the worker (Python 3.")
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'labels.txt'" in message
    assert f'File "{machines.client}/ops.py", line 1, in <module>' in message
    assert "LABELS = open('labels.txt').read()" in message


def test_a_program_without_a_main_guard_does_not_end_the_worker(machines):
    files = {
        "train.py": "import sys\nimport helper\nfrom sending import send\nsend(helper.f)\n",
        "helper.py": "import sys\nif 'train' not in sys.argv[0]:\n    sys.exit(3)\n\ndef f(x):\n    return x\n",
    }
    message = refusal(machines, "receive()", machines.pack(files))
    assert "map(f) cannot be restored on the worker" in message
    assert "SystemExit: 3" in message


def test_a_module_that_no_import_statement_names(machines):
    files = {
        "train.py": """
            from ops import decode
            from sending import send
            send(decode)
            """,
        "ops.py": """
            import sys
            from importlib import import_module
            if "train" not in sys.argv[0]:
                import_module("plug" + "ins.one")

            def decode(x):
                import plugins
                return x
            """,
        "plugins/__init__.py": "",
        "plugins/one.py": "",
    }
    message = refusal(machines, "receive()", machines.pack(files))
    assert "map(decode): your module `plugins.one` did not come along to the worker" in message
    assert "Import it where it is used." in message


def test_refused_where_it_was_sent(machines):
    train = """
    import threading
    from millrace.errors import ShippingError
    from millrace.functions.bundles import pack

    lock = threading.Lock()

    def augment(x):
        with lock:
            return x

    try:
        pack([augment], ["map(augment)"])
    except ShippingError as error:
        print(error)
    """
    machines.write("client", {"train.py": train})
    assert machines.run(["train.py"], machines.client).startswith(
        "map(augment): function augment (train.py:8) uses the global `lock`, a _thread.lock, which cannot be sent to a "
        "worker (cannot pickle '_thread.lock' object). Create it inside the function"
    )


def test_importing_what_describes_functions_is_cheap(machines):
    printed = machines.unpack(
        "import sys, millrace.functions.bundles, millrace.functions.signature\nprint('cloudpickle' in sys.modules)"
    )
    assert printed == "False\n"
