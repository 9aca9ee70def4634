"""Templates that `llm-envs new-task` copies: three small tasks that work, to be replaced line by line, and their tests.

Every file here is a task or a test like any other; `llm_envs/cli/new_task.py` changes the names in it and nothing else.
"""
