"""``python -m xloader`` is the command ``xloader``."""

from xloader.cli import main

if __name__ == "__main__":
    main(prog_name="xloader")
