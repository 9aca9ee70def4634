"""Between episodes and TRL's trainers: data sets of episodes, credit, rows, checks, ranks, weights."""
