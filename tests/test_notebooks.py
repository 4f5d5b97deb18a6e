"""Every notebook runs, in a process of its own, and shows what its page shows; the costly ones show the hashes of what they made."""
import hashlib, importlib.util, json, re, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(ROOT.glob("nbs/*.ipynb"))
_spec = importlib.util.spec_from_file_location("pages_tool", ROOT/"tools/pages.py")
pages = importlib.util.module_from_spec(_spec); _spec.loader.exec_module(pages)

COSTLY = {   # notebooks that are not run (`skip_exec`) -> files they made
    "30_train_draft": ["resispec_nb/assets/smollm2-135m-draft.safetensors", "resispec_nb/assets/smollm2-135m-draft-deep.safetensors"],
    "31_record_laws": ["results/recorded_texts.json", "resispec_nb/assets/recorded_laws.npz"],
    "32_train_eagle": ["resispec_nb/assets/smollm2-135m-eagle.safetensors"],
}
RECORDS = [("30_train_draft", "draft_training"), ("30_train_draft", "draft_training_deep"), ("32_train_eagle", "eagle_training")]   # what they measured


def cells(name): return json.loads((ROOT/f"nbs/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
def outputs(name): return "\n".join(pages.shown(c["outputs"])[0] for c in cells(name) if c["cell_type"] == "code")
def sha256(path): return hashlib.sha256((ROOT/path).read_bytes()).hexdigest()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_and_shows_what_its_page_shows(notebook):
    done = subprocess.run([sys.executable, "-W", "ignore", str(ROOT/"tools/pages.py"), notebook.stem], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_the_costly_notebooks_are_known():
    assert sorted(p.stem for p in NOTEBOOKS if re.search(r"^skip_exec: *true", "".join(cells(p.stem)[0]["source"]), re.M)) == sorted(COSTLY)


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_page_shows_the_hash_of_what_it_made(name):
    for path in COSTLY[name]: assert sha256(path) in outputs(name), f"{path} is not the file that {name} made; run the notebook again"


def measured(x):
    """Every mean with its standard error in a record, however deep."""
    if isinstance(x, dict) and {"mean", "se"} <= set(x): return [x]
    return [e for v in (x.values() if isinstance(x, dict) else x if isinstance(x, list) else ()) for e in measured(v)]


@pytest.mark.parametrize("name, record", RECORDS)
def test_a_costly_page_shows_what_its_record_says(name, record):
    """The hash of the weights, and every overlap in the record, to the digits that it keeps."""
    final = json.loads((ROOT/f"results/{record}.json").read_text())["final"]; text = outputs(name)
    numbers = {round(float(x), 4) for x in re.findall(r"-?\d*\.\d+", text)}
    said = measured(final["overlap"])
    assert final["sha256"] in text and said
    for e in said: assert e["mean"] in numbers and e["se"] in numbers, e


# ---- the comparison itself

def test_words_and_numbers_are_compared():
    same, other = pages.unlike("acceptance 0.8520, 1,024 rows", "acceptance 0.85204, 1024 rows"), pages.unlike("acceptance 0.852", "acceptance 0.861")
    assert same == "" and "0.861" in other
    assert pages.unlike("ResiSpec 0.5", "SpecInfer 0.5") and pages.unlike("3 rows", "3 rows more") and pages.unlike("-0.5", "0.5")
    assert pages.unlike("worst 2.2e-16", "worst 4.4e-15") == "" and pages.unlike("1e-3", "2e-3")
    assert pages.unlike("d5b3", "d5b2") and pages.unlike("k=3", "k=2")


def test_a_stale_page_is_found(tmp_path):
    """A notebook whose output was changed by hand, one with a cell that now says something else, and one that fails."""
    cell = lambda source, *out: dict(cell_type="code", id=f"c{len(source)}", metadata={}, execution_count=None, source=source, outputs=[dict(output_type="execute_result", execution_count=None, metadata={}, data={"text/plain": x}) for x in out])
    def found(*cs):
        path = tmp_path/"90_page.ipynb"; path.write_text(json.dumps(dict(cells=list(cs), metadata={}, nbformat=4, nbformat_minor=5)))
        code = f"import runpy, pathlib, json; m = runpy.run_path({str(ROOT/'tools/pages.py')!r}); print(json.dumps(m['stale'](pathlib.Path({str(path)!r}))))"
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
        return done.returncode, done.stdout.strip().splitlines()[-1:]
    assert found(cell("1/3", "0.3333333333333333")) == (0, ["[]"])
    code, said = found(cell("1/3", "0.3433333333333333")); assert code == 0 and "0.3433" in said[0]
    code, said = found(cell("'one'", "'two'")); assert code == 0 and "two" in said[0]
    assert found(cell("1/0"))[0] != 0


def test_times_are_left_out():
    table = "| rule | tokens a step | tokens/s |\n|---|---|---|\n| specinfer | 2.667 | {} |"
    assert pages.untimed(table.format("9.2")) == pages.untimed(table.format("17.4")) and "2.667" in pages.untimed(table.format("9.2"))
    demo = "      tokens  target  tokens  shaping\n      a step  calls/100  /s\nresispec  2.00±0.19  50.0  {}\nceiling  0.440"
    assert pages.untimed(demo.format("5.9    0.9 %")) == pages.untimed(demo.format("7.1    1.9 %")) and "50.0" in pages.untimed(demo.format("5.9    0.9 %"))
    assert pages.untimed("| steps | 2 |\n| seconds | drafting 1.32 |") == pages.untimed("| steps | 2 |\n| seconds | drafting 2.64 |") != pages.untimed("| steps | 3 |\n| seconds | drafting 1.32 |")
    assert pages.untimed("loss 1.5") == "loss 1.5"
