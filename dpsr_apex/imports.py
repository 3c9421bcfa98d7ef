"""Classes of users, named in a config as "package.module:Class"; the current directory is importable."""

from __future__ import annotations

import importlib
import os
import re
import sys

CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_class(name: str) -> type:
    """Return the class that "package.module:Class" names; raise ImportError if there is none.

    Nothing in the module is called: the name may come from a head on another machine.
    """
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # console scripts do not have it in their path
    module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ImportError(f"{module_name} has no class {class_name}")
    return found
