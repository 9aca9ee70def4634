"""The parser of all commands: options with dashes or underscores, a YAML file, no abbreviations, errors in one line.

    llm-envs play --config play.yaml --seed 3

    env: llm/Calculator-v0             # arguments too, by the names of the help
    n: 20
    max-turn-tokens: 64                # with dashes or underscores
    variables: {HF_HUB_OFFLINE: 1}     # of the process

The file's values become the parser's defaults, checked like options, so the command line overrides them. `Parser` can
be mixed with another argparse parser, as the trainings do with TRL's.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.parsers.json_calls import strict_json

__all__ = ["Flag", "Parser", "Repeatable", "json_object", "read_yaml", "set_variables", "take_debug", "words"]

_JOINED = {"difficulty": ",", "server_args": " "}
"""Options that take several values in one text -> the separator. In a file they may also be lists."""

_NO_KEYS = ("help", "h", "config", "debug", "version")
"""Options that only the command line has."""

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)


def dashed(name: str) -> str:
    """Return a long option with dashes."""
    return name.replace("_", "-") if name.startswith("--") else name


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


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = strict_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text:.200} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text:.200} is not a JSON object; for example \'{{"difficulty": "easy"}}\'')
    return value


_OTHER_WORDS = {"--data": "--source", "--dataset": "--source"}
"""Names that others give to an option, which no likeness leads to."""


class Flag(argparse.BooleanOptionalAction):
    """An option without a value: `--resume`, and `--no-resume` to override a file."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, default: bool | None = False, help: str = "", **kwargs: Any
    ) -> None:
        super().__init__(option_strings, dest, default=default, **kwargs)
        self.help = help  # set last, because argparse would append the default


class Repeatable(argparse.Action):
    """An option that may be given several times. On the command line it replaces the list of a file."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Append a value."""
        earlier = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if earlier is self.default else earlier), values])


