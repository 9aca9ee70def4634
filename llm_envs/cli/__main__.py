"""`python -m llm_envs.cli` is the command `llm-envs`."""

import sys

from llm_envs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
