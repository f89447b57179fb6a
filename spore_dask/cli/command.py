"""What a command is: arguments, options from the API, and a function that returns an answer."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import click
from click.core import ParameterSource

from spore_dask.cli.config import use_config
from spore_dask.cli.options import HEADINGS, SHOWN, Option, options_of
from spore_dask.cli.running import Session
from spore_dask.cli.showing import PROGRESS, Answer, consumer_of
from spore_dask.progress import Consumer

BROKEN_PIPE = 141


@dataclasses.dataclass(frozen=True)
class Voice:
    """How a command is to speak."""

    json: bool
    quiet: bool
    progress: Consumer
    """Who hears of progress."""

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not self.json and not self.quiet:
            click.echo(text)


class Command(click.Command):
    """A command of `spore-dask`.

    Parameters
    ----------
    name
        What it is called.
    function
        Called with a `Voice`, and the values of arguments and options by name.
    arguments
        Names of its arguments; those in brackets may be left out.
    api
        Public names of spore_dask whose keywords are its options.
    leave_out
        Keywords that are no options.
    own
        Options that only the command has.
    configurable
        Whether a file may have its options.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Answer],
        *,
        arguments: Sequence[str],
        api: Sequence[str] = (),
        leave_out: Iterable[str] = (),
        own: Iterable[Option] = (),
        configurable: bool = True,
    ) -> None:
        super().__init__(name, help=function.__doc__, callback=function)
        self.api = tuple(api)
        self.leave_out = {*leave_out, *(each.strip("[]") for each in arguments)}
        self._arguments = arguments
        self._own = list(own)
        self._common = _common_options()[0 if configurable else 1 :]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; what they are derived from is imported now."""
        if not self.params:
            self.params = [
                *(
                    click.Argument([name.strip("[]")], required=not name.startswith("["))
                    for name in self._arguments
                ),
                *options_of(self.api, self.leave_out),
                *self._own,
                *self._common,
            ]
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> None:
        """Call the function, and show what it returns."""
        values = {name: value for name, value in ctx.params.items() if self._is_given(ctx, name)}
        session = ctx.find_object(Session) or Session([])
        session.json, session.debug = values.pop("json"), values.pop("debug")
        quiet, progress = values.pop("quiet"), values.pop("progress", "none")
        voice = Voice(session.json, quiet, consumer_of(progress, quiet))
        assert self.callback is not None
        try:
            answer: Answer = self.callback(voice, **values)
            answer.show(session.json, quiet)
            sys.stdout.flush()
        except BrokenPipeError:  # such as `| head`; Python would complain again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)

    def _is_given(self, ctx: click.Context, name: str) -> bool:
        """Tell whether to pass a value on: defaults of the API are the API's business."""
        own = {option.name for option in (*self._own, *self._common)}
        arguments = {each.strip("[]") for each in self._arguments}
        return name in own | arguments or ctx.get_parameter_source(name) != ParameterSource.DEFAULT

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "section", SHOWN)].append(record)
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def progress_option() -> Option:
    """Return the option for how progress is shown."""
    return Option(
        ["--progress"],
        type=click.Choice(PROGRESS),
        default="auto",
        show_default=True,
        section=SHOWN,
        help="auto: a bar on a terminal, lines with the time elsewhere.",
    )


def id_option() -> Option:
    """Return the option for which of the results of a run is meant."""
    return Option(["--id"], metavar="ID", help="Which result there. Default: the latest.")


def _common_options() -> list[Option]:
    """Return the options of every command."""
    return [
        Option(
            ["--config"],
            metavar="FILE",
            callback=use_config,
            is_eager=True,
            expose_value=False,
            section=SHOWN,
            help="YAML or TOML file of options; the command line wins.",
        ),
        Option(["--quiet"], is_flag=True, section=SHOWN, help="Print errors and warnings only."),
        Option(["--json"], is_flag=True, section=SHOWN, help="Print one JSON document."),
        Option(["--debug"], is_flag=True, section=SHOWN, help="Show where an error came from."),
    ]