class Parser(argparse.ArgumentParser):
    """A parser that accepts dashes and underscores, refuses abbreviations, reads YAML, and raises one-line errors."""

    commands: Mapping[str, Parser] = {}
    """The parsers of the commands below this one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **defaults | kwargs)

    def add_argument(self, *names: str, **kwargs: Any) -> Any:
        """Add an argument; the help shows its names with dashes."""
        return super().add_argument(*dict.fromkeys(map(dashed, names)), **kwargs)

    def add_config_argument(self) -> None:
        """Add the option `--config FILE`."""
        self.add_argument("--config", metavar="FILE", help="YAML file with options; the command line overrides it")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; `--config FILE` supplies the options that are not given.

        Raises:
            InvalidConfigError: If the file or the command line has an error.
        """
        given = list(sys.argv[1:] if args is None else args)
        if "_ARGCOMPLETE" in os.environ:  # the line is unfinished
            return super().parse_known_args(given, namespace)
        given = self.spelled(given)
        if "--config" in self.options():
            path, given = _take_config(given)
            if path is not None:
                self.read_file(path)
        return super().parse_known_args(given, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unexpected arguments."""
        parsed, further = self.parse_known_args(args, namespace)
        if further:
            self.error(
                f"{further[0]}: unexpected argument (keep positional arguments together; an option has one value)"
            )
        return parsed

    @property
    def actions(self) -> list[argparse.Action]:
        """The arguments and options. TRL and argcomplete read this private list of argparse too."""
        return self._actions

    def options(self) -> dict[str, argparse.Action]:
        """Return {option: its action}, for every name of an option."""
        return {name: action for action in self.actions for name in action.option_strings}

    def spelled(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments, each option spelled as the parser defines it; refuse unknown options."""
        options, spelled = self.options(), list(arguments)
        # All that follows the name of a command or training belongs to another parser.
        ends_at_word = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self.actions)
        for place, argument in enumerate(arguments):
            if argument == "--" or (ends_at_word and not argument.startswith("-")):
                break
            if not _OPTION.fullmatch(argument):
                continue
            name, equals, value = argument.partition("=")
            known = next((text for text in (name, dashed(name), name[1:]) if text in options), None)
            if known is None and (name.startswith("--") or name[:2] not in options):
                before = options.get(spelled[place - 1]) if place else None
                if before is not None and before.nargs is None:
                    option = spelled[place - 1]
                    self.error(f"{option}: its value is missing; write {option}='{argument}' if it begins with -")
                self._refuse(dashed(name), [text for text in options if text.startswith("--")])
            spelled[place] = (known or name) + equals + value
        return spelled

    def _refuse(self, name: str, known: Sequence[str]) -> NoReturn:
        meant = _OTHER_WORDS.get(name)
        near = f" Did you mean {meant}?" if meant in known else did_you_mean(name, sorted(known))
        raise InvalidConfigError(f"{name}: there is no such option.{near or self._hint()}")

    def _hint(self) -> str:
        return f" `{self.prog} --help` lists every option."

    def error(self, message: str) -> NoReturn:
        """Raise an error with the nearest choice, or a hint at `--help`."""
        found = re.search(r"invalid choice: '?(.*?)'? \(choose from (.*)\)$", message)
        near = did_you_mean(found[1], re.findall(r"[^\s,']+", found[2])) if found else ""
        end = "" if message.endswith((".", "?")) else "."
        raise InvalidConfigError(f"{message}{end}{near or self._hint()}")

    def read_file(self, path: str) -> None:
        """Use the values of a YAML file as defaults, and set the environment variables in it."""
        values = read_yaml(path)
        variables = values.pop("variables", None)
        self.set_values(values, path)
        set_variables(variables, path)

    def set_values(self, values: Mapping[str, Any], where: str) -> None:
        """Use values as defaults, converted and checked as on the command line.

        Args:
            values: Names of options and arguments, with dashes or underscores, and their values as in YAML.
            where: The file, for errors.

        Raises:
            InvalidConfigError: If a name is unknown or a value is invalid.
        """
        keys = {action.dest: action for action in self.actions if not action.option_strings}
        for name, action in self.options().items():
            if not (name.startswith("--no-") and isinstance(action, argparse.BooleanOptionalAction)):
                keys[name.lstrip("-").replace("-", "_")] = action
        keys = {key: action for key, action in keys.items() if key not in _NO_KEYS}
        given: dict[str, str] = {}
        try:
            for key, value in values.items():
                chosen = keys.get(key.replace("-", "_"))
                if key == "env" and isinstance(value, Mapping) and all(str(name).isidentifier() for name in value):
                    raise InvalidConfigError("env is the environment to play; variables are below `variables:`.")
                if chosen is None:
                    self._refuse(key, list(keys))
                self._set_value(chosen, key, value, given)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{where}: {error}") from error

    def _set_value(self, action: argparse.Action, key: str, value: Any, given: dict[str, str]) -> None:
        """Set the default of an argument; `given` has the keys of earlier ones by destination."""
        if value is None and self.none_is_default(action):
            return
        if action.nargs == 0 and not isinstance(value, bool):
            raise InvalidConfigError(f"{key} is {value!r}; it is a flag, true or false.")
        if action.nargs == 0 and action.const is not None:  # one of several options for one destination
            if not value:
                return
            value = action.const
        elif action.nargs != 0:
            value = self._converted(action, key, value)
        if action.dest in given:
            raise InvalidConfigError(f"{given[action.dest]} and {key}: give only one.")
        given[action.dest] = key
        self.set_defaults(**{action.dest: value})
        action.required = False
        if not action.option_strings:
            action.nargs = "*" if action.nargs in ("+", "*") else "?"

    def none_is_default(self, action: argparse.Action) -> bool:
        """Return whether a key without a value in a file leaves the default as it is."""
        return True

    def _converted(self, action: argparse.Action, key: str, value: Any) -> Any:
        """Return a value of a file in the type of its argument."""
        is_many = action.nargs in ("+", "*") or isinstance(action, Repeatable)
        if isinstance(value, list) and action.dest in _JOINED and not is_many:
            value = _JOINED[action.dest].join(map(str, value))
        if self.takes_unchanged(action, value):
            return value
        if isinstance(value, list) and not is_many:
            raise InvalidConfigError(f"{key} is a list of {len(value)}; it takes one value.")
        items = [self._converted_one(action, key, item) for item in (value if isinstance(value, list) else [value])]
        return items if is_many else items[0]

    def takes_unchanged(self, action: argparse.Action, value: Any) -> bool:
        """Return whether a value of a file needs no conversion."""
        return isinstance(value, Mapping) and action.type is json_object

    def _converted_one(self, action: argparse.Action, key: str, value: Any) -> Any:
        if isinstance(value, list | Mapping):
            kind = "a list inside a list" if isinstance(value, list) else "a mapping; it takes one value"
            raise InvalidConfigError(f"{key} is {kind}.")
        text = str(value)
        if isinstance(value, bool):  # YAML reads an unquoted on, off, yes and no as truth values
            spellings = ("true", "on", "yes") if value else ("false", "off", "no")
            text = next((word for word in spellings if word in (action.choices or ())), spellings[0])
        name = "/".join(action.option_strings) or action.dest
        convert: Any = action.type or str
        try:
            converted = convert(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {name}: {error}")
        except (TypeError, ValueError):
            self.error(f"argument {name}: invalid {getattr(convert, '__name__', '')} value: {text!r}")
        if action.choices is not None and converted not in action.choices:
            self.error(
                f"argument {name}: invalid choice: {text!r} (choose from {', '.join(map(repr, action.choices))})"
            )
        return converted


def _take_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file that `--config` names, or None, and the other arguments."""
    rest, paths = list(arguments), list[str]()
    for place in [place for place, text in enumerate(arguments) if text.partition("=")[0] == "--config"][::-1]:
        _, equals, path = rest.pop(place).partition("=")
        if not equals and place == len(rest):
            raise InvalidConfigError("--config needs a YAML file.")
        paths.insert(0, path if equals else rest.pop(place))
    if len(paths) > 1:
        raise InvalidConfigError(f"--config is given twice, {' and '.join(paths)}: give one file.")
    return (paths[0] if paths else None), rest


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Raises:
        InvalidConfigError: If the file cannot be read, or contains anything else. (An empty file contains None.)
    """
    from llm_envs.data.yaml_files import read_yaml_text

    try:
        with open(path, encoding="utf-8", opener=_unless_it_waits) as file:
            content = read_yaml_text(file)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from error
    if content is None:
        raise InvalidConfigError(f"--config {path} is empty; write `option: value`, one a line.")
    if not isinstance(content, dict):
        raise InvalidConfigError(f"--config {path} has {content!r:.80}; it must be a mapping, `option: value` a line.")
    return {str(key): value for key, value in content.items()}


def _unless_it_waits(path: str, flags: int) -> int:
    """Open a file; a named pipe that nobody writes to is empty. One that a shell makes, `<(...)`, has a writer."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def set_variables(variables: Any, path: str | Path) -> None:
    """Set the environment variables of the process that a file lists below `variables`.

    Raises:
        InvalidConfigError: If `variables` is neither a mapping nor None, or a variable cannot be set.
    """
    if variables is not None and not isinstance(variables, Mapping):
        raise InvalidConfigError(f"{path}: variables is {variables!r:.80}; it must be a mapping, `NAME: value`.")
    for key, value in (variables or {}).items():
        try:
            os.environ[str(key)] = str(value)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"{path}: variables: {str(key)!r} cannot be set ({error}).") from error
