"""Every notebook runs, in a process of its own (notebooks that say `skip_exec` are skipped by nbdev itself)."""
import subprocess, sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted(Path(__file__).parent.parent.glob("nbs/*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(notebook):
    done = subprocess.run([str(Path(sys.executable).parent/"nbdev_test"), "--path", str(notebook), "--n_workers", "0", "--file_re", notebook.stem], capture_output=True, text=True, cwd=notebook.parent.parent)
    assert done.returncode == 0 and "Success" in done.stdout + done.stderr, (done.stdout + done.stderr)[-4000:]
