"""The reference of TRL's trainers: `ref_model_fn` creates it, `reference_update_fn` updates it, checkpoints store it.

Invariants:
1. The reference is `ref_model`, or the policy with the adapter "ref", or with none (`reference_of`).
2. The reference has no gradient. No optimizer, saved adapter or sampling engine gets its weights.
3. It changes only after an optimizer step, and in the same way on all processes, which have equal weights and measured
   KL.
4. With PEFT, a reference that is updated is a second, frozen adapter on the same base model. It starts as a copy of the
   trained adapter, and an update changes each of its matrices. A reference that stays is the base model with the
   adapter off if that is the policy before training, and otherwise (PiSSA, OLoRA, random starts) such a copy too.
5. A reference that is made from the policy equals it before training, and nothing that is trained changes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head, use_adapter

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.positions import check_positions
from llm_envs.trainers.engines.engine_weights import active_adapter, describe_adapter
from llm_envs.trainers.engines.engines import sharding_of
from llm_envs.trainers.engines.probe import mean_gap, probe_ids, probe_logps, shifted, trained_kinds
from llm_envs.trainers.forward.dropout import disable_dropout
from llm_envs.trainers.forward.teacher import ServedTeacher, check_vocabulary
from llm_envs.trainers.functional.kl import KLFn, k3
from llm_envs.trainers.functional.masking import masked_sum
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn, freeze
from llm_envs.trainers.run.ranks import raise_on_all_ranks

if TYPE_CHECKING:
    from trl import DPOTrainer

__all__ = [
    "REFERENCE_FOLDER",
    "REF_ADAPTER",
    "KLMeter",
    "Reference",
    "StepEnd",
    "adapter_weights",
    "drop_reference_adapter",
    "keeping_base",
    "reference_of",
]

logger = logging.getLogger(__name__)

REFERENCE_FOLDER = "reference"
"""Folder in a checkpoint with the weights of a reference that is updated."""
REF_ADAPTER = "ref"
"""TRL's name for the adapter that serves as the reference."""
_FILE = "reference.safetensors"
_MAX_GAP = 1e-3
"""Nats per token between a reference and the policy that it is made from. The same weights and kernels give 0."""


class StepEnd(TrainerCallback):
    """Calls a function after each optimizer step, before the step is logged and saved."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Call it."""
        self._function()


class KLMeter:
    """Measures a step's mean KL per token in nats, over all its micro-batches and processes."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []

    def add(
        self, logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, kl_fn: KLFn | None = None
    ) -> None:
        """Add a micro-batch, measured by `kl_fn`; None: k3."""
        with torch.no_grad():
            kl_BT = (kl_fn or k3)(logps_BT.detach(), ref_logps_BT, mask_BT)
            self._parts.append(torch.stack([masked_sum(kl_BT, mask_BT).float(), mask_BT.bool().sum().float()]))

    def take(self, accelerator: Any) -> float | None:
        """Return the mean over all processes and reset; None if nothing was measured."""
        if not self._parts:
            return None
        parts, self._parts = self._parts, []
        # A collective. All ranks reach it: with the same schedule and update function, either all measured or none.
        total, count = accelerator.reduce(torch.stack(parts).sum(0), reduction="sum").tolist()
        return float(total / max(count, 1.0))


@contextmanager
def captured_log_probs(modules: Sequence[torch.nn.Module]) -> Iterator[list[torch.Tensor]]:
    """Collect the log-probabilities of TRL's forward passes inside the block, in order, each (B, T), detached."""
    scored: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: Any, output: Any) -> None:
        scored.append(output.log_probs.detach())

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield scored
    finally:
        for handle in handles:
            handle.remove()


