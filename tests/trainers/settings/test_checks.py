"""Numbers that a config was given as texts."""

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import EnvDPOConfig, EnvGRPOConfig, EnvPPOConfig, EnvSFTConfig

KINDS = [EnvDPOConfig, EnvGRPOConfig, EnvPPOConfig, EnvSFTConfig]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_shows_a_number_is_read(kind, tmp_path):
    """YAML reads 1e-5 as a text: its numbers need a point."""
    args = kind(output_dir=str(tmp_path / "1"), learning_rate="1e-5", max_steps="3", weight_decay="0", bf16=False)
    assert (args.learning_rate, args.max_steps, args.weight_decay) == (1e-5, 3, 0.0)
    assert args.output_dir == str(tmp_path / "1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "text"), [("learning_rate", "fast"), ("max_steps", "2.5")])
def test_another_text_is_refused_by_name(kind, name, text, tmp_path):
    with pytest.raises(InvalidConfigError, match=f"{name}='{text}'; it must be"):
        kind(output_dir=str(tmp_path), bf16=False, **{name: text})
