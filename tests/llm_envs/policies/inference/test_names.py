"""Names of models: what is refused before the network is asked."""

import pytest

from llm_envs.errors import ModelError
from llm_envs.policies.inference import load_tokenizer
from llm_envs.policies.inference.names import name_problem


def test_folders_and_names_on_a_hub_pass_and_mistyped_folders_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "file.txt").touch()
    for name in ("runs/demo", str(tmp_path), "Qwen/Qwen3-0.6B", "gpt2"):
        assert name_problem(name) is None, name
    for name in ("./nosuch", "/nosuch", "~/m", "a/b/c", "file.txt", "two words"):
        assert "does not exist" in name_problem(name), name
    assert "the folder runs does not contain demos" in name_problem("runs/demos")
    with pytest.raises(ModelError, match="runs/demos"):
        load_tokenizer("runs/demos")


def test_an_unreachable_hub_is_asked_once(monkeypatch):
    import httpx
    import huggingface_hub

    from llm_envs.policies.inference.names import check_hub

    asked = []

    def refuse(request):
        asked.append(str(request.url))
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    huggingface_hub.set_client_factory(lambda: httpx.Client(transport=httpx.MockTransport(refuse)))
    try:
        with pytest.raises(ModelError, match=r"nosuch/model.*ConnectError"):
            check_hub("nosuch/model")
    finally:
        huggingface_hub.set_client_factory(httpx.Client)
        huggingface_hub.close_session()
    assert len(asked) == 1
