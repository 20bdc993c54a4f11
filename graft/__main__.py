"""`python -m graft` is the command `graft`."""

from graft.cli.main import main

if __name__ == "__main__":
    main()
