"""Lets tests import their driver by its full name, however pytest was started."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
