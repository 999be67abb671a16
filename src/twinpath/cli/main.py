"""Entry point of the `twinpath` command: turns every mistake of the user into one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from twinpath import __version__
from twinpath.errors import EngineError, UserError

if TYPE_CHECKING:
    from twinpath.spawn import SpareWorker


def main() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        # Asked by scripts and probes, so it loads neither the command tree nor what that imports.
        print(f"twinpath {__version__}")
        return
    if sys.argv[1:2] == ["serve"] and "--help" not in sys.argv:
        from twinpath.spawn import SpareWorker

        with SpareWorker() as spare:  # Its imports take as long as ours until the settings are known.
            code = run(sys.argv[1:], spare)
        sys.exit(code)
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str], spare: SpareWorker | None = None) -> int:
    """Run one command and return its exit code."""
    import typer

    from twinpath.cli.app import app
    from twinpath.cli.settings import spell_flags

    try:
        return app(args=spell_flags(argv), standalone_mode=False, obj=spare) or 0
    except UserError as error:
        return fail(str(error), error.exit_code)
    except EngineError as error:
        return fail(str(error), 1)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Typer exports no such name, and asks for it in the same way.
            print(error.format_message(), file=sys.stderr)
            return error.exit_code
        return fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`twinpath models list | head -1`): that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def fail(message: str, exit_code: int) -> int:
    if message:
        print(f"twinpath: {' '.join(message.split())}", file=sys.stderr)
    return exit_code
