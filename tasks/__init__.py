"""The suite's own tasks, imported as `llm_envs.tasks`: one file a task, one folder a family."""

if __name__ != "llm_envs.tasks":
    raise ImportError(
        f"this folder was imported as {__name__!r}: import llm_envs.tasks instead (the checkout's root is on "
        "sys.path, and a folder there shadows its real name)."
    )
