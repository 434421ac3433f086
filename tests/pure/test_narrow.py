"""Where NumPy's index type has 32 bits, as in a browser, answers are those of the engine, and no array is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from answers import answers
from narrow import call

HERE = Path(__file__).parent


def test_answers_are_those_of_the_engine() -> None:
    words = [sys.executable, str(HERE / "narrow.py"), str(HERE / "answers.py")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads(json.dumps(list(answers())))


@pytest.mark.parametrize("given", [np.array([1, 2]), [np.int64(1), 2], np.int64(2)])
def test_what_32_bits_refuse_is_refused(given: object) -> None:
    for owner, name, arguments in (
        (np, "repeat", ([1, 2], given)),
        (np.arange(2), "repeat", (given,)),
        (np, "bincount", (given,)),
        (np.add, "reduceat", ([1, 2, 3], given)),
    ):
        with pytest.raises(TypeError, match="according to the rule 'safe'"):
            call(owner, name, *arguments)
    assert call(np, "repeat", [1, 2], [1, 2]).tolist() == [1, 2, 2]
    assert {call(np, "arange", 3).dtype, call(np.arange(3), "argsort").dtype, call(np, "array", [1]).dtype} == {
        np.dtype(np.int32)
    }
