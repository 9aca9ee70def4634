"""Learning from collected trajectories, imported as `llm_envs.trainers`."""

if __name__ != "llm_envs.trainers":
    raise ImportError(
        f"this folder was imported as {__name__!r}: import llm_envs.trainers instead (the checkout's root is on "
        "sys.path, and a folder there shadows its real name)."
    )
