"""Metrics of GRPO and PPO for a generation and a micro-batch, by TRL's names where it has them.

TRL logs a generation inside the method that plays and scores it, which `EnvGRPOTrainer` replaces. The means here are
over all processes, and over episodes, rows or tokens (`run/means.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from llm_envs.trainers.episodes.batches import batch_from_trl
from llm_envs.trainers.episodes.rewards import EpisodeRewards, RewardSettings, RewardTable, warn_of_absent
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import k3, mean_kl
from llm_envs.trainers.functional.losses import clip_settings, clipped_tokens
from llm_envs.trainers.functional.masking import masked_mean
from llm_envs.trainers.run.means import LogsMeans

__all__ = ["LogsGenerations"]


class LogsGenerations(LogsMeans):
    """Logs for `EpisodeTrainer`: lengths and rewards of a generation, and how far a micro-batch's policy has moved."""

    eos_token_ids: Any
    log_completions: bool
    _logs: Any
    _reward_settings: RewardSettings
    processing_class: Any

    def _log_rows(self, output: Mapping[str, Any]) -> None:
        """Log TRL's metrics of a generation's rows: their lengths in sampled tokens, how many ended, their weights."""
        mode, metrics = self._mode, self._metrics[self._mode]
        mask_BT, ends_B = batch_from_trl(output).mask_BT, output["completion_mask"].sum(1, keepdim=True)
        last_B = output["completion_ids"].gather(1, (ends_B - 1).clamp(min=0))[:, 0]
        ends = [end_id for end_id in (*self.eos_token_ids, self.processing_class.pad_token_id) if end_id is not None]
        end_ids = torch.tensor(ends, device=last_B.device)
        facts = [mask_BT.sum(1), torch.isin(last_B, end_ids), output["prompt_mask"].sum(1)]
        lengths_N, has_ended_N, prompts_N = self._gathered(torch.stack([fact.long() for fact in facts], 1)).T.cpu()
        if mode == "train":
            self.state.num_input_tokens_seen += int(lengths_N.sum() + prompts_N.sum())
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        self._take(mode, "completions/clipped_ratio", float((has_ended_N == 0).sum()), len(has_ended_N))
        for kind, part in (("", lengths_N), ("terminated_", lengths_N[has_ended_N == 1])):
            self._take(mode, f"completions/mean_{kind}length", float(part.sum()), len(part))
            if len(part):
                metrics[f"completions/min_{kind}length"].append(float(part.min()))
                metrics[f"completions/max_{kind}length"].append(float(part.max()))
        if (weights := output.get("importance_sampling_ratio")) is None:
            return
        gaps = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()[mask_BT]
        weights = weights[mask_BT] if weights.shape == mask_BT.shape else weights.flatten()
        for name, part in (("sampling_logp_difference", gaps), ("importance_sampling_ratio", weights)):
            values = self._gathered(part[~part.isnan()])
            self._take(mode, f"sampling/{name}/mean", float(values.sum()), len(values))
            for extreme in ("max",) if part is gaps else ("min", "max"):
                if len(values):
                    metrics[f"sampling/{name}/{extreme}"].append(float(getattr(values, extreme)()))

    def _log_rewards(self, episodes: EpisodeRewards, output: Mapping[str, Any]) -> None:
        """Log TRL's metrics of a generation's rewards, and its table of completions."""
        mode, metrics = self._mode, self._metrics[self._mode]
        table = self._gathered_table(episodes, output)
        if mode == "train" and self.state.global_step == 0:
            warn_of_absent(self._reward_settings, table.columns)
        for name, values in {"reward": table.rewards, **{f"rewards/{k}": v for k, v in table.columns.items()}}.items():
            scored = np.array([value for value in values if value is not None and not math.isnan(value)])
            mean, deviation = ("reward", "reward_std") if name == "reward" else (f"{name}/mean", f"{name}/std")
            self._take(mode, mean, float(scored.sum()), len(scored))
            if not len(scored):
                metrics[mean].append(math.nan)
            metrics[deviation].append(float(scored.std(ddof=1)) if len(scored) > 1 else math.nan)
        if len(set(table.groups)) < len(table.groups):  # meaningless for groups of one
            metrics["frac_reward_zero_std"].append(table.share_of_equal_groups())

    def _gathered_table(self, episodes: EpisodeRewards, output: Mapping[str, Any]) -> RewardTable:
        """Return the rewards of a generation's episodes on all processes; with `log_completions`, note their texts."""
        n, process = len(episodes.trajectories), self.accelerator.process_index
        groups = [(process, trajectory.group_id) for trajectory in episodes.trajectories]
        texts: dict[str, list[Any]] = {"prompt": [None] * n, "completion": [None] * n, "advantages": [None] * n}
        if self.log_completions:
            for name in ("prompt", "completion"):
                ids = [row[own.bool()] for row, own in zip(output[f"{name}_ids"], output[f"{name}_mask"], strict=True)]
                texts[name] = self.processing_class.batch_decode(ids[:n], skip_special_tokens=True)
            if (advantages := output.get("advantages")) is not None:
                mask_BT = batch_from_trl(output).mask_BT
                of_rows = advantages if advantages.ndim == 1 else masked_mean(advantages, mask_BT, dim=1)
                texts["advantages"] = of_rows[:n].tolist()
        parts = [{name: values[i] for name, values in episodes.columns.items()} for i in range(n)]
        gathered = gather_object(list(zip(groups, episodes.rewards.tolist(), parts, *texts.values(), strict=True)))
        every_group, rewards, every_part, *lists = map(list, zip(*gathered, strict=True))
        names = list(dict.fromkeys(name for part in every_part for name in part))
        table = RewardTable(every_group, rewards, {name: [part.get(name) for part in every_part] for name in names})
        if self.log_completions:
            logs: Any = self._logs
            for name, texts_of_all in zip(texts, lists, strict=True):
                logs[name].extend(texts_of_all)
            for name, column in table.columns.items():
                logs["rewards"][name].extend(column)
        return table

    def _log_policy(self, algorithm: Algorithm, batch: Batch, stats: Mapping[str, torch.Tensor]) -> None:
        """Log how the policy of a micro-batch, with the `stats` of its loss, differs from the one that sampled."""
        mask_BT, logps_BT = batch.mask_BT, batch.need("logps_BT").detach()
        old_BT = logps_BT if batch.old_logps_BT is None else batch.old_logps_BT
        # The old policy sampled the tokens, so k3 with swapped arguments estimates KL(old||new).
        means = {"policy/ratio": stats["ratio"], "policy/approx_kl": mean_kl(k3(old_BT, logps_BT, mask_BT), mask_BT)}
        means |= {"kl": stats["kl"]} if "kl" in stats else {}
        means["entropy"] = masked_mean(batch.need("entropies_BT").detach(), mask_BT)
        extremes = {"policy/ratio_max": stats["ratio_max"].detach().float()}
        if algorithm.loss_fn is not None and (clip := clip_settings(algorithm.loss_fn)) is not None:
            below_BT, above_BT = clipped_tokens(logps_BT, old_BT, batch.need("advantages"), mask_BT, **clip)
            parts = {"low": below_BT, "high": above_BT, "region": below_BT | above_BT}
            means |= {f"clip_ratio/{name}_mean": masked_mean(part, mask_BT) for name, part in parts.items()}
            is_masked_B = ~mask_BT.bool().any(1)
            low_B, high_B = (masked_mean(part, mask_BT, dim=1) for part in (below_BT, above_BT))
            extremes["clip_ratio/high_max"] = high_B.masked_fill(is_masked_B, -math.inf).max()
            extremes["clip_ratio/low_min"] = -low_B.masked_fill(is_masked_B, math.inf).min()
        gathered: torch.Tensor = self.accelerator.gather(torch.stack(list(extremes.values())))
        # One wait for a card. Without a row that learns, a share is infinite.
        for name, value in zip(extremes, gathered.view(-1, len(extremes)).amax(0).tolist(), strict=True):
            if math.isfinite(value) or name == "policy/ratio_max":
                self._metrics[self._mode][name].append(-value if name.endswith("_min") else value)
        self._add_means(mask_BT.sum(), means)

    def _gathered(self, values: torch.Tensor) -> torch.Tensor:
        """Return the rows of a tensor on all processes, which may have different numbers of them. A collective."""
        n_N = self.accelerator.gather(torch.tensor([len(values)], device=values.device)).tolist()
        padded = values.new_zeros(max(n_N), *values.shape[1:])
        padded[: len(values)] = values
        whole: torch.Tensor = self.accelerator.gather(padded)
        parts = whole.split(max(n_N)) if max(n_N) else [whole]
        return torch.cat([part[:n] for part, n in zip(parts, n_N, strict=False)])
