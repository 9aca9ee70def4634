"""The launch configurations, as far as accelerate reads them without the machine they are for; what is refused."""

from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from launched import CONFIGS

from llm_envs.errors import InvalidConfigError
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.engines.engines import trainer_policy
from llm_envs.trainers.run.ranks import check_same_rows, episode_limit, raise_on_all_ranks

KINDS = {
    "multi_cpu": DistributedType.MULTI_GPU,  # see the file
    "multi_gpu": DistributedType.MULTI_GPU,
    "two_nodes": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "fsdp2_offload": DistributedType.FSDP,
    "deepspeed_zero2": DistributedType.DEEPSPEED,
    "deepspeed_zero3": DistributedType.DEEPSPEED,
}


def command(name, *options):
    """Return what `accelerate launch` makes of a configuration."""
    parser = launch_command_parser()
    given = ["--config_file", str(CONFIGS / f"{name}.yaml"), *options, "train.py"]
    args, _, _ = _validate_launch_command(parser.parse_args(given))
    args.deepspeed_fields_from_accelerate_config = ""
    return args


def test_every_file_is_known_and_says_what_it_is_for():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == KINDS.keys()
    for path in CONFIGS.glob("*.yaml"):
        assert path.read_text().startswith("# "), path


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it(name):
    """An unknown key, or a value of another kind, is an error there; a number given on the command line wins."""
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == KINDS[name]
    assert command(name, "--num_processes", "3").num_processes == 3
    assert command(name).num_processes == config.num_processes >= 2


@pytest.mark.parametrize("name", ["multi_cpu", "multi_gpu", "fsdp2", "fsdp2_offload"])
def test_as_many_processes_as_asked_for_are_started_by_torch(name):
    args = command(name, "--num_processes", "2")
    assert args.multi_gpu or args.use_fsdp
    environment = prepare_multi_gpu_env(args)
    assert args.nproc_per_node == "2"
    assert int(args.master_port) > 0  # a free one: two runs on a machine do not meet
    assert environment["ACCELERATE_MIXED_PRECISION"] == ("no" if name == "multi_cpu" else "bf16")


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2_offload"])
def test_the_fsdp_plugin_is_what_the_file_says(name, monkeypatch):
    for key, value in prepare_multi_gpu_env(command(name)).items():
        if key.startswith("FSDP_"):
            monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.cpu_ram_efficient_loading and not plugin.activation_checkpointing
    assert ("CPUOffloadPolicy" in type(plugin.cpu_offload).__name__) == (name == "fsdp2_offload")


@pytest.mark.parametrize(("name", "stage"), [("deepspeed_zero2", 2), ("deepspeed_zero3", 3)])
def test_the_deepspeed_settings_are_what_the_file_says(name, stage, monkeypatch):
    """What accelerate tells the processes, and the plugin that they make of it. DeepSpeed itself is not needed yet."""
    _, environment = prepare_deepspeed_cmd_env(command(name))
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == str(stage)
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == str(stage == 3).lower()
    for key, value in environment.items():
        if key.startswith("ACCELERATE_"):
            monkeypatch.setenv(key, value)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == stage
    assert plugin.deepspeed_config["zero_optimization"]["offload_optimizer"]["device"] == "none"
    assert plugin.zero3_init_flag == (stage == 3)


def trainer_under(plugin=None, *, is_fsdp=False):
    """Return what `trainer_policy` looks at before it makes anything."""
    state = SimpleNamespace(deepspeed_plugin=plugin)
    accelerator = SimpleNamespace(state=state, unwrap_model=lambda model: model)
    args = SimpleNamespace(max_concurrency=4)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden_size=32, n_heads=2, max_length=64)
    return SimpleNamespace(
        accelerator=accelerator, is_fsdp_enabled=is_fsdp, model=model, processing_class=tokenizer, args=args
    )


def test_a_model_in_pieces_is_no_policy():
    """DeepSpeed is not installed here: its plugin is the one that a run under ZeRO would have."""
    with pytest.raises(InvalidConfigError, match=r"ZeRO-3.*use_vllm=True.*ZeRO-2"):
        trainer_policy(trainer_under(DeepSpeedPlugin(zero_stage=3)))
    with pytest.raises(InvalidConfigError, match=r"FSDP.*use_vllm=True"):
        trainer_policy(trainer_under(is_fsdp=True))
    for plugin in (None, DeepSpeedPlugin(zero_stage=2)):
        trainer = trainer_under(plugin)
        assert trainer_policy(trainer).model is trainer.model


def limit_of(n_episodes, **changes):
    settings = {"world_size": 2, "use_cpu": False, "ddp_timeout": 3600, "max_concurrency": 128}
    settings |= {"max_episode_s": None, "max_step_s": None, **changes}
    return episode_limit(SimpleNamespace(**settings), n_episodes)


def test_a_rollout_is_shorter_than_the_process_groups_timeout():
    assert limit_of(64, world_size=1) is None  # nobody waits
    assert limit_of(64, world_size=1, max_episode_s=9000.0) == 9000.0
    assert limit_of(64) == limit_of(128) == 1800.0  # all at once: half of the time
    assert limit_of(129) == limit_of(256) == 900.0  # two, one after the other
    assert limit_of(64, max_episode_s=3500.0) == 3500.0
    with pytest.raises(InvalidConfigError, match=r"3620 s .*max_episode_s=3500, .*max_step_s"):
        limit_of(64, max_episode_s=3500.0, max_step_s=120.0)
    with pytest.raises(InvalidConfigError, match=r"max_episode_s=1800.* 3600 s.*ddp_timeout"):
        limit_of(200, max_episode_s=1800.0)


def test_on_cpus_the_timeout_is_torchs():
    """As transformers has it: `ddp_timeout` does not reach the process group there."""
    assert limit_of(64, use_cpu=True) == 900.0
    with pytest.raises(InvalidConfigError, match=r"1800 s: .*max_episode_s\."):
        limit_of(64, use_cpu=True, max_episode_s=1800.0)


def test_without_an_accelerator_the_processes_are_told_to_be_on_cpus(tmp_path):
    args = EnvGRPOConfig(output_dir=str(tmp_path), report_to="none", save_strategy="no")
    assert args.use_cpu == (not torch.accelerator.is_available())


def test_one_process_is_never_told_of_others():
    with pytest.raises(KeyError, match="mine"), raise_on_all_ranks():
        raise KeyError("mine")
    check_same_rows([{"input_ids": [1, 2]}], "rows")
