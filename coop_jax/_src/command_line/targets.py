"""`module:function` on the command line: the user's function and its arguments.

Model: the name is that of a function of no arguments that returns (fn, args) or (fn, args, kwargs);
or, with `--args`, that of fn itself, and the arguments are what the other name stands for: a tuple
of positional ones or a dictionary of named ones, or a function of no arguments that returns one.
A module is searched for in the current directory first, as `python -m` does. A path stands for the
module that the file is, with the folder above its outermost package importable.

Thread rule: imports the user's code, which may do anything. What it raises goes through.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
from types import ModuleType
from typing import Any

import jax

from coop_jax._src.command_line.failures import UsageError
from coop_jax._src.simulate.program_files import load_program
from coop_jax._src.simulate.traced_program import TracedProgram, trace_program
from coop_jax._src.util.options import shown

HELP = """\
TARGET:
  module:function, a function of no arguments that returns (fn, args) or
  (fn, args, kwargs), where fn is the train step. If fn is jitted, what is
  donated and static there counts. Arguments may be jax.ShapeDtypeStructs: then
  nothing is allocated.

    # train.py
    def make_step():
        params, opt_state, batch = jax.eval_shape(init)
        step = jax.jit(train_step, donate_argnums=(0, 1))
        return step, (params, opt_state, batch)

  With --args, TARGET is the train step itself, and ARGS, likewise module:name,
  its arguments: a tuple (positional), a dict (named), or a function of no
  arguments that returns one.
  Modules are searched for in the current directory first. A path works as well:
  train.py:make_step, path/to/train.py:make_step.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A function with its arguments.

    Attributes:
      fn: the function, or a program that JAX lowered or compiled.
      args: positional arguments.
      kwargs: named ones.
    """

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser, *, programs: bool = False) -> None:
    """Adds what names a target; with `programs` it may be a file of `save_program`."""
    more = ", or a file of coop_jax.save_program" if programs else ""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=f"module:function, which returns the train step and its arguments{more}",
    )
    parser.add_argument(
        "--args",
        metavar="ARGS",
        dest="arguments",
        help="module:name of the arguments; TARGET is then the train step itself",
    )


def load(target: str, arguments: str | None) -> Target:
    """The function and its arguments.

    Args:
      target: "module:function".
      arguments: of --args; None if that was not given.

    Raises:
      UsageError: there is no such thing, or it is not as it should be.
      Whatever the user's code raises.
    """
    value = _resolved(target)
    if arguments is None:
        return _made(target, value)
    if not _is_program(value):
        raise UsageError(f"{target} is no function but {_kind(value)}: name the train step")
    given = _resolved(arguments)
    if callable(given):
        given = _called(arguments, given, "what returns the arguments takes none itself")
    if isinstance(given, dict):
        return Target(value, (), given)
    if isinstance(given, (tuple, list)):
        return Target(value, tuple(given), {})
    raise UsageError(
        f"{arguments} gives {_kind(given)}: it must be a tuple of arguments, (x,) for a single one,"
        " or a dict of named ones"
    )


def load_traced(target: str, arguments: str | None) -> TracedProgram:
    """The program of a target; also one of a file of `save_program`, "program.json".

    Raises:
      UsageError: there is no such thing, or it is not as it should be.
      ProgramFileError: the file is not a program.
      Whatever the user's code raises.
    """
    if ":" not in target:
        if not os.path.exists(target):
            raise UsageError(
                f"there is no file {target}: name one of coop_jax.save_program, or a train step as"
                " module:function"
            )
        if arguments is not None:
            raise UsageError(f"{target} is a program, which has its arguments: leave --args out")
        return load_program(target)
    found = load(target, arguments)
    if hasattr(found.fn, "traced"):  # a function of `coop_jax.run`
        planned: TracedProgram = found.fn.traced(*found.args, **found.kwargs)
        return planned
    return trace_program(found.fn, *found.args, **found.kwargs)


def _made(target: str, make: Any) -> Target:
    if not callable(make):
        raise UsageError(f"{target} is no function but {_kind(make)}: name one")
    made = _called(target, make, "name what returns (fn, args), or add --args module:function")
    if (
        isinstance(made, (tuple, list))
        and len(made) in (2, 3)
        and _is_program(made[0])
        and isinstance(made[1], (tuple, list))
        and (len(made) == 2 or isinstance(made[2], dict))
    ):
        return Target(made[0], tuple(made[1]), made[2] if len(made) == 3 else {})
    raise UsageError(
        f"{target} returned {_kind(made)}: it must return (fn, args) or (fn, args, kwargs), with a"
        " tuple of arguments"
    )


def _called(name: str, function: Any, advice: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(f"{name} needs arguments ({error}): {advice}") from None
    except ValueError:  # no signature
        pass
    return function()


def _is_program(value: Any) -> bool:
    return callable(value) or isinstance(value, (jax.stages.Lowered, jax.stages.Compiled))


def _kind(value: Any) -> str:
    """What a value is, in some words."""
    if isinstance(value, (tuple, list)):
        parts = ", ".join(type(part).__name__ for part in value[:4])
        return f"a {type(value).__name__} of ({parts}{', ...' if len(value) > 4 else ''})"
    return f"{type(value).__name__} {shown(value)}" if value is not None else "None"


def _resolved(name: str) -> Any:
    """What "module:attribute" stands for."""
    where, colon, attributes = name.rpartition(":")
    if not colon or not where or not attributes:
        raise UsageError(
            f"{name!r} names no function: write module:function, such as train:make_step or"
            " train.py:make_step"
        )
    is_path = where.endswith(".py") or os.sep in where
    value: Any = _module_of_file(where) if is_path else _module(where)
    at = where
    for attribute in attributes.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            near = difflib.get_close_matches(attribute, vars(value), 1) if vars(value) else []
            meant = f"; did you mean {near[0]!r}?" if near else ": name one that is there"
            raise UsageError(f"{at} has no {attribute!r}{meant}") from None
        at = f"{at}:{attribute}" if at == where else f"{at}.{attribute}"
    return value


def _module(name: str) -> ModuleType:
    _importable(pathlib.Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # something that the user's module imports
        raise UsageError(
            f"there is no module {missing!r} in {pathlib.Path.cwd()} or on Python's path: change"
            " the directory, or name a file, such as path/to/train.py:make_step"
        ) from None
    except (TypeError, ValueError) as error:  # a name such as ".a" or "a..b"
        if _is_dotted(name):
            raise
        raise UsageError(f"{name!r} is no name of a module ({error})") from None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _module_of_file(name: str) -> ModuleType:
    path = pathlib.Path(name).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"there is no Python file {name}: write path/to/train.py:make_step")
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[-1] == "__init__":
        parts.pop()
    dotted = ".".join(parts)
    if not _is_dotted(dotted):
        raise UsageError(f"{name} cannot be imported: {dotted!r} is no name of a module, rename it")
    _importable(folder)
    module = importlib.import_module(dotted)
    if module.__file__ is None or pathlib.Path(module.__file__).resolve() != path:
        raise UsageError(
            f"{name} cannot be imported: another module, {module.__file__ or 'of Python itself'},"
            f" is called {dotted!r} as well; rename the file"
        )
    return module


def _importable(folder: pathlib.Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
