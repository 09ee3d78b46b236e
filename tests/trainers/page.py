"""The examples of a page, one after another: ``python page.py PAGE``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.test_docs import run_blocks

if __name__ == "__main__":
    run_blocks(sys.argv[1], Path(sys.argv[1]).read_text("utf-8"))
