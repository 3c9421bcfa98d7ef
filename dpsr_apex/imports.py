"""Classes and functions of users, named in a config as "package.module:Name".

The current directory becomes importable when a config names a module there, after everything else: a file there cannot
take the place of a module of Python or of an installed package.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.util import find_spec
from types import ModuleType

CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_class(name: str) -> type:
    """Return the class that "package.module:Class" names; raise ImportError if there is none.

    Nothing in the module is called: the name may come from a head on another machine.
    """
    found = load_object(name)
    if not isinstance(found, type):
        module_name, _, class_name = name.partition(":")
        raise ImportError(f"{module_name} has no class {class_name}")
    return found


def load_object(name: str) -> object:
    """Return what "package.module:Name" names, without calling it; None if the module has no such name."""
    module_name, _, object_name = name.partition(":")
    return getattr(load_module(module_name), object_name, None)


def load_module(name: str) -> ModuleType:
    """Import a module that is installed, or else one in the current directory."""
    package, folder = name.partition(".")[0], os.getcwd()
    if package not in sys.modules and folder not in sys.path and find_spec(package) is None:
        sys.path.append(folder)
    return importlib.import_module(name)
