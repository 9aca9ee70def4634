"""The critic of PPO: a value head on the policy's trunk, or on a separate trunk; its optimizer and its files.

The critic is not part of the policy's module. So it does not appear in the policy's files, in its distributed
wrapper, or in the weights for a sampling engine. Its gradients are averaged over the processes here.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel

from llm_envs.data.files import read_text, remove_links
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference.positions import check_positions, position_ids
from llm_envs.trainers.forward.dropout import disable_dropout
from llm_envs.trainers.forward.teacher import vocabulary_difference
from llm_envs.trainers.forward.trunk import trunk_of

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["CRITIC_FOLDER", "Critic", "CriticOptimizer", "load_critic"]

CRITIC_FOLDER = "critic"
"""Folder of the critic's files, in a checkpoint and in the folder of a saved model."""
_HEAD_FILE, _CARD_FILE, _OPTIMIZER_FILE = "value_head.safetensors", "critic.json", "optimizer.pt"


class Critic(nn.Module):
    """Values of token sequences: `V = w h + b` of the trunk's last hidden states h, computed in float32.

    The head starts at 0, so an untrained critic gives every state the value 0.

    Args:
        hidden_size: Width of the trunk.
        trunk: A separate model without a language-model head; None: the head reads the policy's hidden states.
    """

    def __init__(self, hidden_size: int, trunk: PreTrainedModel | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.trunk = trunk

    @property
    def is_shared(self) -> bool:
        """Whether the trunk is the policy's."""
        return self.trunk is None

    def read(self, states_BTH: torch.Tensor) -> torch.Tensor:
        """Return the values of hidden states, shape (B, T), float32."""
        weight = self.head.weight
        # Autocast would compute the head in bf16, which is too coarse for values.
        with torch.autocast(states_BTH.device.type, enabled=False):
            values_BT: torch.Tensor = self.head(states_BTH.to(weight.device, weight.dtype)).squeeze(-1)
        return values_BT

    def forward(self, ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """Return the value after each token, from the critic's own trunk, shape (B, T), float32."""
        if self.trunk is None:
            raise ValueError("this critic has no trunk of its own: read the policy's hidden states.")
        further: dict[str, Any] = {}
        accepted = inspect.signature(self.trunk.forward).parameters
        if "position_ids" in accepted:
            further["position_ids"] = position_ids(attention_mask_BT)
        if "use_cache" in accepted:
            further["use_cache"] = False
        states_BTH = self.trunk(input_ids=ids_BT, attention_mask=attention_mask_BT, **further).last_hidden_state
        return self.read(states_BTH)

    def save(self, folder: Path) -> None:
        """Write the critic; `load_critic(folder)` reads it."""
        remove_links(folder, deep=True)
        folder.mkdir(parents=True, exist_ok=True)
        if self.trunk is not None:
            self.trunk.save_pretrained(folder)
        save_file({name: value.detach().cpu() for name, value in self.head.state_dict().items()}, folder / _HEAD_FILE)
        (folder / _CARD_FILE).write_text(json.dumps(self._card()) + "\n")

    def load(self, folder: Path) -> None:
        """Load weights that `save` wrote, for a critic of the same form.

        Raises:
            ModelError: If the folder has no critic, or one of another form.
        """
        if not (folder / _CARD_FILE).exists():
            raise ModelError(
                f"{folder} holds no critic: the checkpoint is not one of EnvPPOTrainer's. Resume from one that is, or "
                "begin a new run with this checkpoint as its model (train() without resume_from_checkpoint)."
            )
        card = json.loads(read_text(folder / _CARD_FILE))
        if card != self._card():
            raise ModelError(
                f"the critic in {folder} is {card}, this trainer's {self._card()}: give the trainer the same "
                "`critic` as the run that is resumed."
            )
        self.head.load_state_dict(load_file(folder / _HEAD_FILE))
        if self.trunk is not None:
            saved = type(self.trunk).from_pretrained(folder, dtype=self.trunk.dtype)
            self.trunk.load_state_dict(saved.state_dict())

    def _card(self) -> dict[str, Any]:
        trunk = None if self.trunk is None else type(self.trunk).__name__
        return {"trunk": trunk, "hidden_size": self.head.in_features}


class CriticOptimizer:
    """Steps the critic: averages gradients over the processes and clips their norm. It has its own learning rate.

    Args:
        critic: The critic to train.
        optimizer: Optimizer of the critic's parameters.
        scheduler: Learning-rate scheduler of that optimizer.
        max_grad_norm: Greatest norm of the gradient; 0: no bound.
    """

    def __init__(
        self,
        critic: Critic,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        *,
        max_grad_norm: float,
    ) -> None:
        self.optimizer, self.scheduler = optimizer, scheduler
        self._max_grad_norm = max_grad_norm
        self._parameters = [parameter for parameter in critic.parameters() if parameter.requires_grad]

    def clip(self, accelerator: Accelerator) -> float:
        """Average the gradient over the processes and clip its norm; return the norm before clipping."""
        # The reduction is a collective: a process without a gradient must join it, so it contributes zeros.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if accelerator.num_processes > 1:  # DDP does not wrap the critic
                gradient = accelerator.reduce(gradient, reduction="mean")
            parameter.grad = gradient
        # An infinite bound clips nothing, but gives the norm for the log.
        limit = self._max_grad_norm or float("inf")
        return torch.nn.utils.clip_grad_norm_(self._parameters, limit).item()

    def step(self, *, skip: bool = False) -> None:
        """Take one step on the clipped gradient; with `skip`, only the schedule moves on."""
        if skip:
            self.optimizer.zero_grad(set_to_none=True)  # the optimizer then changes nothing
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def save(self, folder: Path) -> None:
        """Write the state of optimizer and schedule."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()},
            folder / _OPTIMIZER_FILE,
        )

    def load(self, folder: Path) -> None:
        """Load the state that `save` wrote; do nothing if the checkpoint has none (`save_only_model`)."""
        if (path := folder / _OPTIMIZER_FILE).exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            self.scheduler.load_state_dict(state["scheduler"])


def load_critic(
    critic: str | Path | PreTrainedModel | None,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    **kwargs: Any,
) -> Critic:
    """Return a critic for a policy.

    Args:
        critic: None: a new value head on the policy's trunk. A folder or a name on a hub: a model whose trunk gets a
            new value head, or a critic that `Critic.save` wrote (`checkpoint-N/critic`). A loaded model: its trunk gets
            a new value head and is trained in place.
        policy: The policy.
        tokenizer: The policy's.
        **kwargs: For transformers' loader.

    Raises:
        InvalidConfigError: If the critic's vocabulary differs from the policy's.
        ModelError: If the critic is the policy itself or a PEFT model.
    """
    saved = Path(critic) if isinstance(critic, str | Path) and (Path(critic) / _CARD_FILE).exists() else None
    if critic is None or (saved is not None and json.loads(read_text(saved / _CARD_FILE))["trunk"] is None):
        trunk_of(policy)
        made = Critic(policy.config.get_text_config().hidden_size)
    else:
        model: Any = critic
        if isinstance(critic, str | Path):
            model = AutoModel.from_pretrained(critic, dtype=torch.float32, **kwargs)
        made = _separate(model, policy, tokenizer)
    if saved is not None:
        made.load(saved)
    return made


def _separate(model: Any, policy: Any, tokenizer: Any) -> Critic:
    if hasattr(model, "get_base_model"):
        raise ModelError("the critic is a PEFT model: merge its adapter first (`merge_and_unload`).")
    if not hasattr(model, "base_model") or not hasattr(model, "config"):
        raise ModelError(f"critic is of type {type(model).__name__}; give a folder, a name or a model of transformers.")
    trunk = model.base_model
    if trunk is trunk_of(policy):
        raise ModelError("the critic is the policy itself: leave `critic` out for a value head on the policy's trunk.")
    check_positions(trunk)
    _check_vocabulary(trunk, policy, tokenizer)
    config = trunk.config.get_text_config()
    disable_dropout(trunk)  # a value is a number, not a sample
    return Critic(config.hidden_size, trunk)


def _check_vocabulary(trunk: Any, policy: Any, tokenizer: Any) -> None:
    """Reject a critic whose token ids mean other tokens than the policy's."""
    size = trunk.get_input_embeddings().num_embeddings
    expected, where = policy.get_input_embeddings().num_embeddings, trunk.name_or_path
    what = vocabulary_difference(where, tokenizer, scores=size, expected=expected)
    if what is None:
        return
    raise InvalidConfigError(
        f"the critic {where or type(trunk).__name__} {what}: its vocabulary differs from the policy's, whose token ids "
        "it would misread. Take a model of the same family, or leave `critic` out for a value head on the policy."
    )
