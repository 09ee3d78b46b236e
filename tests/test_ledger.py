"""The code does what the ledger says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="public names and states of PyTorch's doors need it")

from tests import ledger
from xloader.compiled.library import load_library

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


@pytest.mark.parametrize("name", ledger.SUBJECTS)
def test_the_ledger_holds_what_the_code_does(name: str) -> None:
    if name == "explanations.txt" and not load_library()[0]:
        pytest.skip("the texts name the compiled library, which is not there")
    assert ledger.SUBJECTS[name]() == (ledger.FOLDER / name).read_text("utf-8")


def test_the_ledger_has_no_other_files() -> None:
    assert {path.name for path in ledger.FOLDER.iterdir()} == {
        "golden_order.json",
        *ledger.SUBJECTS,
    }
