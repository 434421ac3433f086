"""Every lesson: its start fails, its solution passes, its figures are computed, its words are introduced."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from solved import judged, solved_file

from allfold.learn import checks
from allfold.learn.course import after_of, text_of
from allfold.learn.figures import WrongFigure, compute, formula, read_formula
from allfold.learn.lesson import FOLDER, Lesson, lessons
from allfold.learn.text import Picture, Prose, as_markdown, blocks, filled, read_in
from allfold.registry import find_algorithm

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about what a wrong file does
LESSONS = [pytest.param(one, id=one.label) for one in lessons()]
FILES = {"lesson.toml", "text.md", "after.md", "start.py", "solution.py", "checks.py"}


def test_they_are_numbered_from_one() -> None:
    assert [one.number for one in lessons()] == list(range(1, len(lessons()) + 1))
    assert [one.folder for one in lessons()] == sorted(path for path in FOLDER.iterdir() if path.is_dir())


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_complete(lesson: Lesson) -> None:
    there = {path.name for path in lesson.folder.iterdir() if path.name != "__pycache__"}
    assert FILES - {"checks.py"} <= there <= FILES
    assert 2 <= len(lesson.predictions) <= 3 and lesson.exercises
    assert lesson.minutes <= 15
    assert all(len(one.hints) >= 3 and not one.hints[-1].kinds for one in lesson.exercises)
    # Pictures, code and numbers are not counted; what a reader in a terminal reads beside them is.
    text = re.sub(r"\{\{.*?\}\}", "1", lesson.read("text.md"), flags=re.DOTALL)
    text = re.sub(
        r"```(\w*)\n(.*?)```", lambda found: found[2] if found[1] == "terminal" else "", text, flags=re.DOTALL
    )
    assert len(text.split()) <= 400
    # A reader takes half of the minutes, at 150 words each; the rest is for thinking and writing.
    assert len(text.split()) <= 75 * lesson.minutes


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_file_that_it_begins_with_fails(lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 1.0)  # those that wait in vain need not wait long
    found = judged(lesson, lesson.first_file(), tmp_path)
    assert found["error"] is None
    assert [one["given"] for one in found["predictions"]] == [None] * len(lesson.predictions)
    assert not any("answer" in one for one in found["predictions"])  # nothing is given away
    assert [one["passed"] for one in found["exercises"]] == [False] * len(lesson.exercises)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_solution_passes(lesson: Lesson, tmp_path: Path) -> None:
    found = judged(lesson, solved_file(lesson), tmp_path)
    assert found["error"] is None
    assert [(one["name"], one["right"]) for one in found["predictions"]] == [(p.name, True) for p in lesson.predictions]
    assert [(one["function"], one["passed"], one["message"]) for one in found["exercises"] if not one["passed"]] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_wrong_predictions_are_wrong(lesson: Lesson, tmp_path: Path) -> None:
    wrong = {one.name: 2 * float(compute(one.answer)) + 1 for one in lesson.predictions}
    start = lesson.read("start.py").split("\n\n")[0]  # no exercise: only the predictions are judged here
    found = judged(lesson, f"PREDICTIONS = {wrong!r}\n{start}\n", tmp_path)
    assert [one["right"] for one in found["predictions"]] == [False] * len(lesson.predictions)
    assert all(one["answer"] and one["because"] for one in found["predictions"])


# Figures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", LESSONS)
def test_all_figures_can_be_computed(lesson: Lesson) -> None:
    assert text_of(lesson) and after_of(lesson)
    for one in lesson.predictions:
        assert float(compute(one.answer)) >= 0
        assert "{{" not in filled(one.because)


@pytest.mark.parametrize("lesson", LESSONS)
def test_no_answer_is_stored(lesson: Lesson) -> None:
    """An answer calls the product: it is not a number, and not arithmetic on numbers."""
    for one in lesson.predictions:
        tree = ast.parse(one.answer.strip(), mode="eval")
        assert any(isinstance(node, ast.Call) for node in ast.walk(tree)), one.answer


@pytest.mark.parametrize("lesson", LESSONS)
def test_costs_in_the_texts_are_computed(lesson: Lesson) -> None:
    """A count beside its unit, or a time, is never typed by hand."""
    counted = "steps?|messages?|moves|hops"
    read = {name: (lesson.read(name), f"{counted}|S|µs|ms|GB/s") for name in ("text.md", "after.md")}
    read |= {one.name: (one.because, counted) for one in lesson.predictions}  # these also repeat what was given
    for name, (text, units) in read.items():
        prose = re.sub(r"```.*?```|\{\{.*?\}\}|`[^`]*`", "", text, flags=re.DOTALL)
        typed = re.findall(rf"(?<!− )\b\d[\d.,]*\s+(?:{units})\b", prose)
        assert not typed, f"{lesson.label}/{name}: {typed}"


def test_each_reader_gets_what_is_meant_for_them() -> None:
    found = blocks(
        "All.\n\n```terminal\nDigits.\n```\n\n```drawn\nSquares {{ 1 + 1 }}.\n```\n\n```studio\nNumbers.\n```\n"
    )
    for place, own in {"terminal": "Digits.", "drawn": "Squares 2.", "studio": "Numbers."}.items():
        assert [one.text for one in read_in(place, found) if isinstance(one, Prose)] == ["All.", own]
    assert as_markdown(found, "p")[0] == "All.\n\nSquares 2.\n"


def test_a_figure_with_numbers_is_played_where_it_can_be_and_text_elsewhere() -> None:
    found = blocks('```figure\nin_numbers("all_reduce", "driver", "1; 5; 3")\n```\n')
    (played,) = read_in("studio", found)
    assert isinstance(played, Picture) and played.schedule.ranks == 3 and played.values == "1; 5; 3"
    for place in ("terminal", "drawn"):
        (text,) = read_in(place, found)
        assert isinstance(text, Prose) and "1 + 5 from rank 1 + 3 from rank 2 = 9" in text.text


def test_a_formula_that_is_wrong_is_refused() -> None:
    assert formula("2(P−1)", "all_reduce", "ring", "steps") == "2(P−1)"
    with pytest.raises(WrongFigure, match="ring has 2 steps"):
        formula("2P−1", "all_reduce", "ring", "steps")


@pytest.mark.parametrize("algorithm", ["ring", "tree", "naive"])
def test_formulas_are_read_as_the_algorithms_declare_them(algorithm: str) -> None:
    declared = find_algorithm("all_reduce", algorithm)
    text = {"ring": "2(P−1)/P", "tree": "⌈log₂P⌉", "naive": "P−1"}[algorithm]
    assert declared.port is not None
    assert all(read_formula(text)(ranks) == declared.port(ranks) for ranks in range(2, 40))


# Words ---------------------------------------------------------------------------------------------------------------


def _prose(text: str) -> str:
    """Without code, without what is computed, without headings, which may name what comes."""
    prose = re.sub(r"^#+ [^\n]*|```.*?```|\{\{.*?\}\}|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(prose.split())


def _occurrence(word: str, text: str) -> re.Match[str] | None:
    case = 0 if word.isupper() else re.IGNORECASE
    return re.search(rf"(?<![\w-]){re.escape(word)}(?:s|es)?(?![\w-])", text, case)


def _read_in(lesson: Lesson) -> str:
    """All that a learner reads in a lesson, in the order in which it is read."""
    asked = [one.question for one in lesson.predictions] + [one.because for one in lesson.predictions]
    hints = [hint.say for one in lesson.exercises for hint in one.hints]
    tasks = [one.task for one in lesson.exercises]
    return "\n".join(map(_prose, [lesson.read("text.md"), *asked, *tasks, *hints, lesson.read("after.md")]))


@pytest.mark.parametrize("lesson", LESSONS)
def test_words_are_introduced_before_they_are_used(lesson: Lesson) -> None:
    text = _prose(lesson.read("text.md"))
    for word in lesson.words:
        first = _occurrence(word, text)
        assert first is not None, f"{word} is in the glossary of {lesson.label}, but not in its text"
        bold = text[first.start() - 2 : first.start()] == "**" and text[first.end() : first.end() + 2] == "**"
        assert bold, (
            f"{lesson.label} uses {word} before it introduces it: {text[first.start() - 60 : first.end() + 20]!r}"
        )
        for earlier in lessons()[: lesson.number - 1]:
            used = _occurrence(word, _read_in(earlier))
            assert used is None, f"{earlier.label} uses {word}, which {lesson.label} introduces"


def test_no_word_is_introduced_twice() -> None:
    words = [word for lesson in lessons() for word in lesson.words]
    assert len(words) == len(set(words))
