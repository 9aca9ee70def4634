"""The parser of all commands: options with dashes or underscores, no abbreviations, errors in one line.

`Grammar` can be a base class of any argparse parser, including TRL's. `CommandParser` is the parser of the commands
here, which can also read their options from a YAML file (`config_file`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from llm_envs.errors import InvalidConfigError, did_you_mean

__all__ = ["CommandParser", "Grammar", "option_names", "take_debug", "words"]

_PARSERS = (argparse.PARSER, argparse.REMAINDER)
"""Kinds of arguments after which all words belong to another parser."""


def words(arguments: Sequence[str]) -> list[int]:
    """Return the positions of the positional arguments: those without a leading dash, and all after `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [place for place, text in enumerate(arguments) if place > end or not text.startswith("-")]


def take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug`, and whether it was given (anywhere before `--`).

    After the name of a training, `--debug VALUE` is transformers' option and stays.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    places = words(given)
    name = places[1] if len(places) > 1 and given[places[0]] == "train" else end
    takes_value = {place for place in range(name, end - 1) if not given[place + 1].startswith("-")}
    ours = {place for place, text in enumerate(given[:end]) if text == "--debug" and place not in takes_value}
    return [text for place, text in enumerate(given) if place not in ours], bool(ours)


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that the parser's help shows: long names, or short names of options without a long one."""
    shown = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
    return [
        name
        for action in shown
        for name in [text for text in action.option_strings if text.startswith("--")] or action.option_strings
    ]


class Grammar(argparse.ArgumentParser):
    """A parser that accepts dashes and underscores, refuses abbreviations, and raises errors as one line."""

    is_completing = False
    """Whether the shell is completing an unfinished line. Unknown options are then left to argparse."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # as in later Pythons: -1e-3 too is a number

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, after normalising the spelling of the options.

        Raises:
            InvalidConfigError: If an option is unknown. The message suggests the nearest one.
        """
        return super().parse_known_args(self.spell(sys.argv[1:] if args is None else args), namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unexpected arguments."""
        parsed, further = self.parse_known_args(args, namespace)
        if further:
            self.error(f"{further[0]}: unexpected argument (keep positional arguments together)")
        return parsed

    def spell(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with each option spelled as the parser defines it.

        Raises:
            InvalidConfigError: If an option is unknown. The message suggests the nearest one.
        """
        ends_at_word = any(action.nargs in _PARSERS for action in self._get_positional_actions())
        spelled: list[str] = []
        for place, argument in enumerate(arguments):
            is_end = argument == "--" or (ends_at_word and not argument.startswith("-"))
            if is_end:
                return [*spelled, *arguments[place:]]
            name = self._known_as(argument) if self._is_option(argument) else argument
            if name is None and not self.is_completing:
                self._refuse(argument, spelled[-1] if spelled else "")
            spelled += [name or argument]
        return spelled

    def _is_option(self, argument: str) -> bool:
        """Return whether argparse will treat the argument as an option."""
        if len(argument) < 2 or argument[0] != "-":
            return False
        return self._negative_number_matcher.match(argument) is None and " " not in argument.partition("=")[0]

    def _known_as(self, argument: str) -> str | None:
        """Return the argument with its option as the parser spells it; None if the option does not exist."""
        name, equals, value = argument.partition("=")
        body = name.lstrip("-")
        for spelling in (name, f"--{body.replace('_', '-')}", f"--{body.replace('-', '_')}", f"-{body}"):
            if name.startswith("--") and spelling in self._option_string_actions:
                return spelling + equals + value
        is_short = not name.startswith("--") and argument[:2] in self._option_string_actions
        return argument if is_short else None

    def _refuse(self, argument: str, before: str) -> NoReturn:
        """Refuse an unknown option."""
        action = self._option_string_actions.get(before)
        if action is not None and action.nargs is None:
            self.error(f"{before}: its value is missing; for a value that begins with -, write {before}='{argument}'")
        self.refuse_option(argument.partition("=")[0], option_names(self))

    def refuse_option(self, name: str, known: Iterable[str], where: str = "") -> NoReturn:
        """Refuse an unknown option and suggest the nearest one."""
        near = did_you_mean(name, known)
        self.error(f"{where}{name}: there is no such option{'.' + near if near else ''}", is_whole=bool(near))

    def error(self, message: str, *, is_whole: bool = False) -> NoReturn:
        """Raise an error that ends with a hint at `--help`, unless the message is complete (`is_whole`)."""
        end = "" if message.endswith((".", "?")) else "."
        raise InvalidConfigError(message if is_whole else f"{message}{end} `{self.prog} --help` lists every option.")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert a text. For numbers, replace argparse's "invalid VALUE" by "not a number"."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in (int, float) and str(error.message).startswith("invalid "):
                raise argparse.ArgumentError(action, f"{arg_string!r} is not a number") from error
            raise

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown choice and suggest the nearest one."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value!r}.{near or ' There are ' + ', '.join(known) + '.'}", is_whole=True)
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; there are {', '.join(known)}.{near}")


class CommandParser(Grammar):
    """The parser of a command of `llm-envs`.

    Flags have a negation: `--no-FLAG` overrides a file.
    """

    read_config: Callable[[CommandParser, list[str], set[str]], list[str]] | None = None
    """Sets the values of the `--config` file as defaults; None if the command does not read a file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter} | kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; `--config FILE` supplies the options that are not given.

        Raises:
            InvalidConfigError: If the file or the command line has an error.
        """
        given, off = self._take_off(sys.argv[1:] if args is None else args)
        given = self.spell(given)
        if self.read_config is not None and not self.is_completing:
            given = self.read_config(self, given, off)
        return super().parse_known_args(given, namespace)

    def flags(self) -> Mapping[str, argparse.Action]:
        """Return the options that take no value and are off by default, each with its action."""
        kinds = (argparse._StoreTrueAction, argparse._StoreConstAction)
        return {name: action for name, action in self._option_string_actions.items() if isinstance(action, kinds)}

    def _take_off(self, arguments: Sequence[str]) -> tuple[list[str], set[str]]:
        """Return the arguments without `--no-FLAG`, and the destinations of those flags."""
        flags = {f"--no-{name[2:]}": action.dest for name, action in self.flags().items() if name.startswith("--")}
        end = arguments.index("--") if "--" in arguments else len(arguments)
        taken = {
            place: flags[dashed]
            for place, argument in enumerate(arguments[:end])
            if (dashed := argument.replace("_", "-")) in flags and argument not in self._option_string_actions
        }
        return [text for place, text in enumerate(arguments) if place not in taken], set(taken.values())

    def add_examples(self, text: str) -> None:
        """Add examples to the end of the help, before the present epilog."""
        self.epilog = f"\nexamples:\n{text.strip(chr(10))}\n{self.epilog or ''}"