class Reference:
    """The reference model of a trainer, if TRL's own does not suffice.

    Args:
        ref_model_fn: `(policy) -> reference`; None: TRL's reference, the initial weights.
        update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step; None: no update.

    With neither, TRL handles the reference itself.
    """

    def __init__(self, ref_model_fn: RefModelFn | None, update_fn: ReferenceUpdateFn | None) -> None:
        self.ref_model_fn, self.update_fn = ref_model_fn, update_fn
        self.meter = KLMeter()
        self.n_updates = 0
        """Number of steps that changed the reference."""
        self._is_checked = False
        self._has_copy = False  # whether the reference is a copy of the trained adapter, ours or TRL's

    @property
    def is_ours(self) -> bool:
        """Whether we create or update the reference; otherwise TRL does."""
        return self.ref_model_fn is not None or self.update_fn is not None

    @property
    def _names(self) -> str:
        functions = (("ref_model_fn", self.ref_model_fn), ("reference_update_fn", self.update_fn))
        return " and ".join(name for name, function in functions if function is not None)

    def check(self, args: Any, *, is_used: bool = True, how: str = "", ref_model: Any = None) -> None:
        """Reject settings that contradict each other, before a model is loaded.

        Args:
            args: The trainer's settings.
            is_used: Whether the run needs a reference.
            how: The setting that would make it need one.
            ref_model: TRL's argument, of trainers that have it.

        Raises:
            InvalidConfigError: If settings contradict each other.
        """
        self._is_checked |= ref_model is not None or self.ref_model_fn is not None or not is_used
        if not self.is_ours:
            return
        if not is_used:
            raise InvalidConfigError(f"{self._names} is given, and nothing is measured against a reference: {how}.")
        if args.sync_ref_model:
            raise InvalidConfigError(
                f"sync_ref_model is TRL's way of moving its reference, and {self._names} is given: leave one out."
            )
        if self.ref_model_fn is not None and ref_model is not None:
            raise InvalidConfigError("ref_model and ref_model_fn both make the reference: give one of them.")
        if getattr(args, "precompute_ref_log_probs", False):
            raise InvalidConfigError(
                f"precompute_ref_log_probs is done once, before {self._names} is called: give ref_model= a model, and "
                "no update, or leave it out."
            )

    def start(self, trainer: GRPOTrainer | DPOTrainer) -> None:
        """Create the reference, after TRL has set up the trainer; then switch dropout off (`forward.dropout`).

        Raises:
            InvalidConfigError: If the created module cannot be a reference, or cannot be updated in this setup, or if
                the reference is not the policy before training.
        """
        if self.is_ours:
            self._make(trainer)
        self.check_start(trainer)
        args: Any = trainer.args
        if args.disable_dropout:  # only now: an adapter that is the reference has dropout too
            disable_dropout(trainer.accelerator.unwrap_model(trainer.model))

    def check_start(self, trainer: GRPOTrainer | DPOTrainer, *, is_asked_once: bool = False) -> None:
        """Check before training that a reference made from the policy equals it, and that training does not change it.

        If another starting point than the base model makes them differ under PEFT, the reference becomes a copy of the
        trained adapter. Weights that FSDP or DeepSpeed have split cannot be compared.

        Args:
            trainer: The trainer.
            is_asked_once: Whether the reference is read now, and never again.
        """
        plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
        is_split = trainer.ref_model is not None or (plugin is not None and plugin.zero_stage == 3)
        if self._is_checked or (is_split and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)):
            return
        self._is_checked = True
        model = trainer.accelerator.unwrap_model(trainer.model)
        if trainer.ref_model is None and not is_peft_model(model):  # it is the policy, asked before training
            return
        is_adapter_off = trainer.ref_model is None and REF_ADAPTER not in model.peft_config
        may_copy = is_adapter_off and not model.peft_config[active_adapter(model)].is_prompt_learning
        if may_copy and not self._first_gap(trainer) <= _MAX_GAP:
            _add_reference_adapter(model)
        self._has_copy = trainer.ref_model is None and REF_ADAPTER in model.peft_config
        self._check_gap(trainer, model, is_asked_once=is_asked_once)

    def _check_gap(self, trainer: GRPOTrainer | DPOTrainer, model: Any, *, is_asked_once: bool) -> None:
        what = f"peft_config={describe_adapter(model)}" if is_peft_model(model) else f"model={model.name_or_path!r}"
        if not (gap := self._first_gap(trainer)) <= _MAX_GAP:
            raise InvalidConfigError(
                f"{what}: before training, the reference's log-probabilities differ from the policy's by {gap:.2g} "
                "nats a token, so the KL would not be measured against the policy's start. Give the reference: "
                "ref_model_fn=frozen_copy (functional.references), or a function that loads another model."
            )
        is_shared = is_peft_model(model) and not is_asked_once
        if moved := self._moved_by_training(trainer, model) if is_shared else []:
            raise InvalidConfigError(
                f"{what}: {' and '.join(moved)} would change the reference too, which is the same model with its "
                "adapter off. Train only what PEFT can switch off (bias='none'), or give the reference "
                "its own weights: ref_model_fn=frozen_copy (functional.references)."
            )

    def _first_gap(self, trainer: GRPOTrainer | DPOTrainer) -> float:
        """Return the mean gap of policy and reference on some tokens, in nats; the same on all processes."""
        gap = 0.0
        with raise_on_all_ranks():
            if trainer.accelerator.is_main_process:  # under FSDP only this process has the weights now
                model = trainer.accelerator.unwrap_model(trainer.model)
                ids = probe_ids(model)
                gap = mean_gap(probe_logps(model, ids), _reference_logps(trainer, ids))
        return float(broadcast_object_list([gap])[0])

    def _moved_by_training(self, trainer: GRPOTrainer | DPOTrainer, model: Any) -> list[str]:
        """Return the kinds of trained parameters of a PEFT model that its reference depends on."""
        kinds: list[str] = []
        with raise_on_all_ranks():
            if trainer.accelerator.is_main_process:
                ids = probe_ids(model)
                before = _reference_logps(trainer, ids)
                for kind, parameters in trained_kinds(model).items():
                    with shifted(parameters, lambda: probe_logps(model, ids)):
                        if not mean_gap(_reference_logps(trainer, ids), before) <= _MAX_GAP:
                            kinds.append(kind)
        agreed: list[str] = broadcast_object_list([kinds])[0]
        return agreed

    def _make(self, trainer: GRPOTrainer | DPOTrainer) -> None:
        if self.update_fn is not None and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            raise InvalidConfigError(
                "reference_update_fn needs full weights on each process, which FSDP and DeepSpeed split: leave it "
                "out, or take sync_ref_model=True, TRL's own."
            )
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self.ref_model_fn is not None:
            with _unpatched(model):
                made = self.ref_model_fn(model)
            if isinstance(made, ServedTeacher):
                self._check_served(made, trainer)
                trainer.ref_model = cast("Any", made)  # it has no weights to prepare
                return
            self._check_made(made, model, trainer)
            trainer.ref_model = _prepared(trainer, made)
        elif is_peft_model(model):
            _add_reference_adapter(model)
        else:
            freeze(trainer.accelerator.unwrap_model(trainer.ref_model))

    def end_step(self, trainer: GRPOTrainer | DPOTrainer, kl: float | None) -> None:
        """Update the reference after an optimizer step, and log the number of updates."""
        if self.update_fn is None:
            return
        policy, reference = self._modules(trainer)
        before = _stamp(reference)
        with torch.no_grad():
            after = self.update_fn(reference, policy, step=trainer.state.global_step, kl=0.0 if kl is None else kl)
        # An update function may return another module. TRL then needs that one, prepared like the first.
        if after is not reference:
            if trainer.ref_model is None:
                raise InvalidConfigError(
                    "reference_update_fn returned another module; under PEFT the reference is an adapter's weights: "
                    "change those that it is given, and return them."
                )
            self._check_made(after, trainer.accelerator.unwrap_model(trainer.model), trainer)
            trainer.ref_model = _prepared(trainer, after)
        # Count only steps that changed it: a periodic or triggered update mostly returns it unchanged.
        self.n_updates += _stamp(after) != before
        trainer._metrics["train"]["reference/updates"].append(float(self.n_updates))

    def save(self, trainer: GRPOTrainer | DPOTrainer, folder: Path) -> dict[str, Any] | None:
        """Write the weights of a reference that cannot be made again; return the rest of its state, as JSON types."""
        if not self._is_saved(trainer.args):
            return None
        if (sharding := sharding_of(trainer)) is not None:
            logger.warning(
                f"{folder} cannot be resumed from: sync_ref_model=True moves the reference, which {sharding} shards, "
                "and only full weights are saved. Take DDP or ZeRO-2 to resume."
            )
            return None
        target = folder / REFERENCE_FOLDER
        target.mkdir(parents=True, exist_ok=True)
        _, reference = self._modules(trainer)
        weights = {name: value.detach().cpu().contiguous() for name, value in reference.named_parameters()}
        save_file(weights, target / _FILE)
        state_dict = getattr(self.update_fn, "state_dict", None)
        return {"updates": self.n_updates, "update_fn": None if state_dict is None else state_dict()}

    def load(self, trainer: GRPOTrainer | DPOTrainer, folder: Path, state: Mapping[str, Any] | None) -> None:
        """Restore the state that `save` wrote.

        Raises:
            InvalidConfigError: If only one of checkpoint and trainer updates its reference, or the weights differ.
        """
        is_saved = self._is_saved(trainer.args)
        if (state is not None) != is_saved:
            has, lacks = ("trainer", "checkpoint") if is_saved else ("checkpoint", "trainer")
            raise InvalidConfigError(
                f"{folder}: the {has} has a reference with separate weights, the {lacks} has none: resume with the "
                "reference_update_fn, sync_ref_model and adapter of the run, or begin a new run with the checkpoint's "
                "weights as its model."
            )
        if state is None:
            return
        _, reference = self._modules(trainer)
        saved, targets = load_file(folder / REFERENCE_FOLDER / _FILE), dict(reference.named_parameters())
        if {n: v.shape for n, v in saved.items()} != {n: v.shape for n, v in targets.items()}:
            raise InvalidConfigError(
                f"{folder}: the checkpoint's reference has other weights than this trainer's: resume with the model, "
                "the ref_model_fn and the adapter's settings of the run."
            )
        with torch.no_grad():
            for name, value in targets.items():
                value.copy_(saved[name])
        self.n_updates = int(state["updates"])
        load_state_dict = getattr(self.update_fn, "load_state_dict", None)
        if state["update_fn"] is not None and load_state_dict is not None:
            load_state_dict(state["update_fn"])

    def _is_saved(self, args: Any) -> bool:
        """Whether a resumed run could not make the reference again: it moves, or is an adapter's random start."""
        return self.update_fn is not None or bool(args.sync_ref_model) or self._has_copy

    def _modules(self, trainer: GRPOTrainer | DPOTrainer) -> tuple[torch.nn.Module, torch.nn.Module]:
        """Return policy and reference as modules with the same parameter names."""
        policy = trainer.accelerator.unwrap_model(trainer.model)
        if trainer.ref_model is not None:
            return policy, trainer.accelerator.unwrap_model(trainer.ref_model)
        return adapter_weights(policy, active_adapter(policy)), adapter_weights(policy, REF_ADAPTER)

    def _check_served(self, made: ServedTeacher, trainer: GRPOTrainer | DPOTrainer) -> None:
        if self.update_fn is not None:
            raise InvalidConfigError("reference_update_fn cannot move a teacher on a server: leave one of them out.")
        if not isinstance(trainer, GRPOTrainer):
            raise InvalidConfigError("EnvDPOTrainer scores pairs by a model in its process: give a folder or a name.")
        args: Any = trainer.args
        tokenizer: Any = trainer.processing_class
        made.check(tokenizer, temperature=trainer.temperature, keeps_mask=bool(args.keep_sampling_mask))

    def _check_made(self, made: Any, policy: Any, trainer: GRPOTrainer | DPOTrainer) -> None:
        if not isinstance(made, torch.nn.Module) or not hasattr(made, "config"):
            raise InvalidConfigError(
                f"{self._names} returned {type(made).__name__}; a reference is a causal language model."
            )
        trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
        if made is policy or any(id(parameter) in trained for parameter in made.parameters()):
            raise InvalidConfigError(
                f"{self._names} returned weights that are trained: the reference would always be the policy. Return "
                "a copy (functional.references.frozen_copy) or another model."
            )
        check_positions(made)
        check_vocabulary(made, policy, trainer.processing_class)


