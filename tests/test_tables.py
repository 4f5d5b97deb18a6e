"""The experiment harness on the real pair: two processes make the rows of one, and what is missing fails."""
import json, os, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--kinds", "web", "--temperatures", "1", "--prompts", "4", "--trees", "d3b2"]


def tables(tmp, *args, launch=()):
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", PYTHONWARNINGS="ignore")
    return subprocess.run([*(launch or [sys.executable]), str(ROOT/"tools/tables.py"), *args, *SMALL, "--folder", str(tmp)], env=env, capture_output=True, text=True, timeout=1200, cwd=tmp)


def rows(file):
    out = [json.loads(l) for l in file.read_text().splitlines()]
    return sorted((r for r in out if set(r) != {"environment"}), key=lambda r: r["prompt"])


def test_two_processes_make_the_rows_of_one(tmp_path):
    """Two CPU processes (`torchrun`; on CPUs `accelerate launch` would start only one), merged, against a single process: the same rows, to the last digit; and a run cut short goes on without doing finished rows again."""
    one, two = tmp_path/"one", tmp_path/"two"; one.mkdir(); two.mkdir()
    done = tables(one, "sample", "laws", "trees"); assert done.returncode == 0, done.stderr[-2000:]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    both = tables(two, "laws", "trees", launch=launch); assert both.returncode == 0, both.stderr[-2000:]
    assert len(list(two.glob("tables_laws_*.part*.jsonl"))) == 2, sorted(two.iterdir())
    merged = tables(two, "merge"); assert merged.returncode == 0, merged.stderr[-2000:]
    for what in ("laws", "trees"):
        a, b = rows(one/f"tables_{what}_smollm2-135m.jsonl"), rows(two/f"tables_{what}_smollm2-135m.jsonl")
        assert len(a) == dict(laws=4, trees=2)[what] and a == b, what
    file = one/"tables_laws_smollm2-135m.jsonl"; lines = file.read_text().splitlines(); file.write_text("\n".join(lines[:3]) + "\n" + lines[3][:50])
    again = tables(one, "laws"); assert again.returncode == 0, again.stderr[-2000:]
    assert file.read_text().splitlines()[:3] == lines[:3]                            # finished rows were left alone
    assert [json.loads(l) for l in file.read_text().splitlines()[4:]] == [json.loads(l) for l in lines[3:]]


def test_pages_fail_without_results():
    """No number of a page survives without its file."""
    from resispec_nb.bench import read
    with pytest.raises(FileNotFoundError): read(ROOT/"results"/"no_such_run.jsonl")
