"""The doctor: what it finds out about templates, its exit codes, and the documented table."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_tokenizer
from models_table import BEGIN, DOCUMENT, END, table

from llm_envs.chat import ChatCodec
from llm_envs.cli.main import main
from llm_envs.doctor import diagnose, play_oracle, show_diagnosis, show_row
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import Row

pytestmark = pytest.mark.transformers


def cases(codec: ChatCodec) -> dict[tuple[str, str], bool]:
    return {(case.role, case.after): case.forks for case in diagnose(codec).cases}


def test_the_documented_table_is_what_is_found():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), "run python tests/support/models_table.py"


def test_qwen3_keeps_thinking_before_a_tool_and_drops_it_before_a_user():
    found = cases(ChatCodec(family_tokenizer("qwen3")))
    assert found["user", "thinking and an answer"] and not found["tool", "thinking and a call"]
    kept = cases(ChatCodec(family_tokenizer("qwen3"), chat_template=family_tokenizer("qwen3_training").chat_template))
    assert not any(kept.values())


def test_gpt_oss():
    found = diagnose(ChatCodec(family_tokenizer("gptoss")))
    assert found.stop_tokens == ("<|return|>", "<|call|>")
    assert found.call_format == "harmony" and "to=functions.look_up" in found.call_text
    assert found.forks and not found.problems
    assert [name for name, held in found.trials.items() if not held] == ["two calls in a turn"]
    assert "two calls in a turn: DOES NOT HOLD" in show_diagnosis(found)
    assert any("today's date" in note for note in found.notes)


def test_a_template_without_roles_and_tools_is_described():
    shown = show_diagnosis(diagnose(ChatCodec(family_tokenizer("gemma"))))
    assert "not in the template: written into the system prompt" in shown
    assert "no system role" in shown and "no tool role" in shown and "two user messages in a row are joined" in shown
    assert "imitate" in show_diagnosis(diagnose(ChatCodec(family_tokenizer("llava_next"))))


def test_a_row_shows_what_is_trained():
    codec = ChatCodec(tiny_tokenizer())
    ids = np.array(codec.tokenizer.encode("ab<|im_end|>\x1b[0m", add_special_tokens=False), dtype=np.int32)
    mask = np.zeros(len(ids), dtype=bool)
    mask[1:3] = True
    row = Row(ids, mask, np.zeros(len(ids), np.float32), ((1, 3),))
    assert show_row(codec, row, colour=False) == "a⟦b<|im_end|>⟧\u241b[0m"  # the terminal obeys nothing of it
    assert show_row(codec, row, colour=True).startswith("a\x1b[32mb<|im_end|>\x1b[0m\u241b")


def test_an_oracles_episode_is_in_the_models_own_format():
    codec = ChatCodec(family_tokenizer("llama3_1"))
    trajectory = play_oracle(codec, "llm/Calculator-v0")
    assert trajectory.is_success
    (row,) = trajectory.rows
    start, stop = row.spans[0]
    call = json.loads(codec.decode(row.ids[start : stop - 1]))
    assert call["name"] == "calculator" and set(call) == {"name", "parameters"}


@pytest.fixture
def saved(tmp_path):
    def save(tokenizer, model_tokenizer=None):
        tokenizer.save_pretrained(tmp_path / "model")
        tiny_model(model_tokenizer or tokenizer, hidden_size=64, n_layers=1, n_heads=2).save_pretrained(
            tmp_path / "model"
        )
        return str(tmp_path / "model")

    return save


def test_the_command_on_a_sound_model(saved, capsys):
    assert main(["doctor", saved(tiny_tokenizer()), "--env", "llm/GuessNumber-v0"]) == 0
    out = capsys.readouterr().out
    assert "prefix-preserving: one row per episode" in out
    assert "⟦<answer>5</answer><|im_end|>⟧" in out and "can be trained on as it is" in out
    assert "\x1b[32m" not in out


def test_the_command_in_colour_with_another_template(saved, capsys, tmp_path):
    (tmp_path / "qwen3.jinja").write_text(family_tokenizer("qwen3").chat_template)
    arguments = ["doctor", saved(tiny_tokenizer()), "--chat-template-path", str(tmp_path / "qwen3.jinja")]
    assert main([*arguments, "--no-thinking", "--colour", "always"]) == 0
    out = capsys.readouterr().out
    assert "qwen3.jinja" in out and "the template changes some" in out and "\x1b[32m<tool_call>" in out


def test_the_command_says_who_serves(saved, capsys):
    folder = saved(tiny_tokenizer())
    assert main(["doctor", folder, "--renderer", "template"]) == 0
    assert "served by         the model's own template; parse_reply reads replies" in capsys.readouterr().out
    assert main(["doctor", folder, "--renderer", "gpt-oss"]) == 2
    assert "renderer='gpt-oss'" in capsys.readouterr().err


def test_what_cannot_be_trained_on_exits_with_1(saved, capsys, tmp_path):
    small, large = tiny_tokenizer(), tiny_tokenizer()
    large.add_tokens([f"word{i}" for i in range(100)])
    assert main(["doctor", saved(large, model_tokenizer=small)]) == 1
    out = capsys.readouterr().out
    assert "have no embedding" in out and "cannot be trained on as it is" in out
    bare = tiny_tokenizer()
    bare.chat_template = None
    bare.save_pretrained(tmp_path / "bare")
    assert main(["doctor", str(tmp_path / "bare")]) == 1
    assert "has no chat template" in capsys.readouterr().err
    endless = tiny_tokenizer()
    endless.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    assert main(["doctor", saved(endless)]) == 1
    assert "a turn would never end" in capsys.readouterr().err
    short = tiny_model(tiny_tokenizer(), hidden_size=64, n_layers=1, n_heads=2, max_length=100)
    short.save_pretrained(tmp_path / "short")
    tiny_tokenizer().save_pretrained(tmp_path / "short")
    assert main(["doctor", str(tmp_path / "short")]) == 1
    assert "the model's context 100" in capsys.readouterr().out


def test_the_command_asked_wrongly(capsys, tmp_path):
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path), "--env", "llm/Nothing-v0"]) == 2
    (tmp_path / "config.json").write_text("{}")
    assert main(["doctor", str(tmp_path), "--chat-template-path", str(tmp_path / "none.jinja")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "no tokenizer could be loaded" in said
    assert ": Give a folder" not in said and ".." not in said, "the sentence before it is whole"


DENIES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.role == 'system' %} You do not currently have access to any functions.{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REPEATS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>system\n{{ messages[0].content }}{{ tools | tojson }}"
    "<|im_end|>\n{% endif %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "notes"),
    [
        (DENIES, ["You do not currently have access to any functions"]),
        (REPEATS, ["repeats the system prompt in each turn", "repeats the tools in each turn"]),
    ],
)
def test_a_template_that_denies_tools_or_repeats_them_is_reported(template, notes):
    found = "\n".join(diagnose(ChatCodec(tiny_tokenizer(), chat_template=template)).notes)
    assert all(note in found for note in notes)
    plain = "\n".join(diagnose(ChatCodec(family_tokenizer("qwen3"))).notes)
    assert "repeats" not in plain and "functions" not in plain