def adapter_weights(model: Any, adapter: str) -> torch.nn.Module:
    """Return the weights of one adapter of a PEFT model as a module, with the adapter's name removed from theirs."""
    weights = torch.nn.Module()
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        if adapter in parts:
            # Without the adapter's name, the weights of two adapters have equal names, which update functions need.
            # Torch does not allow a dot in a name.
            weights.register_parameter("/".join(part for part in parts if part != adapter), parameter)
    return weights


def drop_reference_adapter(trainer: GRPOTrainer | DPOTrainer, folder: str | Path | None) -> None:
    """Delete the reference adapter from a folder that PEFT has just saved all adapters to."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    target = Path(folder or trainer.args.output_dir or ".") / REF_ADAPTER
    if trainer.args.should_save and is_peft_model(model) and REF_ADAPTER in model.peft_config:
        for path in target.glob("*"):
            path.unlink()
        if target.is_dir():
            target.rmdir()


def _add_reference_adapter(model: Any) -> None:
    """Give a PEFT model the adapter "ref", a frozen copy of the trained one. TRL may have created it already."""
    trained = active_adapter(model)
    config = model.peft_config[trained]
    if config.is_prompt_learning:
        raise InvalidConfigError("reference_update_fn: prompts that are learned cannot move a reference; take LoRA.")
    if REF_ADAPTER not in model.peft_config:
        try:
            with keeping_base(model):
                model.add_adapter(REF_ADAPTER, config)
        except (ValueError, NotImplementedError) as error:  # of two adapters, only one may train biases, ...
            raise InvalidConfigError(
                f"peft_config={describe_adapter(model)}: the reference cannot be a copy of the adapter ({error}). "
                "Leave that setting out, or give the reference its own weights: ref_model_fn=frozen_copy "
                "(functional.references)."
            ) from error
    sources = dict(adapter_weights(model, trained).named_parameters())
    for name, parameter in adapter_weights(model, REF_ADAPTER).named_parameters():
        parameter.data.copy_(sources[name].data)
        parameter.requires_grad_(False)


@contextmanager
def keeping_base(model: Any) -> Iterator[None]:
    """Inside the block, adapters are added to a PEFT model without PiSSA's, OLoRA's, ... change of its base weights.

    Their first one subtracted itself from the base. A copy that did it again would change the policy.
    """
    is_adapted = isinstance(model, torch.nn.Module) and is_peft_model(model)
    configs = model.peft_config.values() if is_adapted else ()
    kept = [(config, config.init_lora_weights) for config in configs if hasattr(config, "init_lora_weights")]
    for config, _ in kept:
        config.init_lora_weights = True
    try:
        yield
    finally:
        for config, value in kept:
            config.init_lora_weights = value


@contextmanager
def reference_of(trainer: GRPOTrainer | DPOTrainer) -> Iterator[Any]:
    """Yield the model that scores as the reference; a policy with adapters is its own reference inside the block."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(model, REF_ADAPTER if REF_ADAPTER in model.peft_config else None):
        yield trainer.model


