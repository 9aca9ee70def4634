"""Reports of runs for people, and plots, which need the extra `logging` when they are used."""

from llm_envs.report.hub import push_to_hub, write_hub_folder
from llm_envs.report.plots import plot_training_curves
from llm_envs.report.site import write_report

__all__ = [
    "plot_training_curves",
    "push_to_hub",
    "write_hub_folder",
    "write_report",
]
