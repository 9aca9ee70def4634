"""Read YAML that a person wrote, without its traps: a repeated key, and numbers to the base of 60."""

from __future__ import annotations

from typing import IO, Any

__all__ = ["read_yaml_text"]


def read_yaml_text(text: str | IO[str]) -> Any:
    """Return the value of a YAML document. `1:30` is a text, not 90 as in YAML 1.1.

    Args:
        text: The document, or an open file, whose name is then in errors.

    Raises:
        ValueError: If it is not YAML, has a key twice in one mapping, or is nested too deeply.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            is_base_60 = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and ":" in value
            return "tag:yaml.org,2002:str" if is_base_60 else tag

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, seen = super().compose_mapping_node(anchor), set()
            for key, _ in node.value:
                if (name := (key.tag, str(key.value))) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is repeated", problem_mark=key.start_mark
                    )
                seen.add(name)
            return node

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