def _reference_logps(trainer: GRPOTrainer | DPOTrainer, ids: Any) -> Any:
    """Return the log-probabilities by which the KL is measured, shape (T,)."""
    with reference_of(trainer) as reference:
        return probe_logps(trainer.accelerator.unwrap_model(reference), ids)


def _prepared(trainer: GRPOTrainer | DPOTrainer, reference: Any) -> Any:
    """Return a reference prepared in the same way as TRL's own."""
    freeze(reference)
    args: Any = trainer.args
    accelerator = trainer.accelerator
    add_fused_lm_head(
        reference.get_base_model() if is_peft_model(reference) else reference,
        temperature=getattr(trainer, "temperature", 1.0),
        cast_lm_head_to_fp32=getattr(args, "cast_lm_head_to_fp32", False),
    )
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(reference, accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(reference, accelerator)
    prepared = accelerator.prepare_model(reference, evaluation_mode=True)
    if accelerator.num_processes > 1:  # a `ref_model_fn` may be random: all ranks take the weights of rank 0
        for parameter in reference.parameters():
            torch.distributed.broadcast(parameter.data, src=0)
    return prepared


@contextmanager
def _unpatched(model: torch.nn.Module) -> Iterator[None]:
    """Remove the forward functions that TRL has set on a model, inside the block. A copy would share them."""
    patched = [(module, module.__dict__.pop("forward")) for module in model.modules() if "forward" in module.__dict__]
    try:
        yield
    finally:
        for module, forward in patched:
            module.__dict__["forward"] = forward


def _stamp(reference: torch.nn.Module) -> tuple[Any, ...]:
    """Return a value that differs after a weight was written to, without reading the weights."""
    # torch increments `_version` at every in-place write.
    return tuple((id(parameter), parameter._version) for parameter in reference.parameters())
