"""The tree is as it should be: exported, clean, with outputs, without paths of a machine."""
import json, os, re, shutil, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(ROOT.glob("nbs/*.ipynb"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the tree, so that a check never changes what it checks."""
    to = tmp_path_factory.mktemp("tree")/"repo"
    shutil.copytree(ROOT, to, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", "__pycache__", ".hypothesis", ".pytest_cache", "*.egg-info", "demo"))
    return to


def run(command, cwd):
    env = dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(cwd))
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


def differences(a, b, pattern):
    return [p.name for p in sorted(a.glob(pattern)) if not (b/p.relative_to(a)).exists() or p.read_bytes() != (b/p.relative_to(a)).read_bytes()]


def test_export_changes_nothing(copy):
    run(["nbdev_export"], copy)
    assert differences(copy, ROOT, "resispec_nb/*.py") == [], "run `make export` and commit"
    assert differences(ROOT, copy, "resispec_nb/*.py") == [], "a module has no notebook"


def test_clean_changes_nothing(copy):
    run(["nbdev_clean"], copy)
    assert differences(copy, ROOT, "nbs/*.ipynb") == [], "run nbdev_clean and commit"


def test_readme_is_the_index():
    sys.path.insert(0, str(ROOT/"tools"))
    from readme import readme
    text, figures = readme(json.loads((ROOT/"nbs/index.ipynb").read_text()))
    assert (ROOT/"README.md").read_text() == text, "run `make readme` and commit"
    for name, png in figures.items(): assert (ROOT/"nbs/images"/name).read_bytes() == png


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_a_page(notebook):
    """It has a title, shows outputs, no error, no warning, no path of a machine, and every figure has a text."""
    nb = json.loads(notebook.read_text()); code = [c for c in nb["cells"] if c["cell_type"] == "code"]
    first = next(c for c in nb["cells"] if c["cell_type"] == "markdown")
    assert "".join(first["source"]).startswith("# ")
    outputs = [o for c in code for o in c["outputs"]]
    assert outputs and all(o["output_type"] != "error" for o in outputs)
    shown = json.dumps(outputs)
    assert not re.search(r"/(home|root|tmp|work|Users)/", shown), "a path of a machine in an output"
    assert "Warning" not in shown
    for c in code:
        if any("image/png" in o.get("data", {}) for o in c["outputs"]): assert "fig-alt" in "".join(c["source"]), "".join(c["source"])[:80]
    assert notebook.stat().st_size < 1.5e6


@pytest.mark.parametrize("notebook", [p for p in NOTEBOOKS if p.stem != "index"], ids=lambda p: p.stem)
def test_a_page_opens_and_closes(notebook):
    """One sentence under the title says what it is about; the last section says what it showed, in words or by a cell."""
    cells = json.loads(notebook.read_text())["cells"]; text = ["".join(c["source"]) for c in cells]
    first = next(t for t, c in zip(text, cells) if c["cell_type"] == "markdown")
    assert re.fullmatch(r"# [^\n]+\n\n> [^\n]+", first.strip()), first[:80]
    last = max(i for i, (t, c) in enumerate(zip(text, cells)) if c["cell_type"] == "markdown" and re.match(r"#+ ", t))
    assert re.match(r"## What this show(s|ed)", text[last]) and len("".join(text[last:])) > 80, text[last][:80]


def test_a_module_imports_only_from_lower_numbers():
    order = {"house": 0, **{p.stem.split("_", 1)[1]: i + 1 for i, p in enumerate(NOTEBOOKS) if "_" in p.stem}}
    for p in ROOT.glob("resispec_nb/*.py"):
        for name in re.findall(r"^(?:from|import) (?:resispec_nb)?\.(\w+)", p.read_text(), re.M):
            if p.stem in order and name in order and p.stem != "house": assert order[name] < order[p.stem], f"{p.stem} imports {name}"


def test_shipped_files_are_small_and_named():
    for p in (ROOT/"resispec_nb/assets").iterdir(): assert p.stat().st_size <= 16 * 2**20, p.name
    assert (ROOT/"resispec_nb/assets/prompts.json").stat().st_size <= 60_000
    for item in json.loads((ROOT/"resispec_nb/assets/prompts.json").read_text()): assert item["source"] and item["licence"] in ("CC0-1.0", "MIT", "Apache-2.0")
