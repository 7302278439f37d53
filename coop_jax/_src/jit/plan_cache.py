"""Plans on disk: a second process compiles what the first one found, and plans nothing.

A record is a lowered program that follows a plan, with its report. It lies in a folder of JAX's
persistent cache and is found by what decides a plan: the program of `jax.jit`, the options, the
versions of JAX and of this package, the kind of device. What XLA made of it JAX keeps itself.

Of one device; programs over several are planned again, as are those that JAX cannot export
(callbacks into Python). Where no cache is set up nothing is kept.

Format: a line of JSON, then the program. Files are written beside their place and moved there, so
that other processes see whole ones; what cannot be read counts as not there.
Thread rule: functions of their arguments and the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import tempfile

from coop_jax import _core
from coop_jax._src.compat import stored_programs
from coop_jax._src.jit.options import JitOptions
from coop_jax._src.jit.plain_program import PlainProgram
from coop_jax._src.jit.report import PlanReport
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.util import env

_FORMAT = 1
_FOLDER = "coop_jax_plans"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A plan that fits.

    Attributes:
      program: what runs, as `stored_programs.exported` wrote it.
      watched: the number of an argument's leaf that it reads; None if it reads none.
      report: what was found.
    """

    program: bytes
    watched: int | None
    report: PlanReport


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the plan of a call is, or will be.

    Attributes:
      path: of the file.
      least_seconds: what took less time is not kept.
    """

    path: pathlib.Path
    least_seconds: float

    def read(self) -> Record | None:
        """What was kept."""
        try:
            header, _, program = self.path.read_bytes().partition(b"\n")
            said = json.loads(header)
            if said["sha256"] != hashlib.sha256(program).hexdigest():
                return None
            report = PlanReport.from_json(said["report"])
            return Record(program, said["watched"], dataclasses.replace(report, is_stored=True))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, record: Record) -> None:
        """Keeps a plan, if the disk lets it."""
        header = {
            "sha256": hashlib.sha256(record.program).hexdigest(),
            "watched": record.watched,
            "report": dataclasses.asdict(record.report),
        }
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                file.write(json.dumps(header).encode() + b"\n" + record.program)
            os.replace(file.name, self.path)


def place_of(options: JitOptions, plain: PlainProgram) -> Place | None:
    """Where the plan of a call is kept; None where it is not."""
    directory = stored_programs.directory()
    if (
        directory is None
        or plain.devices > 1
        or not env.is_on("COOP_JAX_STORED_PLANS", default=True)
    ):
        return None
    decides = (
        *(options.budget, options.policy, options.profile, options.respect_checkpoints),
        *(sorted((options.compiler_options or {}).items()), PassOptions.from_environment()),
    )
    key = stored_programs.key_of(
        plain.traced, plain.lowered, plain.device, str(_FORMAT), _code(), repr(decides)
    )
    if key is None:
        return None
    return Place(directory / _FOLDER / f"{key}.plan", stored_programs.least_seconds())


@functools.cache
def _code() -> str:
    """A digest of what plans: this package."""
    package = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in (*sorted(package.rglob("*.py")), pathlib.Path(_core.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
