"""What a person looks at: plots of a run, and pages of episodes. Needs the extra `report`, but only when used."""

from llm_envs.report.html import write_episode_page
from llm_envs.report.plots import plot_training_curves

__all__ = ["plot_training_curves", "write_episode_page"]
