"""Training that was stopped half-way and started again gives the weights of an uninterrupted run, by the very functions of the training notebooks."""
import ast, json
from pathlib import Path

import pytest, torch

NBS = Path(__file__).parent.parent/"nbs"
DRAFT = "save make_draft trainable Distance rate train_step optimizer checkpoint resume tiny run_tiny"
HEAD = "save Distance Standard Fuse start sees passes step_loss optimizer rate update checkpoint resume tiny run_tiny"


def functions(names, *notebooks):
    """What the notebooks import, their first settings, and the functions and classes of these names; nothing else of them is run."""
    found, wanted, settings = {}, set(names.split()), set()
    for notebook in notebooks:
        for cell in json.loads((NBS/f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "code": continue
            for node in ast.parse("".join(cell["source"])).body:
                first = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "cfg" and notebook not in settings
                if isinstance(node, (ast.Import, ast.ImportFrom)) or first or getattr(node, "name", None) in wanted: exec(compile(ast.Module([node], []), notebook, "exec"), found)
                if first: settings.add(notebook)
    assert wanted <= set(found), wanted - set(found)
    return found


@pytest.mark.parametrize("names, notebooks", [(DRAFT, ["30_train_draft"]), (HEAD, ["30_train_draft", "32_train_eagle"])], ids=["draft", "eagle head"])
@pytest.mark.parametrize("stops", [(3,), (1, 4, 5)])
def test_stopped_and_started_again(names, notebooks, stops, tmp_path):
    train = functions(names, *notebooks)["run_tiny"]
    whole = train(tmp_path/"whole.pt", 6)
    for n in stops: part = train(tmp_path/"parts.pt", n)
    again = train(tmp_path/"parts.pt", 6)
    assert torch.equal(whole, again) and not torch.equal(part, again)


def test_a_checkpoint_without_the_optimizer_would_be_seen(tmp_path):
    """The check can fail: weights alone are not the state of a run."""
    f = functions(DRAFT, "30_train_draft"); train = f["run_tiny"]; whole = train(tmp_path/"whole.pt", 6)
    train(tmp_path/"parts.pt", 3); kept = torch.load(tmp_path/"parts.pt"); kept["opt"]["state"] = {}; torch.save(kept, tmp_path/"parts.pt")
    assert not torch.equal(whole, train(tmp_path/"parts.pt", 6))
