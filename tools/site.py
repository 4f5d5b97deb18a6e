"""The book as web pages in _docs: with Quarto where it is installed, otherwise with smalldocs, from the same _quarto.yml."""
import shutil, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    subprocess.run(["nbdev_proc_nbs"], cwd=ROOT, check=True)
    project = ROOT/"_proc"
    shutil.rmtree(ROOT/"_docs", ignore_errors=True)
    if shutil.which("quarto"): command = ["quarto", "render", str(project), "--no-execute"]
    elif shutil.which("smalldocs"): command = ["smalldocs", "render", str(project)]
    else: sys.exit("site: neither quarto nor smalldocs is installed; run: pip install smalldocs")
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted((ROOT/"_docs").rglob("*.html"))
    if not pages: sys.exit("site: no page was written to _docs")
    sys.stdout.write(f"{len(pages)} pages in _docs; open _docs/index.html\n")


if __name__ == "__main__": main()
