"""LoRA: an adapter is trained, the model under it stays as it was; merged, the two are one model again.

Command:   python examples/18_lora.py            (--model NAME --steps 20 --episodes 200 --seed 0)
Time:      20 seconds on one CPU core, and 20 once for the warm model.
Expect:    15.2% of the parameters trained; success on the test split 0.490 -> 0.715, merged 0.715 (seed 0).
"""

from peft import LoraConfig
from warm_model import GRPO, GUESS, OUT, options, success, train, warm_model

from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

given = options(__doc__, steps=20, episodes=200)
settings = GRPO | {"learning_rate": 5e-3}  # an adapter wants about ten times the rate
args = EnvGRPOConfig(output_dir=str(OUT / "lora"), max_steps=given.steps, seed=given.seed, **settings)
adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
trainer = EnvGRPOTrainer(given.model or warm_model(), GUESS, args, peft_config=adapter)
trained, everything = trainer.model.get_nb_trainable_parameters()
before = success(trainer, n=given.episodes)
train(trainer)
after = success(trainer, n=given.episodes)
trainer.save_model()  # the adapter alone
trainer.close()
print(f"{trained / everything:.1%} of {everything} parameters trained")
print(f"success on the test split: {before:.3f} -> {after:.3f}")

trainer.model = trainer.model.merge_and_unload()
trainer.model.save_pretrained(str(OUT / "lora-merged"))  # a model like any other
print(f"merged: {success(trainer, n=given.episodes):.3f}")
