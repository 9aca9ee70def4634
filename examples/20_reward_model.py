"""A reward model: a classifier that learned from labelled episodes which end well pays in the place of the task.

Command:   python examples/20_reward_model.py            (--model NAME --groups 400 --fit 60 --steps 20)
Time:      25 seconds on one CPU core, and 20 once for the warm model.
Expect:    the judge is right about 1.000 of 100 episodes that it has not seen; success on the test split 0.490 ->
           0.815 (seed 0).
"""

import torch
from transformers import AutoModelForSequenceClassification
from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.judges.reward_model import RewardModel, torch_scorer
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, RewardSettings
from llm_envs.types import SamplingParams

given = options(__doc__, groups=400, fit=60, steps=20, episodes=200)
model = given.model or warm_model()
policy = TransformersPolicy.from_pretrained(model)
settings = {"codec": policy.codec, "sampling": SamplingParams(max_new_tokens=16), "progress": False}
with Collector(GUESS, policy, env_kwargs={"split": "train"}, **settings) as collector:
    labelled = [trajectory for group in collector.collect(given.groups) for trajectory in group]

classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
classifier.config.pad_token_id = policy.tokenizer.pad_token_id
whole = lambda trajectory: trajectory.messages  # noqa: E731  # by default: up to the agent's last word
judge = RewardModel(policy.tokenizer, torch_scorer(classifier), messages_fn=whole, cache_size=0, name="judge")
kept, learned = labelled[: given.groups // 4], labelled[given.groups // 4 :]
optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-3)
for step in range(given.fit):
    batch = [learned[(32 * step + i) % len(learned)] for i in range(32)]
    ids = [torch.tensor(judge.encode(t.messages), dtype=torch.long) for t in batch]
    padded = {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, True, policy.tokenizer.pad_token_id)}
    padded["attention_mask"] = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], True)
    labels = torch.tensor([float(t.is_success) for t in batch])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(classifier(**padded).logits[:, 0], labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
classifier.eval()
right = [(score > 0) == t.is_success for score, t in zip(judge.score_batch(kept), kept, strict=True)]
print(f"the judge is right about {sum(right) / len(right):.3f} of {len(kept)} episodes that it has not seen")

args = EnvGRPOConfig(output_dir=str(OUT / "reward-model"), max_steps=given.steps, seed=given.seed, **GRPO)
trainer = EnvGRPOTrainer(model, GUESS, args, rewards=RewardSettings(reward_fns=[judge], weights={"reward": 0.0}))
before = success(trainer, n=given.episodes)
train(trainer)
print(f"success on the test split: {before:.3f} -> {success(trainer, n=given.episodes):.3f}")
trainer.close()
