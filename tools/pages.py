"""Are the outputs on the pages those of today's code? Runs notebooks again, as nbdev_test does, and compares what they show: python tools/pages.py [NAME ...]"""
import base64, io, json, os, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"(?<![\w.])[-−]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
RTOL, ATOL = 1e-3, 2e-6       # other processors round otherwise

TIMES = [re.compile(r"^\| seconds \|.*$", re.M), re.compile(r"\s+\d+\.\d(?:\s+\d+\.\d %)?(?: \|)?$", re.M)]   # a row of statistics; the last columns of tables with tokens a second
REAL = re.compile(r"""load_(?:pair|target)\(["']""")                  # from here on a real model may draw; another processor rounds otherwise, and one other token changes all that follow
MADE_ON = "AMD EPYC"


def processor() -> str:
    """What /proc says this machine is; empty where there is none."""
    info = Path("/proc/cpuinfo")
    return next((l.split(":", 1)[1].strip() for l in info.read_text().splitlines() if l.startswith("model name")), "") if info.exists() else ""


def rerun(path: Path) -> list:
    """Run a notebook; returns (source, outputs on the page, outputs now) of its code cells, none where the notebook is not to be run."""
    from execnb.shell import CaptureShell
    from fastcore.xtras import working_directory
    from nbdev.config import str2bool
    from nbdev.frontmatter import FrontmatterProc
    from nbdev.process import NBProcessor
    os.environ["IN_TEST"] = "1"; sys.path.insert(0, str(ROOT))
    nb = NBProcessor(path, procs=FrontmatterProc, process=True).nb
    if str2bool(getattr(nb, "frontmatter_", {}).get("skip_exec", False)): return []
    page = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    skipped = lambda c: c.cell_type != "code" or "nbdev_export(" in c.source or (c.directives_ or {}).get("eval:", [""])[0].lower() == "false"
    shell = CaptureShell(path, mpl_format="png")
    with working_directory(path.parent): shell.run_all(nb, exc_stop=True, preproc=skipped)
    now = [c for c in nb.cells if c.cell_type == "code"]
    assert len(now) == len(page), (len(now), len(page))
    return [("".join(a["source"]), a["outputs"], list(b.outputs)) for a, b in zip(page, now) if not skipped(b)]


def shown(outputs: list) -> tuple[str, list]:
    """What a reader sees of some outputs: their text, and their pictures."""
    texts, pictures = [], []
    for o in outputs:
        data = o.get("data", {})
        if "image/png" in data: pictures.append("".join(data["image/png"])); continue
        if any("widget" in k for k in data): continue
        texts.append("".join(data.get("text/markdown") or data.get("text/html") or data.get("text/plain") or o.get("text", "")).rstrip())
    return "\n".join(t for t in texts if t), pictures


def untimed(text: str) -> str:
    """A text without the times in it."""
    text = TIMES[0].sub("", text)
    return TIMES[1].sub("", text) if re.search(r"tokens/s \|$|calls/100", text, re.M) else text


def value(text: str) -> float: return float(text.replace(",", "").replace("−", "-"))


def unlike(page: str, now: str) -> str:
    """Where two texts differ in words, or in numbers by more than rounding; empty where they do not."""
    a, b = NUMBER.sub("#", page).split(), NUMBER.sub("#", now).split()
    if a != b: return next((f"page: …{x}… now: …{y}…" for x, y in zip(a, b) if x != y), f"page: {len(a)} words, now: {len(b)}")
    for x, y in zip(NUMBER.findall(page), NUMBER.findall(now)):
        if abs(value(x) - value(y)) > ATOL + RTOL*max(abs(value(x)), abs(value(y))): return f"page: {x}, now: {y}"
    return ""


def distance(page: str, now: str) -> float:
    """Mean difference of two pictures in grey, 0 to 1, at a sixth of their size; 1 where their sizes differ."""
    from PIL import Image
    import numpy as np
    a, b = (Image.open(io.BytesIO(base64.b64decode(x))).convert("L") for x in (page, now))
    if any(abs(m - n) > 4 for m, n in zip(a.size, b.size)): return 1.
    size = tuple(max(1, n//6) for n in a.size)
    return float(np.abs(np.asarray(a.resize(size), float) - np.asarray(b.resize(size), float)).mean()/255)


def stale(path: Path) -> list:
    """Differences between a notebook's page and what its code does now."""
    out, elsewhere, real = [], not processor().startswith(MADE_ON), False
    for source, page, now in rerun(path):
        (a, x), (b, y) = shown(page), shown(now); real = real or bool(REAL.search(source))
        head = next((l for l in source.splitlines() if l and not l.startswith("#|")), "")
        what = unlike(untimed(a), untimed(b)) or (f"page: {len(x)} pictures, now: {len(y)}" if len(x) != len(y) else "") or next((f"a picture differs by {d:.3f}" for p, q in zip(x, y) if (d := distance(p, q)) > .01), "")
        if what and not (real and elsewhere): out.append(f"{head[:90]}  ->  {what}")
    return out


if __name__ == "__main__":
    bad = {p.stem: s for p in sorted(ROOT.glob("nbs/*.ipynb")) if (not sys.argv[1:] or p.stem in sys.argv[1:]) and (s := stale(p))}
    for name, lines in bad.items(): sys.stdout.write(f"{name}\n  " + "\n  ".join(lines) + "\n")
    sys.exit(bool(bad))
